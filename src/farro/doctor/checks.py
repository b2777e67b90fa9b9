"""What doctor asks: a check with a stable id, and what it finds. Every room that has something to check offers some.

Running and judging them lives in operations.doctor; who collects them is app. docs/doctor.md lists every id.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from farro.lazy_dataclass import dataclass

Verdict = Literal["ok", "warning", "failed"]

EXAMPLES = 5  # of a kind of trouble: the others are counted


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Invariant: what is not ok has a cause and a command that repairs it."""

    verdict: Verdict
    found: str  # one line
    cause: str = ""  # what it means, and what the repair does
    repair: tuple[str, ...] = ()  # commands for a shell, in order; those of farro get the root by doctor
    details: tuple[str, ...] = ()  # places, at most a few

    def __post_init__(self) -> None:
        assert self.verdict == "ok" or (self.cause and self.repair), self.found


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """`look` may raise OSError or FarroError: then it could not be checked, which is a failure too. A `quick` one
    starts no process and its time does not grow with the jobs: daemons that start strictly run these."""

    id: str  # kebab-case; never changes: docs/conformance.md and people's scripts name it
    title: str
    look: Callable[[], Finding]
    quick: bool = False

    def run(self) -> Finding:
        return self.look()


def ok(found: str, *details: str) -> Finding:
    return Finding(verdict="ok", found=found, details=details)


def warning(found: str, cause: str, *repair: str, details: tuple[str, ...] = ()) -> Finding:
    return Finding(verdict="warning", found=found, cause=cause, repair=repair, details=details)


def failed(found: str, cause: str, *repair: str, details: tuple[str, ...] = ()) -> Finding:
    return Finding(verdict="failed", found=found, cause=cause, repair=repair, details=details)


def edit(path: str) -> str:
    """The command for what only a person can put right."""
    return f'"${{EDITOR:-vi}}" {quoted(path)}'


def own(path: str) -> str:
    """The command that gives a folder to whoever types it."""
    return f'sudo chown -R "$(id -u):$(id -g)" {quoted(path)}'


def quoted(text: str) -> str:
    """As one word of a shell."""
    safe = text and all(letter.isalnum() or letter in "/._-+:@%=," for letter in text) and text.isascii()
    return text if safe else "'" + text.replace("'", "'\"'\"'") + "'"


def counted(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
