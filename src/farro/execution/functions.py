"""Runs a Python tool inside the worker, on a thread of its own, so that the slot goes on ticking.

A tool with a timeout runs in a child process instead (child.py): a thread cannot be ended by force. What tools are
lives in tools.py, which jobs are called in a row in row.py.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import os
import threading
import time
import traceback
from collections.abc import Callable, Sequence

from farro.execution.function_streams import CallFiles
from farro.execution.runner import already
from farro.execution.tools import Call, Function, StepFailure, exit_code, left_with
from farro.host import fs, group_commit, machine, waiting
from farro.host.processes import Exit
from farro.host.thread_turns import RESTING

_ENDED = 143  # as if by SIGTERM
_QUICK_S = 0.001  # the other slots wait for so long too
_LOOKS = (
    2  # a call that takes longer than so many moments is no small one; where processors are busy, one tells nothing
)
_TOLD_S = 1.0  # a thread whose call is over says so at once


class _Ended(BaseException):
    """Raised inside a tool's thread to end it. Not an Exception: `except Exception` in a tool must not swallow it."""


class _Hand:
    """A thread that makes one call after the other: starting one for each call would cost more than a small call.

    A daemon: one that cannot be ended must not keep the worker from leaving. It is woken, and wakes, by descriptors: to
    set one lets go of the interpreter's lock. A thread that is woken by a lock of Python's has to wait for that other
    lock at once, and where the processors are busy its waker loses its turn with it in hand.
    """

    def __init__(self) -> None:
        self.done = waiting.Flag()  # its call is over
        self.over = waiting.poller(self.done.fd)
        self._wanted = waiting.Flag()
        self._work: Callable[[], None] | None = None
        self._unless_over: Callable[[], None] = lambda: None
        self.thread = threading.Thread(target=self._loop, name="tools", daemon=True)
        self.thread.start()

    def take(self, work: Callable[[], None], unless_over: Callable[[], None]) -> None:
        """Do `work`; when an end comes before it or after it, `unless_over`."""
        self._work, self._unless_over = work, unless_over
        self._wanted.set()

    def leave(self) -> None:
        """End the thread after its present call."""
        self._work = None
        self._wanted.set()

    def _loop(self) -> None:
        group_commit.stay_apart()
        try:
            while (work := self._next()) is not None:
                work()
        except _Ended:  # it came before the call had begun, or when it was over: the thread is nobody's any more
            self._unless_over()
            while self._next() is not None:
                pass

    def _next(self) -> Callable[[], None] | None:
        self._wanted.clear()  # waits
        if self._work is None:
            self._wanted.close()
        return self._work


_idle: list[_Hand] = []  # list operations are atomic under the GIL


def _forget_after_fork() -> None:
    _idle.clear()  # threads do not survive a fork


machine.run_after_fork(_forget_after_fork)


class Calls:
    """Calls that one thread makes one after the other: to wake it for each would cost more than a small call.

    Invariant: what `_shut` says holds for the thread too: under `_lock` it takes the next call, or finds it shut.
    """

    def __init__(self, runs: Sequence[FunctionRun]) -> None:
        """Begins with the first."""
        self._runs = runs
        self._lock = threading.Lock()
        self._begun = 0
        self._shut = False
        self._hand = _idle.pop() if _idle else _Hand()
        for run in runs:
            run.hand = self._hand
        self._hand.take(self._make, self._cut)  # from here on they are the thread's

    def quick(self) -> int:
        """Waits while each is over within a moment. How many were begun; the last of them may go on, and then its
        `close` gives the thread back. No more will begin."""
        seen = looks = 0
        over = self._hand.over.poll(_QUICK_S * 1000)
        while not over:
            with self._lock:
                looks = looks + 1 if 0 < self._begun == seen else 0  # none: the thread had no turn yet
                if looks == _LOOKS:
                    self._shut = True
                    break
                seen = self._begun
            with RESTING:
                over = self._hand.over.poll(_QUICK_S * 1000)
        begun = self._begun
        for run in self._runs[begun:]:
            run.forget()
        if self._runs[begun - 1].exit is not None:
            self._runs[begun - 1].close()
        for run in self._runs[: begun - 1]:
            run.closed = True
        return begun

    def _make(self) -> None:
        while (run := self._next()) is not None:
            contextvars.Context().run(run.make)  # what one tool sets is not the next one's
        self._tell()

    def _next(self) -> FunctionRun | None:
        with self._lock:
            if self._shut or self._begun == len(self._runs):
                self._shut = True
                return None
            self._begun += 1
            return self._runs[self._begun - 1]

    def _tell(self) -> None:
        """The thread is free: for the next calls, or, when the last of these was given up, for nobody."""
        last = self._runs[self._begun - 1]
        if last.abandoned:
            self._hand.done.close()
            self._hand.leave()
        else:
            self._hand.done.set()

    def _cut(self) -> None:
        """The last was ended before it began, or as it was about to say that it is over."""
        self._runs[self._begun - 1].cut()
        self._tell()


class FunctionRun:
    """A started call, waited for and ended as a Process is."""

    hand: _Hand  # given by Calls

    def __init__(
        self,
        function: Function,
        make_call: Callable[[CallFiles], Call],
        *,
        stdin: str | int | None,
        stdout: str,
        stderr: str,
        make: Callable[[], None] = already,
        begin: bool = True,
    ) -> None:
        """Files as for `processes.start`, by path; raises as that does. `make` makes the attempt's folder. `begin`
        False: it is made among others, by Calls."""
        self.exit: Exit | None = None
        self.failure: StepFailure | None = None  # what the tool itself said of it
        self._function = function
        self._started_s = time.monotonic()
        self._lock = threading.Lock()
        self._spoiled = False  # an exception was sent into the thread: it may arrive late, in somebody else's call
        self.abandoned = False
        self.closed = False  # the thread is not its own any more
        fd = fs.open_read(stdin) if isinstance(stdin, str) else stdin
        self.files = CallFiles(None if fd is None else os.fdopen(fd, "rb"), stdout, stderr, make)
        try:
            self._call = make_call(self.files)
            if begin:
                Calls([self])
        except BaseException:
            self.files.close()
            raise

    def forget(self) -> None:
        """It is not begun."""
        self.files.close()

    def wait(self, timeout_s: float | None, wake_fd: int | None = None) -> Exit | None:
        """As Process.wait."""
        if self.exit is None and not self.abandoned and not self._over_quickly(timeout_s):
            poll = waiting.poller(self.hand.done.fd)
            if wake_fd is not None:
                poll.register(wake_fd, waiting.READABLE)
            with RESTING:
                poll.poll(None if timeout_s is None else int(max(timeout_s, 0) * 1000) + 1)
        return self.exit

    def fileno(self) -> int:
        """Readable when it has ended, until `close`."""
        return self.hand.done.fd

    def _over_quickly(self, timeout_s: float | None) -> bool:
        """Most calls are over before another slot could do anything with this one's turn. Waits without looking at
        anything else, but only for a moment."""
        moment_s = _QUICK_S if timeout_s is None else max(0.0, min(timeout_s, _QUICK_S))
        return bool(self.hand.over.poll(moment_s * 1000))

    def end(
        self,
        marker: str | None,
        *,
        grace_s: float,
        while_waiting: Callable[[], None] | None = None,
        every_s: float = 1.0,
    ) -> tuple[int, ...]:
        """Raise an exception inside the call and give it `grace_s` to leave.

        It takes effect at the next line of Python; a call that is blocked in C stays, and is left behind. It can reach
        nothing but the files that it already has: its own attempt's.
        """
        if self.abandoned:
            return ()
        until = time.monotonic() + (grace_s if self._spoiled else max(grace_s, 0.1))
        self.ask()
        try:
            while self.exit is None and (left_s := until - time.monotonic()) > 0:
                self.wait(min(left_s, every_s))
                if while_waiting is not None:
                    while_waiting()
        finally:
            with self._lock:
                self.abandoned = self.exit is None
        return ()

    def ask(self) -> None:
        """Raise it, and do not wait; once."""
        with self._lock:
            if self.exit is None and not self._spoiled:
                self._spoiled = True
                thread_id = self.hand.thread.ident
                assert thread_id is not None
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(_Ended))

    def close(self) -> None:
        """Give the thread back, to the next call or, when it was spoiled, to nobody; an abandoned one leaves later."""
        with self._lock:
            if self.exit is None:
                self.abandoned = True
            if self.abandoned or self.closed:
                return
            self.closed = True
        if not self._spoiled:
            self.hand.done.clear()
            _idle.append(self.hand)
        elif self.hand.over.poll(_TOLD_S * 1000):  # else nobody knows what it does, and it keeps its descriptors
            self.hand.leave()
            self.hand.done.close()

    def make(self) -> None:
        """In the thread. Raises nothing: whoever waits must be told of the end, and the thread is the next call's."""
        self._started_s = time.monotonic()
        cpu_s = time.thread_time()
        code = 1
        try:
            code = self._made(self._call)
        except BaseException:  # noqa: BLE001 - in the closing of its files, or sent by `end` at the last moment
            code = code or 1
            self.files.close()
        self._finish(code, time.thread_time() - cpu_s)

    def cut(self) -> None:
        self.files.close()
        self._finish(_ENDED, 0.0)

    def _made(self, call: Call) -> int:
        code = 1
        try:
            code = exit_code(self._function(call))
        except _Ended:
            code = _ENDED
        except StepFailure as failure:
            self.failure, code = failure, failure.exit_code
            self._say(f"{failure}\n")
        except SystemExit as leaving:
            code, last_words = left_with(leaving)
            self._say(last_words)
        except BaseException:  # noqa: BLE001 - whatever a tool raises is that step's failure, never the worker's
            self._say(traceback.format_exc())
        return code if self.files.finish(self._say) else code or 1

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # ValueError: the tool closed it
            self.files.stderr.write(text.encode("utf-8", "replace"))

    def _finish(self, code: int, cpu_s: float) -> None:
        with self._lock:
            if self.exit is not None:
                return
            self.exit = Exit(
                code=code,
                signal=None,
                duration_s=time.monotonic() - self._started_s,
                user_s=cpu_s,
                system_s=0.0,
                max_rss_kb=0,
            )
