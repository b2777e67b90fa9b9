"""Values → bytes of RESP2 or RESP3.

Which value answers which command lives in commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farro.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Simple:
    text: str


class CommandError(Exception):
    """An answer that is an error: its code (ERR, NOAUTH, …) and words, in one line."""

    def __init__(self, text: str, code: str = "ERR") -> None:
        super().__init__(f"{code} {text}")


@dataclass(frozen=True, slots=True)
class Push:
    """What comes without being asked for; in RESP2 it looks like any array."""

    items: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Several:
    """As many answers as items: a SUBSCRIBE of several channels."""

    items: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Encoded:
    """An answer as it goes over the wire already."""

    data: bytes


class _NoArray:
    """Nothing where an array would be: RESP2 tells it from a missing string."""


class _Nothing:
    """No answer at all: it was given already, or will never be read."""


OK = Simple("OK")
PONG = Simple("PONG")
QUEUED = Simple("QUEUED")
NO_ARRAY = _NoArray()
NOTHING = _Nothing()


def encode(value: Any, proto: int) -> bytes:
    out: list[bytes] = []
    _put(out, value, proto)
    return b"".join(out)


def _put(out: list[bytes], value: Any, proto: int) -> None:
    if isinstance(value, Simple):
        out.append(b"+%b\r\n" % value.text.encode())
    elif isinstance(value, bytes):
        out.append(b"$%d\r\n%b\r\n" % (len(value), value))
    elif isinstance(value, bool):
        out.append((b"#t\r\n" if value else b"#f\r\n") if proto == 3 else b":%d\r\n" % value)
    elif isinstance(value, int):
        out.append(b":%d\r\n" % value)
    elif isinstance(value, str):
        data = value.encode("utf-8", "backslashreplace")
        out.append(b"$%d\r\n%b\r\n" % (len(data), data))
    elif value is None:
        out.append(b"_\r\n" if proto == 3 else b"$-1\r\n")
    elif isinstance(value, CommandError):
        out.append(b"-%b\r\n" % one_line(str(value)).encode("utf-8", "backslashreplace"))
    elif isinstance(value, list | tuple):
        out.append(b"*%d\r\n" % len(value))
        for item in value:
            _put(out, item, proto)
    elif isinstance(value, Mapping):
        out.append(b"%%%d\r\n" % len(value) if proto == 3 else b"*%d\r\n" % (2 * len(value)))
        for name, item in value.items():
            _put(out, name, proto)
            _put(out, item, proto)
    elif isinstance(value, Push):
        out.append((b">%d\r\n" if proto == 3 else b"*%d\r\n") % len(value.items))
        for item in value.items:
            _put(out, item, proto)
    elif isinstance(value, Several):
        for item in value.items:
            _put(out, item, proto)
    elif isinstance(value, Encoded):
        out.append(value.data)
    elif value is NO_ARRAY:
        out.append(b"_\r\n" if proto == 3 else b"*-1\r\n")
    elif value is not NOTHING:
        raise TypeError(f"no reply is made of {type(value).__name__}")


def one_line(text: str) -> str:
    """An error's words: a line break would end the reply, and what follows be read as the next one."""
    line = " ".join(text.split())
    return line if len(line) <= 2000 else f"{line[:1999]}…"
