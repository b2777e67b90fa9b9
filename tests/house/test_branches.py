"""Check, on a small project, that `make test` fails and lists the branches when too few branches of src are taken."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from measured import mark
from support import ROOT

CHOICE = """
import sys


def choice(wanted: bool) -> str:
    if wanted:
        return "this"
    if sys.platform == "win32":
        return "neither"
    return "that"
"""
TEST = """
from farro.choice import choice


def test_choice():
    assert choice(True) == "this"
"""
PYPROJECT = """
[tool.pytest.ini_options]
pythonpath = ["tests", "src"]
markers = ["linux: x", "torture: x"]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a project with the real scripts and conftest, one small module in src, and one test."""
    own = {"pyproject.toml": PYPROJECT, "src/farro/choice.py": CHOICE, "tests/jobs/test_choice.py": TEST}
    own["src/farro/__init__.py"] = ""
    rigs = ("servers", "docker_rig", "private_machine", "cached")
    copied = ("suites", "branches"), ("conftest", "support", "measured", *rigs)
    for name in (*(f"scripts/{one}" for one in copied[0]), *(f"tests/{one}" for one in copied[1])):
        own[f"{name}.py"] = Path(ROOT, f"{name}.py").read_text()
    for name, text in own.items():
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return tmp_path


def suites(project: Path, *args: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("FARRO_", "PYTEST_"))}
    command = [sys.executable, "scripts/suites.py", *args]
    return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False).stdout


EVERY_KIND = """
def walk(numbers):
    for number in numbers:
        if number > 2:
            break
        elif number == 2:
            continue
    else:
        return "through"
    while True:
        match number:
            case 3:
                return "three"
            case 4 | 5:
                number -= 1
                continue
        return "many"
"""


def test_instrumented_code_behaves_the_same_and_reports_each_branch() -> None:
    tree = ast.parse(EVERY_KIND)
    there = set(mark(tree))
    lines = EVERY_KIND.splitlines()
    took: set[tuple[int, int]] = set()
    names: dict[str, Any] = {"__branches__": took}
    exec(compile(tree, "marked", "exec"), names)

    assert names["walk"]([]) == "through"
    assert [lines[source - 1].strip() for source, _ in took] == ["for number in numbers:"]
    assert names["walk"]([1, 2]) == "through"
    assert names["walk"]([5]) == "three"
    assert {lines[source - 1].strip() for source, _ in there - took} == {"match number:"}, "no case fitted none"
    assert names["walk"]([9]) == "many"
    assert took == there
    assert len(there) == 2 + 2 + 2 + 1 + 3  # for, if, elif, while, match


def test_a_branch_that_no_test_takes_fails_the_run(project: Path) -> None:
    said = suites(project)
    assert "branches: 50.0% of the branches of src were taken; more than 85% must be" in said
    assert "the least in choice.py 50%" in said


def test_some_suites_are_measured_only_when_asked_and_never_judged(project: Path) -> None:
    assert "branches" not in suites(project, "--suites", "jobs")
    said = suites(project, "--suites", "jobs", "--branches")
    assert "50% of   2  src/farro/choice.py: 6→past" in said
    assert "Not judged" in said
    assert said.endswith("1 passed, 0 failed, 0 skipped\n")
