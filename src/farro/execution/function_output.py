"""Redirect what a function prints inside the worker to its step's file, and let it read its step's input.

Without this, prints would go to the worker's log; and a function that reads the worker's own stdin (`input()`) would
wait forever, and a thread that waits in C cannot be ended.

`sys.stdout` is shared by all threads. While functions run, it is replaced by a stream that looks at a context variable:
code with a value writes to its step, all other code to the original. A context variable, not the thread id: what
asyncio runs for the function, also in its own threads, prints to the same step. A plain thread that the function starts
has none. The last function to end restores the original streams.
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
_LOCK = threading.Lock()  # guards the two below, and `sys.stdout` between threads that run functions
_running = 0
_replaced: dict[str, _Routed] = {}


@contextmanager
def redirected(target: BinaryIO, source: Callable[[], BinaryIO] = io.BytesIO) -> Iterator[None]:
    """Send what this context prints, on stdout or stderr, to `target`, and let it read `source`, opened on first
    use."""
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
            if not isinstance(present, kind):  # also if other code replaced it meanwhile
                _replaced[name] = kind(present)
                setattr(sys, name, _replaced[name])


def _end() -> None:
    global _running
    with _LOCK:
        _running -= 1
        if _running <= 0:
            for name, ours in _replaced.items():
                if getattr(sys, name) is ours:  # else other code replaced it since, and has to restore it
                    setattr(sys, name, ours.original)
            _replaced.clear()


class _Routed(io.TextIOBase):
    """Stands in for one of the worker's streams, for all threads. Other code may keep a reference to it for ever."""

    def __init__(self, original: Any) -> None:
        self.original = original  # None if the worker has no such stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def close(self) -> None:
        """Do nothing: every other thread uses it, too."""


class _RoutedOutput(_Routed):
    """Write to the step of the calling context. Handlers of `logging` may keep a reference."""

    @property
    def buffer(self) -> Any:
        target = _TARGET.get()
        return getattr(self.original, "buffer", None) if target is None or target.closed else target

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        target = _TARGET.get()
        if target is None or target.closed:  # closed: the writer outlived its step
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
    """The input of one step, opened when it is first read."""

    def __init__(self, open_: Callable[[], BinaryIO]) -> None:
        self._open = open_

    @cached_property
    def text(self) -> TextIO:
        binary, own = self._open(), sys.__stdin__
        if own is not None and getattr(own, "buffer", None) is binary:  # in a child process
            return own
        return io.TextIOWrapper(binary, encoding="utf-8")


class _RoutedInput(_Routed):
    """Read the input of the step of the calling context."""

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
