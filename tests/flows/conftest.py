"""A fresh root with the program in it; whatever a test started is ended after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.program import Program


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Program]:
    """farro in an empty folder."""
    program = Program(tmp_path)
    yield program
    program.clean_up()


@pytest.fixture
def farro(empty: Program) -> Program:
    """farro in a root."""
    empty.run("init", code=0)
    return empty
