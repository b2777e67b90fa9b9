"""A root with the program in it, and a screen over it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.program import Program
from top_rig import Top


@pytest.fixture(scope="session")
def fresh_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fresh")
    Program(path).run("init", code=0)
    return path


@pytest.fixture
def farro(tmp_path: Path, fresh_root: Path) -> Iterator[Program]:
    shutil.copytree(fresh_root, tmp_path, dirs_exist_ok=True)
    program = Program(tmp_path)
    yield program
    program.clean_up()


@pytest.fixture
def top(farro: Program) -> Top:
    return Top(farro)
