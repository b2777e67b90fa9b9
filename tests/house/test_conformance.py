"""docs/conformance.md keeps its word: every line names tests that exist and run, checks of doctor, or the issue that
owes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from farro import checkup
from support import ROOT as HERE

ROOT = Path(HERE)

PAGE = (ROOT / "docs" / "conformance.md").read_text()
ROWS = [
    (section, *(cell.strip() for cell in line.strip("|").split("|")))
    for section, body in re.findall(r"^## (Seed \d+)[^\n]*\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    for line in body.splitlines()
    if line.startswith("|") and not re.match(r"\|[-|]+\|$|\| § \|", line)
]
CHECKS = {check.id for check in checkup.checks(str(ROOT / "no-such-root"), finished=0, conformance=True)}
NEVER = re.compile(r"@pytest\.mark\.(?:skip|skipif|xfail|torture)\b")


def decorators() -> dict[str, list[str]]:
    """What stands above each test function of a name."""
    pattern = re.compile(r"((?:^@.*\n(?:^[ )].*\n)*)*)^def (test_[a-z0-9_]+)\(", re.MULTILINE)
    above: dict[str, list[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for found in pattern.finditer(path.read_text()):
            above.setdefault(found[2], []).append(found[1])
    return above


ABOVE = decorators()


def test_there_is_a_section_for_each_seed() -> None:
    assert {row[0] for row in ROWS} == {f"Seed 00{number}" for number in range(5)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[1]} {row[2][:40]}")
def test_every_line_is_shown_by_tests_that_run_or_says_who_owes_it(row: tuple[str, str, str, str]) -> None:
    shown = row[3]
    names = re.findall(r"`(test_[a-z0-9_]+)`", shown)
    checks = re.findall(r"`doctor:([a-z0-9-]+)`", shown)
    if re.fullmatch(r"open: issue [3-9]", shown):
        return
    assert names or checks, f"names no test: {shown}"
    assert re.fullmatch(r"(`(test_[a-z0-9_]+|doctor:[a-z0-9-]+)`(, )?)+", shown), f"says something else too: {shown}"
    assert set(checks) <= CHECKS, f"doctor has no check {set(checks) - CHECKS}"
    for name in names:
        found = ABOVE.get(name)
        assert found, f"there is no test {name}"
        assert not any(NEVER.search(text) for text in found), f"{name} is skipped or expected to fail"
