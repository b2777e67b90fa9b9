"""Check docs/conformance.md: every line names tests that exist and run, or checks of doctor."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from farro.app import App
from house import named_tests
from support import ROOT as HERE

ROOT = Path(HERE)

PAGE = (ROOT / "docs" / "conformance.md").read_text()
ROWS = [
    (section, *(cell.strip() for cell in line.strip("|").split("|")))
    for section, body in re.findall(r"^## (Seed \d+)[^\n]*\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    for line in body.splitlines()
    if line.startswith("|") and not re.match(r"\|[-|]+\|$|\| § \|", line)
]
CHECKS = {check.id for check in App().checks(str(ROOT / "no-such-root"), finished=0, conformance=True)}


def test_there_is_a_section_for_each_seed() -> None:
    assert {row[0] for row in ROWS} == {f"Seed 00{number}" for number in range(5)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[1]} {row[2][:40]}")
def test_every_line_is_shown_by_tests_that_run(row: tuple[str, str, str, str]) -> None:
    shown = row[3]
    names = re.findall(r"`(test_[a-z0-9_]+)`", shown)
    checks = re.findall(r"`doctor:([a-z0-9-]+)`", shown)
    assert names or checks, f"names no test: {shown}"
    assert re.fullmatch(r"(`(test_[a-z0-9_]+|doctor:[a-z0-9-]+)`(, )?)+", shown), f"says something else too: {shown}"
    assert set(checks) <= CHECKS, f"doctor has no check {set(checks) - CHECKS}"
    assert not (wrong := named_tests.problems(names)), wrong
