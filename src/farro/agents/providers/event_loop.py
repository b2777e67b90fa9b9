"""Run coroutines of providers on one event loop per process, on a thread that the first call starts.

The caller stays synchronous: it only sees `run`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from farro.agents.providers.port import SLICE_S
from farro.host import machine
from farro.host.thread_turns import RESTING

T = TypeVar("T")

ENDING_S = 1.5  # the longest wait for a cancelled call to end: a kill takes at most two seconds


class OutOfTime(Exception):
    """`run` reached its timeout; the coroutine was cancelled."""


class _Thread:
    """The loop and its thread. A daemon thread: an abandoned call must not keep the process from exiting."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.at_end: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._thread = threading.Thread(target=self._turn, name="providers", daemon=True)
        self._thread.start()

    def _turn(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._start_ending)
        self._thread.join(ENDING_S)
        if not self._thread.is_alive():
            self.loop.close()

    def _start_ending(self) -> None:
        self._ending = self.loop.create_task(self._end())

    async def _end(self) -> None:
        """Let tasks and async generators finish: asyncio complains on stderr about one that is pending at the end."""
        for close in self.at_end:
            with contextlib.suppress(Exception, TimeoutError):
                await asyncio.wait_for(close(), ENDING_S / 2)
        await self.loop.shutdown_asyncgens()
        if others := asyncio.all_tasks() - {self._ending}:
            await asyncio.wait(others, timeout=ENDING_S / 2)
        self.loop.stop()


_lock = threading.Lock()
_thread: _Thread | None = None


def _the_loop() -> asyncio.AbstractEventLoop:
    global _thread
    with _lock:
        if _thread is None:
            _thread = _Thread()
            atexit.register(_thread.stop)
        return _thread.loop


def call_at_end(close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `close` when the process ends. Called on the loop's thread."""
    assert _thread is not None
    _thread.at_end.append(close)


def _forget_after_fork() -> None:
    """Forget the thread in a forked process: threads do not survive a fork.

    Connections do not survive either: code that keeps one keeps its loop beside it, and compares.
    """
    global _lock, _thread
    _lock = threading.Lock()
    if _thread is not None:
        atexit.unregister(_thread.stop)
    _thread = None


machine.run_after_fork(_forget_after_fork)


class _Call(Generic[T]):
    """One running coroutine. Until `ended` is set, everything but `ended` is used by the loop's thread alone."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.ended = threading.Event()
        self._make = make
        self._task: asyncio.Task[T] | None = None
        self._unwanted = False

    def start(self) -> None:
        if not self._unwanted:
            self._task = asyncio.ensure_future(self._make())
            self._task.add_done_callback(lambda _: self.ended.set())

    def cancel(self) -> None:
        self._unwanted = True
        if self._task is None:  # the exception came before the coroutine was started
            self.ended.set()
        else:
            self._task.cancel()

    def result(self) -> T:
        assert self._task is not None
        return self._task.result()


def run(
    make: Callable[[], Coroutine[Any, Any, T]], timeout_s: float, *, while_waiting: Callable[[], None] = lambda: None
) -> T:
    """Run a coroutine; return what it returns or raise what it raises. Raises OutOfTime after `timeout_s`.

    Waits in slices, so that an exception raised in the calling thread is noticed. In every case the coroutine has ended
    when this returns, or was given ENDING_S to. This thread calls `while_waiting` after every slice, and once after the
    end.
    """
    loop = _the_loop()
    call = _Call(make)
    until = time.monotonic() + timeout_s
    try:
        loop.call_soon_threadsafe(call.start)
        while not _waited(call.ended, min(SLICE_S, until - time.monotonic())):
            while_waiting()
            if time.monotonic() >= until:
                raise OutOfTime
    except BaseException:
        loop.call_soon_threadsafe(call.cancel)
        _waited(call.ended, ENDING_S)
        raise
    while_waiting()
    return call.result()


def _waited(event: threading.Event, seconds: float) -> bool:
    with RESTING:
        return event.wait(max(seconds, 0.0))
