"""Runs a Python tool inside the worker, on a thread of its own, so that the slot goes on ticking.

A tool with a timeout runs in a child process instead (child.py): a thread cannot be ended by force. What tools are
lives in tools.py.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import io
import os
import select
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

from farro.execution.stop import Flag
from farro.execution.tools import Call, Function, StepFailure, exit_code
from farro.ports.runner import already
from farro.system import fs, group_commit
from farro.system.processes import Exit
from farro.system.turns import RESTING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

_ENDED = 143  # as if by SIGTERM
_QUICK_S = 0.001  # the other slots wait for so long too


class _Ended(BaseException):
    """Raised inside a tool's thread to end it. Not an Exception: `except Exception` in a tool must not swallow it."""


class _Hand:
    """A thread that makes one call after the other: starting one for each call would cost more than a small call.

    A daemon: one that cannot be ended must not keep the worker from leaving. It is woken, and wakes, by descriptors: to
    set one lets go of the interpreter's lock. A thread that is woken by a lock of Python's has to wait for that other
    lock at once, and where the processors are busy its waker loses its turn with it in hand.
    """

    def __init__(self) -> None:
        self.done = Flag()  # its call is over
        self.over = select.poll()
        self.over.register(self.done.fd, select.POLLIN)
        self._wanted = Flag()
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
                contextvars.Context().run(work)  # what one tool sets is not the next one's
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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


class FunctionRun:
    """A started call, waited for and ended as a Process is."""

    def __init__(
        self,
        function: Function,
        make_call: Callable[[BinaryIO, BinaryIO, BinaryIO], Call],
        *,
        stdin: str | int | None,
        stdout: str,
        stderr: str,
        make: Callable[[], None] = already,
    ) -> None:
        """Files as for `processes.start`, by path; raises as that does. `make` makes the attempt's folder."""
        self.exit: Exit | None = None
        self.failure: StepFailure | None = None  # what the tool itself said of it
        self._function = function
        self._started_s = time.monotonic()
        self._lock = threading.Lock()
        self._spoiled = False  # an exception was sent into the thread: it may arrive late, in somebody else's call
        self._abandoned = False
        fd = fs.open_read(stdin) if isinstance(stdin, str) else stdin
        source: BinaryIO = _Nothing() if fd is None else os.fdopen(fd, "rb")
        files = (source, io.BufferedWriter(_Output(stdout, make)), io.BufferedWriter(_Output(stderr, make)))
        try:
            self._call = make_call(*files)
            self._hand = _idle.pop() if _idle else _Hand()
        except BaseException:
            for file in files:
                file.close()
            raise
        self._hand.take(self._run, self._cut)  # from here on they are the thread's

    def wait(self, timeout_s: float | None, wake_fd: int | None = None) -> Exit | None:
        """As Process.wait."""
        if self.exit is None and not self._abandoned and not self._over_quickly(timeout_s):
            poll = select.poll()
            poll.register(self._hand.done.fd, select.POLLIN)
            if wake_fd is not None:
                poll.register(wake_fd, select.POLLIN)
            with RESTING:
                poll.poll(None if timeout_s is None else int(max(timeout_s, 0) * 1000) + 1)
        return self.exit

    def fileno(self) -> int:
        """Readable when it has ended, until `close`."""
        return self._hand.done.fd

    def _over_quickly(self, timeout_s: float | None) -> bool:
        """Most calls are over before another slot could do anything with this one's turn. Waits without looking at
        anything else, but only for a moment."""
        moment_s = _QUICK_S if timeout_s is None else max(0.0, min(timeout_s, _QUICK_S))
        return bool(self._hand.over.poll(moment_s * 1000))

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
        if self._abandoned:
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
                self._abandoned = self.exit is None
        return ()

    def ask(self) -> None:
        """Raise it, and do not wait; once."""
        with self._lock:
            if self.exit is None and not self._spoiled:
                self._spoiled = True
                thread_id = self._hand.thread.ident
                assert thread_id is not None
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(_Ended))

    def close(self) -> None:
        """Give the thread back, to the next call or, when it was spoiled, to nobody; an abandoned one leaves later."""
        with self._lock:
            if self.exit is None:
                self._abandoned = True
            if self._abandoned:
                return
        if self._spoiled:
            self._hand.leave()
            self._hand.done.close()
        else:
            self._hand.done.clear()
            _idle.append(self._hand)

    def _run(self) -> None:
        """Raises nothing: whoever waits must be told of the end, and the thread is the next call's."""
        cpu_s = time.thread_time()
        code = 1
        try:
            code = self._made(self._call)
        except BaseException:  # noqa: BLE001 - in the closing of its files, or sent by `end` at the last moment
            code = code or 1
            _close(self._call)
        self._finish(code, time.thread_time() - cpu_s)

    def _cut(self) -> None:
        """It was ended before it began, or as it was about to say that it is over."""
        _close(self._call)
        self._finish(_ENDED, 0.0)

    def _made(self, call: Call) -> int:
        code = 1
        try:
            code = exit_code(self._function(call))
        except _Ended:
            code = _ENDED
        except StepFailure as failure:
            self.failure, code = failure, failure.exit_code
            _say(call.stderr, f"{failure}\n")
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        except BaseException:  # noqa: BLE001 - whatever a tool raises is that step's failure, never the worker's
            _say(call.stderr, traceback.format_exc())
        for file in (call.stdin, call.stdout, call.stderr):
            try:
                file.close()
            except OSError as error:  # the last bytes did not reach the file: a full disk
                code = code or 1
                _say(call.stderr, f"{error}\n")
        return code

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
            if self._abandoned:
                self._hand.done.close()
                self._hand.leave()
            else:
                self._hand.done.set()


class _Output(io.RawIOBase):
    """A stream of a call, whose file and folders are made when the first byte comes: most functions say nothing."""

    def __init__(self, path: str, make: Callable[[], None]) -> None:
        self._path = path
        self._make = make
        self._fd: int | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        # Not fs.write: what a step says is its own, as it is for a program that writes into its file.
        return os.write(self.fileno(), data)  # noqa: TID251

    def fileno(self) -> int:
        if self._fd is None:
            if self.closed:
                raise ValueError("I/O operation on a closed stream")
            self._fd = fs.retried(self._create, self._path, time.sleep)
        return self._fd

    def _create(self) -> int:
        self._make()
        folder = os.path.dirname(self._path)
        for path in (os.path.dirname(folder), folder):
            with contextlib.suppress(FileExistsError):
                fs.mkdir(path)
        return fs.create_file(self._path)

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
        super().close()


class _Nothing(io.BytesIO):
    """An empty stdin. Only a tool that hands it to a process of its own costs a descriptor."""

    _fd: int | None = None

    def fileno(self) -> int:
        if self._fd is None:
            self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # noqa: TID251 - no file of farro's
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
        super().close()


def _close(call: Call) -> None:
    for file in (call.stdin, call.stdout, call.stderr):
        with contextlib.suppress(BaseException):  # whoever waits must be told of the end, whatever this meets
            file.close()


def _say(stderr: BinaryIO, text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # ValueError: the tool closed it
        stderr.write(text.encode("utf-8", "replace"))
