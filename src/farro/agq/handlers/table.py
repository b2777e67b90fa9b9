"""Define a command: its name, the number of its arguments, its function. Parse arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from farro.agq.resp import CommandError
from farro.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from farro.agq.connection import Connection

Run = Callable[["Connection", list[bytes]], Any]  # returns a reply, or the coroutine that produces it


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    name: str
    run: Run
    least: int = 0  # arguments after the name
    most: int | None = None

    @property
    def arity(self) -> int:
        """The arity as COMMAND reports it: negative if there may be more."""
        return self.least + 1 if self.most == self.least else -(self.least + 1)

    def fault(self, args: list[bytes]) -> CommandError | None:
        given = len(args) - 1
        if given < self.least or (self.most is not None and given > self.most):
            return CommandError(f"wrong number of arguments for '{self.name.lower()}' command")
        return None


def table(*commands: tuple[str, Run, int, int | None]) -> dict[bytes, Command]:
    return {name.encode(): Command(name=name, run=run, least=least, most=most) for name, run, least, most in commands}


def text(word: bytes) -> str:
    try:
        return word.decode("utf-8")
    except UnicodeDecodeError:
        raise CommandError("an argument is not UTF-8") from None


def integer(word: bytes) -> int:
    try:
        value = int(word) if len(word) <= 20 else None
    except ValueError:
        value = None
    if value is None or not -(1 << 63) <= value < 1 << 63:
        raise CommandError("value is not an integer or out of range")
    return value


def seconds(word: bytes) -> float:
    """Parse the timeout of a blocking pop; 0 means no end."""
    try:
        value = float(word) if len(word) <= 32 else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise CommandError("timeout is not a float or out of range")
    if value < 0:
        raise CommandError("timeout is negative")
    if value > 1e9:
        raise CommandError("timeout is out of range")
    return value
