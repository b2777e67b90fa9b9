"""A check of `farro doctor`, with a stable id, and its finding. docs/doctor.md lists every id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from farro.lazy_dataclass import dataclass

Verdict = Literal["ok", "warning", "failed"]

EXAMPLES = 5  # shown per kind of trouble; the others are only counted


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The result of a check. Invariant: a finding that is not ok has a cause and a command that repairs it."""

    verdict: Verdict
    found: str  # one line
    cause: str = ""  # what the trouble means, and what the repair does
    repair: tuple[str, ...] = ()  # shell commands, in order; doctor adds --root to those of farro
    details: tuple[str, ...] = ()  # paths, at most a few

    def __post_init__(self) -> None:
        assert self.verdict == "ok" or (self.cause and self.repair), self.found


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One check. `look` may raise OSError or FarroError, which counts as a failure. A `quick` check starts no process
    and its time does not grow with the number of jobs: daemons that start strictly run these."""

    id: str  # kebab-case; never changes: docs/conformance.md and people's scripts name it
    title: str
    look: Callable[[], Finding]
    quick: bool = False


def ok(found: str, *details: str) -> Finding:
    return Finding(verdict="ok", found=found, details=details)


def warning(found: str, cause: str, *repair: str, details: tuple[str, ...] = ()) -> Finding:
    return Finding(verdict="warning", found=found, cause=cause, repair=repair, details=details)


def failed(found: str, cause: str, *repair: str, details: tuple[str, ...] = ()) -> Finding:
    return Finding(verdict="failed", found=found, cause=cause, repair=repair, details=details)


def edit(path: str) -> str:
    """Return the command that opens a file for a person to correct."""
    return f'"${{EDITOR:-vi}}" {quoted(path)}'


def own(path: str) -> str:
    """Return the command that makes its caller the owner of a folder."""
    return f'sudo chown -R "$(id -u):$(id -g)" {quoted(path)}'


def quoted(text: str) -> str:
    """Quote a text as one word of a shell."""
    safe = text and all(letter.isalnum() or letter in "/._-+:@%=," for letter in text) and text.isascii()
    return text if safe else "'" + text.replace("'", "'\"'\"'") + "'"


def counted(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
