"""The table is kept whole: every row of RELIABILITY.md has a test that says so, every test that the code names exists.

The tests themselves live in test_rows and beside it.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import ROOT

ROWS = range(1, 32)
LATER = {25: "steps added while a runner finishes: the issue of plans and runners"}

NAME = re.compile(r"\btest_[a-z0-9_]+")


@functools.cache
def functions() -> list[tuple[str, str]]:
    """(name, docstring) of every test under tests/."""
    return [
        (node.name, ast.get_docstring(node) or "")
        for path in sorted(Path(ROOT, "tests").rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


@pytest.mark.parametrize("row", ROWS)
def test_every_row_of_the_table_is_a_named_test(row: int) -> None:
    covered = [name for name, text in functions() if re.match(rf"Row {row}:", text)]
    assert covered or row in LATER, f"no test's docstring starts with 'Row {row}:'"


def test_every_test_that_the_code_names_exists() -> None:
    there = {name for name, _ in functions()} | {path.stem for path in Path(ROOT, "tests").rglob("test_*.py")}
    named: dict[str, str] = {}
    for path in sorted(Path(ROOT, "src", "farro").rglob("*.py")):
        for text in docstrings(path):
            named |= {name: path.relative_to(ROOT).as_posix() for name in NAME.findall(text)}
    assert named, "the code names no test at all: is the pattern wrong?"
    missing = {name: where for name, where in named.items() if name not in there}
    assert not missing, "docstrings name tests that do not exist"
