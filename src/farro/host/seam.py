"""What may stand between farro and the filesystem: where the proof kills, tears, delays and reorders.

Which calls there are lives in fs, which sets and takes away what stands here; what is played here lives in the tests.

A seam may raise instead of calling (a kill, an errno), call and then raise (an ambiguous error), write half (a torn
file), record, or let another actor run first. Alternatives that fail: patching `os` misses calls made through other
modules; a filesystem object handed through every signature was tried in the first draft and made each function in the
store take an argument that only tests vary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Seam(Protocol):
    """What a test may put between farro and the filesystem."""

    def perform(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any: ...

    def look(self, op: str, path: str) -> None: ...


placed: Seam | None = None  # by fs.set_seam


def perform(op: str, call: Callable[..., T], *args: Any) -> T:
    """A mutating call."""
    if placed is None:
        return call(*args)
    result: T = placed.perform(op, call, args)
    return result


def look(op: str, path: str) -> None:
    """A look that a decision rests on."""
    if placed is not None:
        placed.look(op, path)
