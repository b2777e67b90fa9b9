"""Values → bytes of RESP2 or RESP3.

Which value answers which command lives in commands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from farro.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SimpleString:
    text: str


class CommandError(Exception):
    """An answer that is an error: its code (ERR, NOAUTH, …) and words, in one line."""

    def __init__(self, text: str, code: str = "ERR") -> None:
        super().__init__(f"{code} {text}")


@dataclass(frozen=True, slots=True)
class PushMessage:
    """What comes without being asked for; in RESP2 it looks like any array."""

    items: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class MultiReply:
    """As many answers as items: a SUBSCRIBE of several channels."""

    items: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class EncodedReply:
    """An answer as it goes over the wire already."""

    data: bytes


class _NoArray:
    """Nothing where an array would be: RESP2 tells it from a missing string."""


class _Nothing:
    """No answer at all: it was given already, or will never be read."""


OK = SimpleString("OK")
PONG = SimpleString("PONG")
QUEUED = SimpleString("QUEUED")
NO_ARRAY = _NoArray()
NOTHING = _Nothing()


class DeferredReply:
    """Answered once: with a value, or with the exception that says what went wrong."""

    __slots__ = ("_then", "answered", "value")

    def __init__(self) -> None:
        self._then: Callable[[Any], None] | None = None
        self.answered = False  # before anybody asked: `value` is the answer
        self.value: Any = None

    def answer(self, value: Any) -> None:
        if self._then is not None:
            self._then(value)
        else:
            self.answered, self.value = True, value

    def then(self, callback: Callable[[Any], None]) -> None:
        """Who is told; at once if the answer is there."""
        if self.answered:
            callback(self.value)
        else:
            self._then = callback

    async def wait(self) -> Any:
        """For a coroutine: the value, or the exception raised."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def resolve(value: Any) -> None:
            if future.done():
                return
            if isinstance(value, Exception):
                future.set_exception(value)
            else:
                future.set_result(value)

        self.then(resolve)
        return await future


def encode(value: Any, proto: int) -> bytes:
    out: list[bytes] = []
    _put(out, value, proto)
    return b"".join(out)


def _put(out: list[bytes], value: Any, proto: int) -> None:
    if isinstance(value, SimpleString):
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
    elif isinstance(value, PushMessage):
        out.append((b">%d\r\n" if proto == 3 else b"*%d\r\n") % len(value.items))
        for item in value.items:
            _put(out, item, proto)
    elif isinstance(value, MultiReply):
        for item in value.items:
            _put(out, item, proto)
    elif isinstance(value, EncodedReply):
        out.append(value.data)
    elif value is NO_ARRAY:
        out.append(b"_\r\n" if proto == 3 else b"*-1\r\n")
    elif value is not NOTHING:
        raise TypeError(f"no reply is made of {type(value).__name__}")


def one_line(text: str) -> str:
    """An error's words: a line break would end the reply, and what follows be read as the next one."""
    line = " ".join(text.split())
    return line if len(line) <= 2000 else f"{line[:1999]}…"
