"""Read what coding agents write: JSON objects on lines, whose members may be absent or of another type.

A program's next version may change any member, and an agent may write to the same output. So nothing here raises: what
is not as expected is None, or empty.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

LONGEST_LINE = 8 << 20  # bytes; a longer line is dropped, so that a program cannot fill the worker's memory
SHOWN = 200  # characters of a progress line

Event = Mapping[str, Any]


class Lines:
    """Splits output into lines."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._rest = bytearray()
        self._too_long = False  # the line in `_rest` was longer than is kept

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._keep(data[start:end])
            self._flush()
            start = end + 1
        self._keep(data[start:])

    def end(self) -> None:
        """Take the last line, which may lack its line break."""
        if self._rest:
            self._flush()

    def _keep(self, data: bytes) -> None:
        if self._too_long or len(self._rest) + len(data) > LONGEST_LINE:
            self._too_long = True
            self._rest.clear()
        else:
            self._rest += data

    def _flush(self) -> None:
        line, self._rest = self._rest.decode("utf-8", "replace"), bytearray()
        dropped, self._too_long = self._too_long, False
        if not dropped:
            self._on_line(line.rstrip("\r"))


def json_object(data: str | bytes) -> Event | None:
    """Parse a JSON object; None if it is anything else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):  # ValueError: also bytes that are not UTF-8, and integers of many digits
        return None
    return found if isinstance(found, dict) else None


def at(data: object, *path: str | int) -> object:
    """Return a nested member by its names and indexes; None if there is none."""
    for part in path:
        if isinstance(part, int):
            data = data[part] if isinstance(data, list) and -len(data) <= part < len(data) else None
        else:
            data = data.get(part) if isinstance(data, dict) else None
    return data


def text_at(data: object, *path: str | int) -> str:
    """Return a nested text; an empty one if there is none."""
    found = at(data, *path)
    return found if isinstance(found, str) else ""


def objects_at(data: object, *path: str | int) -> list[Event]:
    """Return the objects of a nested list, or of the values of a nested object."""
    found = at(data, *path)
    members = found if isinstance(found, list) else list(found.values()) if isinstance(found, dict) else []
    return [member for member in members if isinstance(member, dict)]


def number_at(data: object, *path: str | int) -> float | None:
    """Return a nested number; None if there is none."""
    found = at(data, *path)
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return None
    try:
        number = float(found)
    except OverflowError:
        return None
    return number if abs(number) < 1e15 else None  # also drops infinities and what is no number


def count_at(data: object, *path: str | int) -> int:
    """Return a nested count, such as of tokens; 0 if there is none."""
    return max(int(number_at(data, *path) or 0), 0)


_UNPRINTABLE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")


def one_line(text: str, most: int = SHOWN) -> str:
    """Return the beginning of a text on one line. Escape sequences, which could change a terminal, are removed."""
    words = " ".join(_UNPRINTABLE.sub(" ", text[: 8 * most]).encode("utf-8", "replace").decode().split())
    return words if len(words) <= most else f"{words[: most - 1].rstrip()}…"


# The argument that says most about a call of a tool, whatever the program.
_TELLING = (
    "command",
    "cmd",
    "file_path",
    "filePath",
    "path",
    "absolute_path",
    "pattern",
    "query",
    "url",
    "description",
)


def tool_line(name: str, arguments: object) -> str:
    """Describe a call of a tool, such as `Write src/a.py`."""
    for key in _TELLING:
        value = at(arguments, key)
        if isinstance(value, list):
            value = " ".join(part for part in value if isinstance(part, str))
        if isinstance(value, str) and value.strip():
            return one_line(f"{name} {value}")
    return one_line(name)
