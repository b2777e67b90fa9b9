"""Parse commands and encode replies: RESP2 and RESP3.

Commands come piece by piece: arrays of bulk strings, and inline commands. Limits are checked against announced lengths,
before the data is kept. Any other type, and any length out of bounds, is Malformed; the connection is not read any
further.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from farro.lazy_dataclass import dataclass

LARGE = 64 << 10  # larger commands count towards a limit over all connections

_HEADER = 32  # bytes: no length has more digits
_NUMBER = re.compile(rb"-?[0-9]{1,19}")
_STAR, _DOLLAR = 0x2A, 0x24


class Malformed(Exception):
    """The input is not a command. The text is sent to the client before it is disconnected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandLimits:
    args: int  # of one command
    bulk: int  # bytes of one argument
    command: int  # bytes of all arguments together
    inline: int  # bytes of a line


UNAUTHENTICATED = CommandLimits(args=16, bulk=4 << 10, command=16 << 10, inline=4 << 10)  # before AUTH
AUTHENTICATED = CommandLimits(args=4096, bulk=16 << 20, command=32 << 20, inline=64 << 10)


class Parser:
    """Invariant: `_buffer[:_at]` is parsed. `_left` arguments are missing in `_args`, and the next one has `_length`
    bytes (-1: its header is not parsed yet)."""

    __slots__ = ("_args", "_at", "_buffer", "_left", "_length", "_reserve", "_size", "limits", "reserved")

    def __init__(self, limits: CommandLimits, reserve: Callable[[int], bool] = lambda size: True) -> None:
        self.limits = limits
        self.reserved = 0  # bytes reserved for a large command; its runner releases them
        self._reserve = reserve
        self._buffer = bytearray()
        self._at = 0
        self._args: list[bytes] = []
        self._left = 0
        self._length = -1
        self._size = 0

    def feed(self, data: bytes) -> None:
        if self._at:
            del self._buffer[: self._at]
            self._at = 0
        self._buffer += data

    @property
    def waiting(self) -> int:
        """Bytes that were fed and are not parsed."""
        return len(self._buffer) - self._at

    @property
    def partial(self) -> bool:
        """Return whether an incomplete command is pending."""
        return self._left > 0 or self.waiting > 0

    def next(self) -> list[bytes] | None:
        """Return the next complete command; an empty line or array is an empty list. None: more data is needed."""
        if not self._left:
            if self._at >= len(self._buffer):
                return None
            if self._buffer[self._at] != _STAR:
                return self._inline()
            count = self._number(b"*")
            if count is None:
                return None
            if count > self.limits.args:
                raise Malformed(f"invalid multibulk length: at most {self.limits.args} arguments")
            if count < 0:
                raise Malformed("invalid multibulk length")
            if count == 0:
                return []
            self._left, self._args, self._size = count, [], 0
        while self._left:
            if not self._argument():
                return None
        args, self._args = self._args, []
        return args

    def _argument(self) -> bool:
        if self._length < 0:
            if self._at >= len(self._buffer):
                return False
            if self._buffer[self._at] != _DOLLAR:
                raise Malformed(f"expected '$', got {_shown(self._buffer[self._at])}")
            length = self._number(b"$")
            if length is None:
                return False
            if length < 0 or length > self.limits.bulk:
                raise Malformed(f"invalid bulk length: at most {self.limits.bulk} bytes")
            self._size += length
            if self._size > self.limits.command:
                raise Malformed(f"too big a command: at most {self.limits.command} bytes")
            if self._size > LARGE and (more := self._size - self.reserved) > 0:
                if not self._reserve(more):
                    raise Malformed("too much input is under way on all connections together; try again later")
                self.reserved += more
            self._length = length
        end = self._at + self._length
        if len(self._buffer) < end + 2:
            return False
        if self._buffer[end : end + 2] != b"\r\n":
            raise Malformed("a bulk string does not end where its length says")
        self._args.append(bytes(self._buffer[self._at : end]))
        self._at, self._length = end + 2, -1
        self._left -= 1
        return True

    def _number(self, kind: bytes) -> int | None:
        """Parse the number of a header; None: it is not complete."""
        end = self._buffer.find(b"\r\n", self._at, self._at + _HEADER)
        if end < 0:
            if len(self._buffer) - self._at >= _HEADER:
                raise Malformed(f"the length after {_shown(kind[0])} is not terminated")
            return None
        text = bytes(self._buffer[self._at + 1 : end])
        if _NUMBER.fullmatch(text) is None:
            raise Malformed(f"a length after {_shown(kind[0])} is not a number")
        self._at = end + 2
        return int(text)

    def _inline(self) -> list[bytes] | None:
        limit = self.limits.inline
        end = self._buffer.find(b"\n", self._at, self._at + limit + 1)
        if end < 0:
            if len(self._buffer) - self._at > limit:
                raise Malformed(f"too big inline request: at most {limit} bytes")
            return None
        line = bytes(self._buffer[self._at : end]).rstrip(b"\r")
        self._at = end + 1
        args = line.split()
        if len(args) > self.limits.args:
            raise Malformed(f"too many words: at most {self.limits.args}")
        if args and (_is_http(args) or not args[0].replace(b".", b"").replace(b"_", b"").isalnum()):
            raise Malformed("this is no HTTP server" if _is_http(args) else "not a RESP command")
        return args


def _is_http(args: list[bytes]) -> bool:
    """Detect what a malicious web page would make a browser send here: an HTTP request line or header."""
    return args[-1].startswith(b"HTTP/") or args[0].upper() in (b"POST", b"HOST:")


def _shown(byte: int) -> str:
    return f"'{chr(byte)}'" if 0x20 < byte < 0x7F else f"byte 0x{byte:02x}"


# --- replies ---


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
