"""Run a Python tool inside the worker, on a separate thread, so that the slot keeps ticking.

A tool with a timeout runs in a child process instead, because a thread cannot be ended by force. The files of its
streams are created when they are first used.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import io
import os
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, BinaryIO

from farro.execution.runner import already
from farro.execution.tools import Call, Function, StepFailure, exit_code, exit_of
from farro.host import fs, group_commit, machine, waiting
from farro.host.processes import Exit
from farro.host.thread_turns import RESTING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer


class LazyOutput(io.RawIOBase):
    """A stream whose file and folders are created with the first byte: most functions write nothing."""

    def __init__(self, path: str, make: Callable[[], None]) -> None:
        self._path = path
        self._make = make
        self._fd: int | None = None
        self.opened = False

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        # Not fs.write: this is a step's output, like that of a program that writes into its file.
        return os.write(self.fileno(), data)  # noqa: TID251

    def fileno(self) -> int:
        if self._fd is None:
            if self.closed:
                raise ValueError("I/O operation on a closed stream")
            self._fd = fs.retried(self._create, self._path, time.sleep)
            self.opened = True
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


class CallFiles:
    """The three streams of one call, each created on first use: most functions use none.

    May be used from any thread of the function, also after `close`: late users get a closed stream.
    """

    __slots__ = ("_closed", "_files", "_make", "_outputs", "_stderr", "_stdout")

    def __init__(self, stdin: BinaryIO | None, stdout: str, stderr: str, make: Callable[[], None]) -> None:
        """`stdin` None: an empty one. The others by path; `make` makes the attempt's folder."""
        self._files: dict[str, BinaryIO] = {} if stdin is None else {"stdin": stdin}
        self._stdout, self._stderr, self._make = stdout, stderr, make
        self._outputs: list[LazyOutput] = []
        self._closed = False

    @property
    def stdin(self) -> BinaryIO:
        return self._files.get("stdin") or self._kept("stdin", open(os.devnull, "rb"))

    @property
    def stdout(self) -> BinaryIO:
        return self._files.get("stdout") or self._kept("stdout", self._output(self._stdout))

    @property
    def stderr(self) -> BinaryIO:
        return self._files.get("stderr") or self._kept("stderr", self._output(self._stderr))

    def _output(self, path: str) -> BinaryIO:
        raw = LazyOutput(path, self._make)
        self._outputs.append(raw)
        return io.BufferedWriter(raw)

    def _kept(self, name: str, file: BinaryIO) -> BinaryIO:
        kept = self._files.setdefault(name, file)  # atomic: one of two threads wins
        if kept is not file:
            file.close()
        if self._closed:
            kept.close()
        return kept

    @property
    def silent(self) -> bool:
        """Return whether nothing was written to either stream: then there are no files."""
        return not any(output.opened for output in self._outputs)

    def finish(self, say: Callable[[str], None]) -> bool:
        """Close the streams; return whether everything reached its file. If not, `say` gets the reason."""
        self._closed = whole = True
        for name in ("stdin", "stdout", "stderr"):
            file = self._files.get(name)
            try:
                if file is not None:
                    file.close()
            except OSError as error:  # the last bytes were not written: a full disk
                whole = False
                say(f"{error}\n")
        return whole

    def close(self) -> None:
        """Close everything, even after an error: the waiting thread must notice the end."""
        self._closed = True
        for file in list(self._files.values()):
            with contextlib.suppress(BaseException):
                file.close()


_ENDED = 143  # as if by SIGTERM
_QUICK_S = 0.001  # other slots wait that long, too
_LOOKS = 2  # a call that takes more than so many moments is not small; on busy processors a single one proves nothing
_TOLD_S = 1.0  # a thread whose call is over reports it at once


class _Ended(BaseException):
    """Raised inside a tool's thread to end it. Not an Exception: `except Exception` in a tool must not swallow it."""


class _CallThread:
    """A thread that makes one call after the other: starting one for each would cost more than a small call.

    A daemon: a call that cannot be ended must not keep the worker from exiting. It is woken, and wakes, by descriptors,
    because setting one releases the interpreter's lock. A thread woken by a Python lock has to wait for the
    interpreter's lock at once; when the processors are busy, the thread that woke it loses its time slice while it
    still holds that lock.
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
        """Do `work`; if the call is ended before or after it, `unless_over`."""
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
        except _Ended:  # it arrived before the call began, or after it ended: the thread is not used again
            self._unless_over()
            while self._next() is not None:
                pass

    def _next(self) -> Callable[[], None] | None:
        self._wanted.clear()  # waits
        if self._work is None:
            self._wanted.close()
        return self._work


_idle: list[_CallThread] = []  # list operations are atomic under the GIL


def _forget_after_fork() -> None:
    _idle.clear()  # threads do not survive a fork


machine.run_after_fork(_forget_after_fork)


class FunctionCalls:
    """Calls that one thread makes in order: waking it for each would cost more than a small call.

    Invariant: `_shut` holds for the thread, too: under `_lock` it takes the next call, or sees that it is shut.
    """

    def __init__(self, runs: Sequence[FunctionRun]) -> None:
        """Begin with the first."""
        self._runs = runs
        self._lock = threading.Lock()
        self._begun = 0
        self._shut = False
        self._thread = _idle.pop() if _idle else _CallThread()
        for run in runs:
            run.thread = self._thread
        self._thread.take(self._make, self._cut)  # from here on they are the thread's

    def quick(self) -> int:
        """Wait while each call is over within a moment; return how many were begun. The last may continue; then its
        `close` returns the thread. No more will begin."""
        seen = looks = 0
        over = self._thread.over.poll(_QUICK_S * 1000)
        while not over:
            with self._lock:
                looks = looks + 1 if 0 < self._begun == seen else 0  # 0: the thread has not run yet
                if looks == _LOOKS:
                    self._shut = True
                    break
                seen = self._begun
            with RESTING:
                over = self._thread.over.poll(_QUICK_S * 1000)
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
            contextvars.Context().run(run.make)  # context variables of one tool must not reach the next
        self._tell()

    def _next(self) -> FunctionRun | None:
        with self._lock:
            if self._shut or self._begun == len(self._runs):
                self._shut = True
                return None
            self._begun += 1
            return self._runs[self._begun - 1]

    def _tell(self) -> None:
        """Report that the thread is free; or end it, if the last call was abandoned."""
        last = self._runs[self._begun - 1]
        if last.abandoned:
            self._thread.done.close()
            self._thread.leave()
        else:
            self._thread.done.set()

    def _cut(self) -> None:
        """Handle an end that arrived before the last call began, or as it was about to report its end."""
        self._runs[self._begun - 1].cut()
        self._tell()


class FunctionRun:
    """A started call, with the interface of a Process."""

    thread: _CallThread  # given by Calls

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
        False: FunctionCalls begins it."""
        self.exit: Exit | None = None
        self.failure: StepFailure | None = None  # raised by the tool
        self._function = function
        self._started_s = time.monotonic()
        self._lock = threading.Lock()
        self._spoiled = False  # an exception was sent into the thread: it may arrive late, in another call
        self.abandoned = False
        self.closed = False  # the thread was given back
        fd = fs.open_read(stdin) if isinstance(stdin, str) else stdin
        self.files = CallFiles(None if fd is None else os.fdopen(fd, "rb"), stdout, stderr, make)
        try:
            self._call = make_call(self.files)
            if begin:
                FunctionCalls([self])
        except BaseException:
            self.files.close()
            raise

    def forget(self) -> None:
        """Close a call that is not begun."""
        self.files.close()

    def wait(self, timeout_s: float | None, wake_fd: int | None = None) -> Exit | None:
        """Wait as Process.wait does."""
        if self.exit is None and not self.abandoned and not self._over_quickly(timeout_s):
            poll = waiting.poller(self.thread.done.fd)
            if wake_fd is not None:
                poll.register(wake_fd, waiting.READABLE)
            with RESTING:
                poll.poll(None if timeout_s is None else int(max(timeout_s, 0) * 1000) + 1)
        return self.exit

    def fileno(self) -> int:
        """Return a descriptor that is readable when the call has ended, until `close`."""
        return self.thread.done.fd

    def _over_quickly(self, timeout_s: float | None) -> bool:
        """Wait for a moment, without any other check: most calls are over before another slot could use the time."""
        moment_s = _QUICK_S if timeout_s is None else max(0.0, min(timeout_s, _QUICK_S))
        return bool(self.thread.over.poll(moment_s * 1000))

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
        """Raise the exception once, without waiting."""
        with self._lock:
            if self.exit is None and not self._spoiled:
                self._spoiled = True
                thread_id = self.thread.thread.ident
                assert thread_id is not None
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(_Ended))

    def close(self) -> None:
        """Give the thread back for the next call, or end it if an exception was sent into it; an abandoned one ends
        later."""
        with self._lock:
            if self.exit is None:
                self.abandoned = True
            if self.abandoned or self.closed:
                return
            self.closed = True
        if not self._spoiled:
            self.thread.done.clear()
            _idle.append(self.thread)
        elif self.thread.over.poll(_TOLD_S * 1000):  # else its state is unknown, and it keeps its descriptors
            self.thread.leave()
            self.thread.done.close()

    def make(self) -> None:
        """Make the call, in the thread. Raises nothing: the waiting thread must notice the end, and the thread is
        reused."""
        self._started_s = time.monotonic()
        cpu_s = time.thread_time()
        code = 1
        try:
            code = self._made(self._call)
        except BaseException:  # noqa: BLE001 - while closing files, or sent by `end` at the last moment
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
            code, last_words = exit_of(leaving)
            self._say(last_words)
        except BaseException:  # noqa: BLE001 - any exception of a tool fails that step, never the worker
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
