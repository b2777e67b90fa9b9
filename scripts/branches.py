"""Compute which branches of src the test processes took.

tests/measured.py records them in each process; suites.py says which suites are measured and what share they must reach.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))

from measured import mark  # noqa: E402

SOURCE = ROOT / "src" / "farro"
FOLDER = ROOT / ".build" / "test" / "branches"  # below it: a folder for each suite, a file for each process
LEAST = 5

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
    """Return the share of these files' branches that was taken, 0.0 to 1.0."""
    taken = sum(len(file.taken) for file in files)
    there = taken + sum(len(file.missed) for file in files)
    return taken / there if there else 1.0


def measured(folder: Path = FOLDER) -> list[File]:
    """Return every file of src that has branches, with those taken by the processes that wrote into this folder."""
    seen: dict[str, set[Branch]] = {}
    for path in folder.glob("*/*.txt"):
        for line in path.read_text(encoding="utf-8").splitlines():
            name, *numbers = line.rsplit(" ", 2)
            source, target = map(int, numbers)
            seen.setdefault(name, set()).add((source, target))
    files = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = os.path.relpath(path, ROOT)
        there = frozenset(mark(ast.parse(path.read_bytes())))
        taken = there & seen.get(name, frozenset())
        if there:
            files.append(File(name=name, taken=taken, missed=there - taken))
    return files


def least(files: Sequence[File]) -> str:
    """Return the files with the smallest share, in one line."""
    worst = sorted(files, key=lambda file: (file.share, file.name))[:LEAST]
    return ", ".join(f"{os.path.relpath(ROOT / file.name, SOURCE)} {file.share:.0%}" for file in worst)


def missed(files: Sequence[File]) -> Iterator[str]:
    """Return a line for each file with the branches that no test took: from the deciding line to the next one."""
    for file in sorted(files, key=lambda file: (file.share, file.name)):
        if file.missed:
            lines = ", ".join(f"{source}→{target or 'past'}" for source, target in sorted(file.missed))
            yield f"{file.share:>4.0%} of {len(file.taken) + len(file.missed):>3}  {file.name}: {lines}"
