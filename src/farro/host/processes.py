"""Start one process and wait for it: direct exec, files for stdin, stdout and stderr, nothing inherited.

Decisions, each measured or learned:
- No `preexec_fn`: it runs Python between fork and exec, where another thread may have held any lock (deadlock), and it
  turns vfork into fork (0.6 ms → 1.6 ms a spawn here). Hence limits are set from outside (process_limits).
- A separate session, not only a group: if the worker has a terminal, a background group is stopped when it reads the
  terminal, and a step could read the operator's keys. Without a controlling terminal neither can happen. The extra
  cost is not measurable.
- Output goes straight into files: memory is bounded for any output, and no pump threads are needed (a pipe is for a
  program that its caller talks to). Input is the file
  itself: any size, any bytes, and a reader that stops early (`head`) causes no error.
- stderr is opened for appending: a script's `> /dev/stderr` opens the file again and truncates it, and later output
  would follow a hole of NULs. Not so stdout: a program that writes an archive there seeks back to its headers.
- A program whose file is known is started by posix_spawn(3) of the GNU C library. The kernel suspends the thread that
  starts a program until the program is mapped; `subprocess.Popen` and `os.posix_spawn` keep Python's interpreter lock
  for that time, a call through ctypes releases it (docs/decisions/a-program-starts-beside-other-slots.md).
- Waiting is a poll on a pidfd: no SIGCHLD handler, no busy loop, and it can be woken by another descriptor.

Tests: tests/host/test_processes.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

from farro.host import fs, process_limits, process_tree, waiting
from farro.host.process_limits import ProcessLimits
from farro.host.process_tree import GRACE_S, end_tree
from farro.host.programs import which
from farro.host.thread_turns import RESTING
from farro.lazy_dataclass import dataclass

_ENCODING, _ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
_SETSIGDEF, _SETSID = 0x04, 0x80  # of spawn.h
_SPAWN_BYTES = 512  # bytes; the library's two structures have 80 and 336

_libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
_HAS_SPAWN = hasattr(_libc, "posix_spawn_file_actions_addclosefrom_np")  # since 2.34; other C libraries lack it

Spawn = Callable[[Callable[[], "subprocess.Popen[bytes]"]], "subprocess.Popen[bytes]"]
Reason = Literal[
    "not_found", "not_executable", "bad_cwd", "bad_argument", "too_long", "no_resources", "not_supported", "refused"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Exit:
    """The exit of a process, and the resources that it and its reaped children used."""

    code: int  # as a shell reports it: 128 + n when ended by signal n
    signal: int | None
    duration_s: float
    user_s: float
    system_s: float
    # The kernel counts from the spawn, when the child still shares the worker's memory: at least the worker's size.
    max_rss_kb: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NotStarted:
    """Why a command could not be executed. A result of that step, not an error of the worker."""

    reason: Reason
    message: str

    @property
    def code(self) -> int:
        """Return the exit code that a shell would report."""
        return 127 if self.reason == "not_found" else 126

    @property
    def passing(self) -> bool:
        """Return whether the machine lacks resources, so that the command may start later."""
        return self.reason == "no_resources"


class Enclosure(Protocol):
    """The sandbox around a process that was started in one."""

    def ended(self) -> tuple[float, float, int] | None:
        """Wait until no process inside is alive; return what they used (user and system seconds, largest memory in
        KiB), None if unknown. Called once, when the enclosing process has ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A command to execute without a shell, and its streams."""

    argv: Sequence[str]
    executable: str | None = None  # the file to execute; None: argv[0] is searched on the PATH of `env`
    stdin: str | int | None  # a path, None for /dev/null, or a descriptor, which `start` closes
    stdout: str | int  # a file, which like that of stderr must not exist, or a descriptor, which `start` closes
    stderr: str
    cwd: str
    env: Mapping[str, str]


class Streams(NamedTuple):
    """The open files of a program; `stdin` None: /dev/null."""

    stdin: int | None
    stdout: int
    stderr: int


def start(
    launch: Launch, *, limits: ProcessLimits | None = None, pass_fds: Sequence[int] = (), spawn: Spawn | None = None
) -> Process | NotStarted:
    """Start a process. `pass_fds` are inherited in addition to the three streams. `spawn` makes the call that forks,
    perhaps on a thread that has dropped rights. Raises StorageTrouble when the two files cannot be created, OSError
    when `stdin` cannot be opened.
    """
    if limits is not None and not process_limits.available():
        return NotStarted(reason="not_supported", message="limits can be set on Linux only")
    argv, stdin, stdout = launch.argv, launch.stdin, launch.stdout
    opened = [given for given in (stdin, stdout) if isinstance(given, int)]

    def create(path: str, *, append: bool) -> int:
        opened.append(fs.retried(lambda: fs.create_file(path, append=append), path, time.sleep))
        return opened[-1]

    try:
        if isinstance(stdin, str):
            stdin = fs.open_read(stdin)
            opened.append(stdin)
        stdout = create(stdout, append=False) if isinstance(stdout, str) else stdout
        streams = Streams(stdin, stdout, create(launch.stderr, append=True))
        started_s = time.monotonic()
        try:
            with process_tree.starting():
                file = launch.executable or which(argv[0], launch.env.get("PATH"), launch.cwd)
                if file is not None and spawn is None and not pass_fds and _HAS_SPAWN and min(opened) > 2:
                    process = Process(_posix_spawn(file, argv, streams, cwd=launch.cwd, env=launch.env), started_s)
                else:
                    fork = partial(_popen, launch, streams, pass_fds)
                    popen = fork() if spawn is None else spawn(fork)
                    process = Process(popen.pid, started_s, popen)
        except (OSError, ValueError) as error:
            return _not_started(error, launch.executable or argv[0], launch.cwd)
    finally:
        for fd in opened:
            os.close(fd)
    return process if limits is None else _limit(process, limits)


def _posix_spawn(file: str, argv: Sequence[str], streams: Streams, *, cwd: str, env: Mapping[str, str]) -> int:
    """Execute `file` in a new session, with these streams (descriptors greater than 2) and no other descriptor; return
    its PID. Raises OSError, or ValueError for text that cannot be passed on."""
    if "=" in "".join(env):
        raise ValueError("illegal environment variable name")
    arguments = _texts(argv)
    variables = _texts([f"{name}={value}" for name, value in env.items()])
    pid = ctypes.c_int()
    actions = ctypes.create_string_buffer(_SPAWN_BYTES)
    _check(_libc.posix_spawn_file_actions_init(actions))
    try:
        for target, fd in enumerate(streams):
            if fd is None:
                _check(_libc.posix_spawn_file_actions_addopen(actions, target, b"/dev/null", os.O_RDWR, 0))
            else:
                _check(_libc.posix_spawn_file_actions_adddup2(actions, fd, target))
        _check(_libc.posix_spawn_file_actions_addchdir_np(actions, _encoded(cwd)))
        _check(_libc.posix_spawn_file_actions_addclosefrom_np(actions, 3))
        name = _encoded(file)
        with RESTING:
            code = _libc.posix_spawn(ctypes.byref(pid), name, actions, _ATTRIBUTES, arguments, variables)
        _check(code)
    finally:
        _libc.posix_spawn_file_actions_destroy(actions)
    return pid.value


def _texts(texts: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    """Return an array of C strings that ends with a null pointer. Encoded at once: one by one takes three times as
    long."""
    encoded = "\0".join(texts).encode(_ENCODING, _ERRORS).split(b"\0") if texts else []
    if len(encoded) != len(texts):
        raise ValueError("embedded null byte")
    return (ctypes.c_char_p * (len(encoded) + 1))(*encoded)


def _encoded(path: str) -> bytes:
    encoded = path.encode(_ENCODING, _ERRORS)
    if b"\0" in encoded:
        raise ValueError("embedded null byte")
    return encoded


def _check(code: int) -> None:
    if code != 0:
        raise OSError(code, os.strerror(code))


def _attributes() -> ctypes.Array[ctypes.c_char]:
    """Return the attributes of every program: a session of its own, and the signals that Python ignores as usual."""
    attributes, usual = ctypes.create_string_buffer(_SPAWN_BYTES), ctypes.create_string_buffer(128)
    _check(_libc.posix_spawnattr_init(attributes))
    _libc.sigemptyset(usual)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        _libc.sigaddset(usual, number)
    _check(_libc.posix_spawnattr_setsigdefault(attributes, usual))
    _check(_libc.posix_spawnattr_setflags(attributes, ctypes.c_short(_SETSIGDEF | _SETSID)))
    return attributes


_ATTRIBUTES = _attributes() if _HAS_SPAWN else None


def _popen(launch: Launch, streams: Streams, pass_fds: Sequence[int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        launch.argv,
        executable=launch.executable,
        stdin=subprocess.DEVNULL if streams.stdin is None else streams.stdin,
        stdout=streams.stdout,
        stderr=streams.stderr,
        cwd=launch.cwd,
        env=launch.env,
        start_new_session=True,
        pass_fds=pass_fds,
    )


def _limit(process: Process, limits: ProcessLimits) -> Process | NotStarted:
    try:
        process_limits.apply(process.pid, limits)
    except (OSError, ValueError) as error:
        # A limit that is silently missing is worse than a step that does not start.
        process.end(None, grace_s=0)
        return NotStarted(reason="not_supported", message=f"its limits could not be set: {error}")
    return process


class Process:
    """A started process, leader of its own session and group. Belongs to the thread that waits for it."""

    def __init__(self, pid: int, started_s: float, popen: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self.exit: Exit | None = None
        self._popen = popen  # if it was started by one
        self._started_s = started_s
        self._shell: Enclosure | None = None
        process_tree.started(self.pid)
        self._pidfd: int | None = None  # opened when this process has to be waited for

    def wait(self, timeout_s: float | None, wake_fd: int | None = None) -> Exit | None:
        """Wait for its end; None after the timeout (None: no timeout) or when `wake_fd` is readable first."""
        if self.exit is None and not self._reap() and timeout_s != 0:
            fd = self.fileno()
            if fd is None:
                self._wait_by_looking(timeout_s, wake_fd)
            elif _readable(fd, timeout_s, wake_fd):
                self._reap()
        return self.exit

    def enclosed(self, shell: Enclosure) -> None:
        """Register that this process is only a sandbox's monitor, which ends by itself after the step inside it."""
        self._shell = shell
        process_tree.spare(self.pid)

    def fileno(self) -> int | None:
        """Return a descriptor that is readable when the process has ended, None where there is none."""
        if self._pidfd is None and self.exit is None:
            # Old kernels, other systems, no descriptors left: `wait` then polls every few milliseconds instead.
            with contextlib.suppress(AttributeError, OSError):
                self._pidfd = os.pidfd_open(self.pid)
        return self._pidfd

    def end(
        self,
        marker: str | None,
        *,
        grace_s: float = GRACE_S,
        while_waiting: Callable[[], None] | None = None,
        every_s: float = 1.0,
    ) -> tuple[int, ...]:
        """End this process, its tree and every process with `marker` in its environment; return the PIDs that did not
        end. Sets `exit`."""
        leader = self.pid if self.exit is None else None
        try:
            return end_tree(leader, marker, grace_s=grace_s, while_waiting=while_waiting, every_s=every_s)
        finally:
            self.wait(0)

    def _wait_by_looking(self, timeout_s: float | None, wake_fd: int | None) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s = 0.0005
        while not self._reap():
            left_s = pause_s if deadline is None else min(pause_s, deadline - time.monotonic())
            if left_s <= 0:
                return
            if wake_fd is None:
                with RESTING:
                    time.sleep(left_s)
            elif _readable(wake_fd, left_s, None):
                return
            pause_s = min(pause_s * 2, 0.02)

    def _reap(self) -> bool:
        if not hasattr(os, "wait4"):  # Windows
            code = None if self._popen is None else self._popen.poll()
            if code is None:
                return False
            self._ended(code, 0.0, 0.0, 0)
            return True
        try:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        except ChildProcessError:  # SIGCHLD is ignored, or other code reaped it: the status is lost, the end is certain
            self._ended(255, 0.0, 0.0, 0)
            return True
        if pid == 0:
            return False
        self._ended(os.waitstatus_to_exitcode(status), usage.ru_utime, usage.ru_stime, usage.ru_maxrss)
        return True

    def _ended(self, code: int, user_s: float, system_s: float, max_rss_kb: int) -> None:
        process_tree.reaped(self.pid)
        if self._popen is not None:
            self._popen.returncode = code  # Popen did not reap it: without this it warns of a child that still runs
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        if self._shell is not None and (used := self._shell.ended()) is not None:
            user_s, system_s, max_rss_kb = used
        self.exit = Exit(
            code=code if code >= 0 else 128 - code,
            signal=-code if code < 0 else None,
            duration_s=time.monotonic() - self._started_s,
            user_s=user_s,
            system_s=system_s,
            max_rss_kb=max_rss_kb,
        )


def _readable(fd: int, timeout_s: float | None, wake_fd: int | None) -> bool:
    with RESTING:
        return fd in waiting.readable([fd] if wake_fd is None else [fd, wake_fd], timeout_s)


def _not_started(error: OSError | ValueError, command: str, cwd: str) -> NotStarted:
    if not isinstance(error, OSError):  # a NUL in an argument, `=` in the name of a variable
        return NotStarted(reason="bad_argument", message=f"{command}: {error}")
    if error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
        return NotStarted(reason="no_resources", message=f"{command}: {error.strerror}")
    if error.errno == errno.E2BIG:
        return NotStarted(
            reason="too_long", message=f"{command}: {error.strerror}; pass the data through a file or stdin"
        )
    if not os.path.isdir(cwd) or not os.access(cwd, os.X_OK):
        return NotStarted(reason="bad_cwd", message=f"cwd {cwd}: not a folder that can be entered")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        if os.path.isfile(os.path.join(cwd, command)):
            return NotStarted(
                reason="not_executable", message=f"{command}: the interpreter in its #! line was not found"
            )
        return NotStarted(reason="not_found", message=f"{command}: command not found")
    if error.errno == errno.ENOEXEC:
        return NotStarted(reason="not_executable", message=f"{command}: neither a program nor a script with a #! line")
    return NotStarted(reason="not_executable", message=f"{command}: {error.strerror}")
