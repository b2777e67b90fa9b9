"""Define a document: data with its positions in the text, limits, and problems with positions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from farro.errors import BadDocument, Problem
from farro.lazy_dataclass import dataclass

Path = tuple[str | int, ...]
Place = tuple[int, int]  # line and column, both from 1

MAX_PROBLEMS = 100  # a hostile document may hold one problem per byte; no person reads more than these


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The limits of a document, each checked before the parser does the work."""

    size: int = 1 << 20  # bytes
    depth: int = 64  # containers inside containers
    nodes: int = 100_000  # values, containers included
    digits: int = 640  # of one integer: conversion is quadratic, and an interpreter may refuse more than 640


DEFAULT = Limits()
DEFAULT_YAML = Limits(size=1 << 18)  # ruamel reads about 200 KiB a second


class Spot(NamedTuple):
    """The positions of a member: its value and its key (equal for a list item)."""

    value: Place
    key: Place


class Document:
    """Data and its source. Treat `data` as read-only."""

    __slots__ = ("_find", "_spots", "data", "source")

    def __init__(self, data: Any, source: str, find: Callable[[], dict[Path, Spot]] = dict) -> None:
        self.data = data
        self.source = source
        self._find = find
        self._spots: dict[Path, Spot] | None = None

    def locate(self, path: Path, *, key: bool = False) -> Place | None:
        """Return line and column of the value (or key) at that path; None when there is no such member."""
        if self._spots is None:
            self._spots = self._find()
        spot = self._spots.get(path)
        return None if spot is None else spot.key if key else spot.value

    def inside(self, name: str) -> Document:
        """Return a member as a document; its positions are those of the whole text."""

        def spots() -> dict[Path, Spot]:
            self.locate(())
            return {path[1:]: spot for path, spot in (self._spots or {}).items() if path[:1] == (name,)}

        return Document(self.data[name], self.source, spots)

    def problem(self, path: Path, message: str, *, key: bool = False) -> Problem:
        """Return a problem at that path. A missing member is reported where its innermost existing container begins."""
        place = self.locate(path, key=key)
        for length in range(len(path) - 1, -1, -1):
            place = place or self.locate(path[:length])
        line, column = place or (None, None)
        return Problem(path=render_path(path), message=message, line=line, column=column)


def without_schema(data: Any) -> Any:
    """Return the data without `$schema`, which is for editors only."""
    if not (isinstance(data, dict) and isinstance(data.get("$schema"), str)):
        return data
    return {name: value for name, value in data.items() if name != "$schema"}


LONE_SURROGATE = "half of a surrogate pair is not a character; write the character itself"
SURROGATE = re.compile("[\ud800-\udfff]")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


def show(value: object, length: int = 60) -> str:
    """Quote a value in a message: one line, ASCII, short, without control characters."""
    text = json.dumps(value, default=str)
    return text if len(text) <= length else f"{text[: length - 1]}…"


def did_you_mean(name: str, known: Collection[str], otherwise: str = "") -> str:
    """Ask for the most similar known name; return `otherwise` if none is similar."""
    from difflib import get_close_matches  # imported late: most names are right

    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else otherwise


def render_path(path: Path) -> str:
    """Format a path: `steps[2].input_from_step`; other keys are quoted: `env["a b"]`."""
    parts = []
    for part in path:
        if isinstance(part, int):
            parts.append(f"[{part}]")
        else:
            parts.append(f".{part}" if _PLAIN_NAME.fullmatch(part) else f"[{show(part)}]")
    return "".join(parts).removeprefix(".")


def refuse(source: str, message: str, place: Place | None = None, path: Path = ()) -> BadDocument:
    line, column = place or (None, None)
    return BadDocument(source, [Problem(path=render_path(path), message=message, line=line, column=column)])


def refusal(source: str, problems: list[Problem]) -> BadDocument:
    """Return all problems as one error, in text order; beyond `MAX_PROBLEMS` only their number is given."""
    problems = sorted(problems, key=lambda problem: (problem.line or 1 << 60, problem.column or 0))
    if (more := len(problems) - MAX_PROBLEMS) > 0:
        problems = [*problems[:MAX_PROBLEMS], Problem(path="", message=f"and {more} more problems")]
    return BadDocument(source, problems)


def refusals(bad: Sequence[BadDocument]) -> BadDocument:
    """Return the refusals of several documents as one error: its message has all, its problems are those of the
    first."""
    first = BadDocument(bad[0].source, bad[0].problems)
    first.args = ("\n".join(map(str, bad)),)
    return first


def decode(text: bytes, source: str, limits: Limits, first_line: int) -> str:
    if len(text) > limits.size:
        raise refuse(source, f"{len(text)} bytes; at most {limits.size} are read")
    if text.startswith(b"\xef\xbb\xbf"):
        raise refuse(source, "begins with a byte order mark; save it as UTF-8 without BOM", (first_line, 1))
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as bad:
        before = text[: bad.start].decode("utf-8")
        message = f"byte 0x{text[bad.start]:02x} is not UTF-8 here"
        raise refuse(source, message, place_of(before, len(before), first_line)) from None


def place_of(text: str, offset: int, first_line: int = 1) -> Place:
    return first_line + text.count("\n", 0, offset), offset - text.rfind("\n", 0, offset)
