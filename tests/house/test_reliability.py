"""Check docs/reliability.md: every row that is not planned names tests that exist and run.

Most tests of the rows are in tests/crash.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from house import named_tests
from support import ROOT

PAGE = Path(ROOT, "docs", "reliability.md").read_text(encoding="utf-8")
PLANNED = "**(planned)**"
CRASH_ROWS = {*range(1, 47), *range(48, 54), 56}  # the numbers 47, 54 and 55 were never used


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table on the page."""

    section: str
    cells: tuple[str, ...]

    @property
    def planned(self) -> bool:
        return any(PLANNED in cell for cell in self.cells)

    @property
    def tests(self) -> list[str]:
        return named_tests.NAME.findall(self.cells[-1])

    def __str__(self) -> str:
        return f"{self.section}: {' '.join(self.cells)[:40]}"


def rows() -> Iterator[Row]:
    for section, body in re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL):
        head: str | None = None
        for line in body.splitlines():
            if not line.startswith("|"):
                head = None
            elif head is None:
                head = line
                assert line.endswith("| tests |"), f"the last column of every table names tests: {line}"
            elif not re.fullmatch(r"\|[-|]+\|", line):
                yield Row(section=section, cells=tuple(cell.strip() for cell in line.strip("|").split("|")))


ROWS = list(rows())
NUMBERED = {int(row.cells[0]): row for row in ROWS if row.cells[0].isdigit()}


def test_the_page_has_every_row_once() -> None:
    numbers = [row.cells[0] for row in ROWS if row.section == "Crash points and races"]
    assert sorted(map(int, numbers)) == sorted(CRASH_ROWS)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_row_that_is_not_planned_names_tests_that_run(row: Row) -> None:
    if row.planned:
        assert not row.tests, "a planned row has tests: is it still planned?"
        return
    assert row.tests, "names no test, and is not marked **(planned)**"
    assert not (wrong := named_tests.problems(row.tests)), wrong


@pytest.mark.parametrize("number", sorted(NUMBERED))
def test_every_test_of_a_row_is_named_in_it(number: int) -> None:
    """A test says `Row N:` in its docstring; the table must lead to it."""
    said = [found.name for found in named_tests.functions() if re.match(rf"Row {number}:", found.docstring)]
    assert [name for name in said if name not in NUMBERED[number].tests] == []


def docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def test_every_test_that_the_code_names_exists() -> None:
    there = {found.name for found in named_tests.functions()}
    there |= {path.stem for path in Path(ROOT, "tests").rglob("test_*.py")}
    named: dict[str, str] = {}
    for path in sorted(Path(ROOT, "src", "farro").rglob("*.py")):
        for text in docstrings(path):
            named |= {name: path.relative_to(ROOT).as_posix() for name in re.findall(r"\btest_[a-z0-9_]+", text)}
    assert named, "the code names no test at all: is the pattern wrong?"
    missing = {name: where for name, where in named.items() if name not in there}
    assert not missing, "docstrings name tests that do not exist"
