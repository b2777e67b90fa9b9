"""The branches of src that the test processes took, of all that there are.

What a test process writes down lives in tests/measured.py; which suites are measured, and the share that they must
reach, in suites.py, which calls this.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE = os.path.join("src", "farro")
FOLDER = os.path.join(".build", "test", "branches")  # below it: a folder for each suite, a file for each process
LEAST = 5

# Not counted, because nothing on the machines that run the tests can take them. They stay in sight where they are.
EXCLUDED = [
    r"\bif TYPE_CHECKING:",  # read by mypy only
    r'^\s*if sys\.platform == "win32"',  # with what is below it; its else is counted
]

Branch = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class File:
    """One file of src."""

    name: str
    taken: frozenset[Branch]
    missed: frozenset[Branch]

    @property
    def share(self) -> float:
        return share([self])


def share(files: Sequence[File]) -> float:
    """Of the branches of these files, how many were taken: 0.0 to 1.0."""
    taken = sum(len(file.taken) for file in files)
    there = taken + sum(len(file.missed) for file in files)
    return taken / there if there else 1.0


def measured(folder: str = FOLDER) -> list[File]:
    """Every file of src that has branches, with those that the processes that wrote into this folder took."""
    seen: dict[str, set[Branch]] = {}
    for path in Path(folder).rglob("*.json"):
        for name, branches in json.loads(path.read_text(encoding="utf-8")).items():
            seen.setdefault(name, set()).update(map(tuple, branches))
    return [
        File(name=name, taken=frozenset(there & seen.get(name, set())), missed=frozenset(there - seen.get(name, set())))
        for name, there in sorted(existing().items())
        if there
    ]


def existing() -> dict[str, set[Branch]]:
    """The branches of every file of src but the excluded ones, whether or not a test imports it."""
    import slipcover

    told = slipcover.Slipcover(branch=True, source=[SOURCE], exclude_lines=EXCLUDED).get_coverage()
    return {name: set(map(tuple, file["missing_branches"])) for name, file in told["files"].items()}


def least(files: Sequence[File]) -> str:
    """The files with the smallest share, in one line."""
    worst = sorted(files, key=lambda file: (file.share, file.name))[:LEAST]
    return ", ".join(f"{os.path.relpath(file.name, SOURCE)} {file.share:.0%}" for file in worst)


def missed(files: Sequence[File]) -> Iterator[str]:
    """A line for each file: the branches that no test took, from the line that decides to the line where it goes on."""
    for file in sorted(files, key=lambda file: (file.share, file.name)):
        if file.missed:
            lines = ", ".join(f"{source}→{target or 'end'}" for source, target in sorted(file.missed))
            yield f"{file.share:>4.0%} of {len(file.taken) + len(file.missed):>3}  {file.name}: {lines}"
