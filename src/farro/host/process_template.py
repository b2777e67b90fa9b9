"""Start processes as forks of a template: an interpreter that has done its imports and nothing else.

Why: a new interpreter that imports farro takes 80 ms of CPU time, a fork of one that has done so takes 3 ms
(docs/decisions/a-runner-is-a-fork-of-a-template.md).

- The template has one thread and never runs a job's code: a fork inherits neither a held lock nor anything of another
  job. Each fork runs one job.
- Kill and recovery find a process by its environment in /proc, and a fork has the template's there. So the template
  starts with room in its environment and its arguments, over which a fork writes its own before it does anything else.
  [test_a_fork_is_found_by_its_own_environment]
- The template forks twice, so that the new process is an orphan: a child of the process that adopts orphans, and waits
  for it as for any other child. Without `process_tree.adopt_orphans` there is no fork.
- `fork` returns None whenever there is no template, whatever the reason. The caller then starts an interpreter.
  [test_a_runner_starts_without_its_template]

Linux only: elsewhere no template starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from farro.host import process_table, process_tree
from farro.host.thread_turns import RESTING
from farro.lazy_dataclass import dataclass

ROOM = "_TEMPLATE_ROOM"  # a variable of the template; forks write their own variables over it
_VARIABLES_BYTES, _NAME_BYTES = 4096, 256
_MESSAGE_BYTES = 64 * 1024
_ANSWER_S = 5.0  # a template may take so long to answer: a worker that is stopped is gone within ten seconds
_READY = b"ready"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fork:
    """A process to start. `fds`: its descriptors, as number there → number here; it has no others."""

    name: str  # its last argument
    env: Mapping[str, str]  # added to the template's
    cwd: str
    fds: Mapping[int, int]


class ProcessTemplate:
    """A template and the socket to it. Started by the first `fork`; it ends with this process, or with this object."""

    def __init__(self, code: str, *, word: str, env: Mapping[str, str]) -> None:
        """`code` calls `serve`; `word` is the argument before the name."""
        self._code = code
        self._word = word
        self._env = env
        self._lock = threading.Lock()  # guards the rest
        self._usable = True
        self._started: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def fork(self, wanted: Fork) -> int | None:
        """Return the PID of a new child of this process. Call it inside `process_tree.starting`."""
        if len(_block(wanted.env)) >= _VARIABLES_BYTES or not process_tree.adopting():
            return None
        message = json.dumps({"name": wanted.name, "env": dict(wanted.env), "cwd": wanted.cwd, "to": [*wanted.fds]})
        with RESTING, self._lock:
            if not self._usable:
                return None
            try:
                control = self._control or self._start()
                socket.send_fds(control, [message.encode()], [*wanted.fds.values()])
                return int(control.recv(_NAME_BYTES)) or None
            except (OSError, ValueError):
                self._usable = self._control is not None  # one that has worked is started again
                self._stop()
                return None

    def _start(self) -> socket.socket:
        """Start the template and wait until it is ready. OSError or ValueError: it cannot be used here."""
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            fd = theirs.fileno()
            self._started = subprocess.Popen(
                [sys.executable, "-P", "-u", "-c", self._code, str(fd), self._word, "-" * _NAME_BYTES],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**self._env, ROOM: "-" * _VARIABLES_BYTES},
                pass_fds=(fd,),
                process_group=0,  # Ctrl-C is for its owner; not a session, whose leader would pass for a component
            )
        process_tree.started(self._started.pid)
        control.settimeout(_ANSWER_S)
        if control.recv(_NAME_BYTES) != _READY:
            control.close()
            raise ValueError("the template is not ready")
        self._control = control
        return control

    def _stop(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            control.close()
        started, self._started = self._started, None
        if started is not None:
            started.kill()
            started.wait()
            process_tree.reaped(started.pid)

    def __del__(self) -> None:
        self._stop()


class _OwnText:
    """A string that this process was started with, in the memory that /proc shows."""

    def __init__(self, start: int, end: int, before: bytes) -> None:
        """Find the first string that begins with `before`. ValueError: there is none."""
        found = b"\0" + ctypes.string_at(start, end - start)
        self._at = start + found.index(b"\0" + before)
        self._bytes = found.index(b"\0", self._at - start + 1) - (self._at - start + 1)

    def write(self, text: bytes) -> None:
        text = text[: self._bytes]
        ctypes.memmove(self._at, text + bytes(self._bytes - len(text)), self._bytes)


def serve(run: Callable[[], int]) -> None:
    """Fork as the owner of this template asks, until it has ended; each new process calls `run` and exits with what
    that returns."""
    control = socket.socket(fileno=int(sys.argv[1]))
    variables, name = _own_texts()
    variables.write(_block({ROOM: "tried"}))
    if not process_table.carries(os.getpid(), f"{ROOM}=tried"):
        return
    os.environ.pop(ROOM)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy all these pages
    control.send(_READY)
    while True:
        message, fds, *_ = socket.recv_fds(control, _MESSAGE_BYTES, 8)
        if not message:
            return
        order = json.loads(message)
        try:
            pid = _fork_twice()
        except OSError:
            pid = -1
        if pid == 0:
            control.close()
            variables.write(_block(order["env"]))
            name.write(os.fsencode(order["name"]))
            _become(order, fds, run)
        for fd in fds:
            os.close(fd)
        control.send(b"%d" % max(pid, 0))


def _own_texts() -> tuple[_OwnText, _OwnText]:
    """Return the room for variables and the one for the name."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    arguments, their_end, environment, its_end = map(int, fields[45:49])
    variables = _OwnText(environment, its_end, f"{ROOM}=".encode())
    return variables, _OwnText(arguments, their_end, b"-" * _NAME_BYTES)


def _fork_twice() -> int:
    """Return 0 in the new process, and its PID here. When this returns, it is an orphan. OSError: it was not made."""
    told, telling = os.pipe()
    try:
        middle = os.fork()
        if middle == 0:
            try:
                pid = os.fork()
            except OSError:
                os._exit(1)
            if pid == 0:
                return 0
            os.write(telling, b"%d" % pid)  # noqa: TID251 - a pipe, no file
            os._exit(0)
        os.close(telling)
        telling = -1
        os.waitpid(middle, 0)
        return int(os.read(told, _NAME_BYTES) or -1)
    finally:
        for fd in (told, telling):
            if fd >= 0:
                os.close(fd)


def _become(order: Mapping[str, object], fds: Sequence[int], run: Callable[[], int]) -> NoReturn:
    """Be the new process."""
    code = 1
    try:
        os.setsid()
        targets, env = order["to"], order["env"]
        assert isinstance(targets, list)
        assert isinstance(env, dict)
        free = max(*targets, *fds) + 1
        aside = [_copied(fd, free) for fd in fds]
        for target, fd in zip(targets, aside, strict=True):
            os.dup2(fd, target)
        for fd in {*fds, *aside} - {*targets}:
            os.close(fd)
        os.chdir(str(order["cwd"]))
        os.environ.update(env)
        sys.argv[1:] = [sys.argv[2], str(order["name"])]
        code = run()
    except BaseException:  # noqa: BLE001 - this process must not return into the loop of its template
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _copied(fd: int, least: int) -> int:
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)


def _block(env: Mapping[str, str]) -> bytes:
    """Return variables as /proc shows them."""
    return b"\0".join(os.fsencode(f"{name}={value}") for name, value in env.items())
