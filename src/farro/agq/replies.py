"""Encode values as RESP2 or RESP3, and hold replies that come later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from farro.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SimpleString:
    text: str


class CommandError(Exception):
    """An error reply: its code (ERR, NOAUTH, …) and text, in one line."""

    def __init__(self, text: str, code: str = "ERR") -> None:
        super().__init__(f"{code} {text}")


@dataclass(frozen=True, slots=True)
class PushMessage:
    """A message that no command asked for; in RESP2 it looks like any array."""

    items: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class MultiReply:
    """Several replies to one command, such as a SUBSCRIBE of several channels."""

    items: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class EncodedReply:
    """A reply that is encoded already."""

    data: bytes


class _NoArray:
    """A null array, which RESP2 distinguishes from a null string."""


class _Nothing:
    """No reply: it was sent already, or will never be read."""


OK = SimpleString("OK")
PONG = SimpleString("PONG")
QUEUED = SimpleString("QUEUED")
NO_ARRAY = _NoArray()
NOTHING = _Nothing()


class DeferredReply:
    """A reply that comes later, delivered in the call that brings it; for the commands that every job needs. It is
    answered once, with a value or an exception. Commands that wait in several places are coroutines instead."""

    __slots__ = ("_then", "answered", "value")

    def __init__(self) -> None:
        self._then: Callable[[Any], None] | None = None
        self.answered = False  # `value` came before a callback was set
        self.value: Any = None

    def answer(self, value: Any) -> None:
        if self._then is not None:
            self._then(value)
        else:
            self.answered, self.value = True, value

    def then(self, callback: Callable[[Any], None]) -> None:
        """Set the callback; call it at once if the reply is there."""
        if self.answered:
            callback(self.value)
        else:
            self._then = callback

    async def wait(self) -> Any:
        """Wait in a coroutine; return the value or raise the exception."""
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
    """Fold an error text into one line: a line break would end the reply, and the rest be read as the next one."""
    line = " ".join(text.split())
    return line if len(line) <= 2000 else f"{line[:1999]}…"
