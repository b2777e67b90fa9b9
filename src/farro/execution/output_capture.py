"""What a function prints while it runs inside the worker: to its step's file, by thread, and not into the worker's log.
And what it reads: its step's input. One that asks the worker's own (`input()`) would wait there for ever, and a thread
that waits in C cannot be ended.

Which file that is, and what becomes of the function's value, is in calls.

`sys.stdout` is one for all threads. While functions run, a stream stands in its place that looks at a context variable:
whoever has one writes to its step, everybody else to where they wrote before. A context variable, not the thread's
number: what asyncio runs for the function, also in threads of its own, prints to the same step. A plain thread that the
function starts has none. The last function that ends puts back what was there.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import Any, BinaryIO, TextIO

_TARGET: ContextVar[BinaryIO | None] = ContextVar("farro_step_output", default=None)
_SOURCE: ContextVar[_Source | None] = ContextVar("farro_step_input", default=None)
_LOCK = threading.Lock()  # guards the two below, and `sys.stdout` against others who run functions
_running = 0
_replaced: dict[str, _Routed] = {}


@contextmanager
def redirected(target: BinaryIO, source: Callable[[], BinaryIO] = io.BytesIO) -> Iterator[None]:
    """What this context prints, on stdout or stderr, goes to `target`; what it reads is `source`, asked for when it
    is: most functions read nothing."""
    token, source_token = _TARGET.set(target), _SOURCE.set(_Source(source))
    _begin()
    try:
        yield
    finally:
        _end()
        _SOURCE.reset(source_token)
        _TARGET.reset(token)


def _begin() -> None:
    global _running
    with _LOCK:
        _running += 1
        for name, kind in _ROUTED.items():
            present = getattr(sys, name)
            if not isinstance(present, kind):  # also when somebody replaced it meanwhile
                _replaced[name] = kind(present)
                setattr(sys, name, _replaced[name])


def _end() -> None:
    global _running
    with _LOCK:
        _running -= 1
        if _running <= 0:
            for name, ours in _replaced.items():
                if getattr(sys, name) is ours:  # else somebody replaced it since, and it is theirs to put back
                    setattr(sys, name, ours.original)
            _replaced.clear()


class _Routed(io.TextIOBase):
    """In the place of one of the worker's own streams, for all threads. Others may keep it for good."""

    def __init__(self, original: Any) -> None:
        self.original = original  # None where the worker has no such stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def close(self) -> None:
        """Not ours to close: it is every other thread's too."""


class _RoutedOutput(_Routed):
    """Leads to the step of whoever writes. A handler of `logging` is one of those that keep it."""

    @property
    def buffer(self) -> Any:
        target = _TARGET.get()
        return getattr(self.original, "buffer", None) if target is None or target.closed else target

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        target = _TARGET.get()
        if target is None or target.closed:  # closed: somebody who outlived the step
            return len(text) if self.original is None else self.original.write(text)
        target.write(text.encode("utf-8", "backslashreplace"))
        if "\n" in text:
            target.flush()  # so that `farro logs --follow` shows it now
        return len(text)

    def flush(self) -> None:
        target = _TARGET.get()
        if target is not None and not target.closed:
            target.flush()
        elif self.original is not None:
            self.original.flush()

    def isatty(self) -> bool:
        return _TARGET.get() is None and self.original is not None and bool(self.original.isatty())

    def fileno(self) -> int:
        target = _TARGET.get()
        if target is not None and not target.closed:
            return target.fileno()
        if self.original is None:
            raise io.UnsupportedOperation("fileno")
        return int(self.original.fileno())


class _Source:
    """The input of one step, opened when it is read."""

    def __init__(self, open_: Callable[[], BinaryIO]) -> None:
        self._open = open_

    @cached_property
    def text(self) -> TextIO:
        binary, own = self._open(), sys.__stdin__
        if own is not None and getattr(own, "buffer", None) is binary:  # in a process of its own
            return own
        return io.TextIOWrapper(binary, encoding="utf-8")


class _RoutedInput(_Routed):
    """Reads the input of the step of whoever reads."""

    @property
    def buffer(self) -> Any:
        return getattr(self._stream(), "buffer", None)

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> str:
        return str(self._stream().read(size))

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        return str(self._stream().readline(size))

    def isatty(self) -> bool:
        return bool(self._stream().isatty())

    def fileno(self) -> int:
        return int(self._stream().fileno())

    def _stream(self) -> Any:
        source = _SOURCE.get()
        if source is not None:
            return source.text
        return io.StringIO() if self.original is None else self.original


_ROUTED: dict[str, type[_Routed]] = {"stdin": _RoutedInput, "stdout": _RoutedOutput, "stderr": _RoutedOutput}
