"""Fixtures: a fresh root with the program in it. Each suite imports those that it needs into its conftest.

After a test, every process that it started is ended.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.program import Program


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Program]:
    """Run farro in an empty folder."""
    program = Program(tmp_path)
    yield program
    program.clean_up()


@pytest.fixture(scope="session")
def fresh_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the files of `farro init` once."""
    path = tmp_path_factory.mktemp("fresh")
    Program(path).run("init", code=0)
    return path


@pytest.fixture
def farro(empty: Program, fresh_root: Path) -> Program:
    """Run farro in its own root."""
    shutil.copytree(fresh_root, empty.path, dirs_exist_ok=True)
    return empty
