"""Level A: bubblewrap runs the process in separate namespaces for mounts, processes, network, IPC and host name.

How it is started, and why:
- bubblewrap reports the PID of the sandbox's first process (`--info-fd`), which waits (`--block-fd`) until its limits
  are set. So no instruction of the step runs without them.
- It starts the step when every mount is made: a byte left in that pipe after bubblewrap closed it means that the
  sandbox could not be built. bubblewrap visits every mount of the machine and fails if one is unmounted meanwhile; then
  the start is repeated.
- Its first process reaps and is killed with the sandbox; the monitor, which is our child, ends before it. Its `ended`
  waits for the first one: when that is gone the kernel has ended every process of the PID namespace.
- `--die-with-parent` ends the sandbox when the thread that started it ends: the slot's own, which waits for the step.
- Root stays root, without a capability, in a user namespace: its files stay its own, and those of others closed.
- bubblewrap itself runs outside the sandbox, and a plan chooses its steps' variables: LD_PRELOAD among them would run
  the plan's code outside. So bubblewrap gets only farro's markers, and sets the step's variables inside (`--args`).
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from farro.host import fs, process_limits, process_tree, processes, waiting
from farro.host.processes import Launch, NotStarted, Process
from farro.host.thread_turns import RESTING
from farro.lazy_dataclass import replace
from farro.sandbox import paths, seccomp
from farro.sandbox.confinement import Confinement, LocalService, SharedLimits, limits_of, within
from farro.sandbox.namespace_listeners import serve_inside
from farro.sandbox.syscalls import machine

if sys.platform != "win32":
    import fcntl
    import termios

_Result = TypeVar("_Result")
_TMP = "/tmp"  # noqa: S108 - a mount point, as those below
EMPTIED = (_TMP, "/run", "/dev/shm")  # noqa: S108 - the content of these is hidden
_SHARED_BYTES = 64 << 20  # of each tmpfs
_BOX_S = 30.0  # then bubblewrap is given up
_GONE_S = 10.0
_TRIES = 5  # when a mount disappears while bubblewrap visits it
_MARKS = "FARRO_"  # variables by which the processes of a job are found in /proc, bubblewrap included
_PID = re.compile(rb'"child-pid"\s*:\s*([0-9]+)')


def start(
    bwrap: str, launch: Launch, confinement: Confinement, bounds: SharedLimits | None = None
) -> Process | NotStarted:
    """Like processes.start, confined. PathRefused: nothing was started, and no descriptor is closed."""
    _refuse_links(launch, confinement)
    with PinnedPaths(confinement) as pinned:

        def begin() -> Process | NotStarted:
            return _start(bwrap, launch, confinement, bounds, pinned.fds)

        def begin_anew() -> Process | NotStarted:
            for path in (launch.stdout, launch.stderr):
                if isinstance(path, str):
                    fs.unlink(path)
            return begin()

        try:
            return rebuilt(begin(), begin_anew, lambda made: made.message if isinstance(made, NotStarted) else None)
        finally:
            for fd in (launch.stdin, launch.stdout):
                if isinstance(fd, int):
                    os.close(fd)


def rebuilt(result: _Result, start: Callable[[], _Result], error_of: Callable[[_Result], str | None]) -> _Result:
    """Return `result`; call `start` for a new one while bubblewrap's error says that a mount disappeared."""
    for _ in range(_TRIES - 1):
        if "Unable to apply mount flags" not in (error_of(result) or ""):
            break
        result = start()
    return result


def _start(
    bwrap: str, launch: Launch, confinement: Confinement, bounds: SharedLimits | None, pinned: Mapping[str, int]
) -> Process | NotStarted:
    """Try once; descriptors of the launch stay open."""
    name, file = machine(), launch.executable
    assert name is not None
    assert file is not None
    with Pipes() as pipes:
        filter_r, filter_w = pipes.make()
        os.write(filter_w, seccomp.program(name, inet=True, attributes=True))  # noqa: TID251 - a pipe, no file
        info_r, info_w = pipes.make()
        block_r, block_w = pipes.make()
        pipes.close(filter_w)
        try:
            variables = pipes.keep(_told_variables(launch.env))
        except ValueError as error:
            return NotStarted(reason="bad_argument", message=str(error))
        fds = ("--seccomp", str(filter_r), "--info-fd", str(info_w), "--block-fd", str(block_r))
        monitor = replace(
            launch,
            argv=[
                *(bwrap, "--args", str(variables)),
                *(*arguments(confinement, pinned, file=file, cwd=launch.cwd), *fds, "--"),
                *(file, *launch.argv[1:]),
            ],
            executable=bwrap,
            stdin=os.dup(launch.stdin) if isinstance(launch.stdin, int) else None,
            stdout=os.dup(launch.stdout) if isinstance(launch.stdout, int) else launch.stdout,
            cwd="/",
            env={name: value for name, value in launch.env.items() if name.startswith(_MARKS)},
        )
        process = processes.start(monitor, pass_fds=(variables, filter_r, info_w, block_r, *pinned.values()))
        if isinstance(process, NotStarted):
            return process
        pipes.close(filter_r, info_w, block_r)
        first = _told_pid(info_r)
        if first is None:
            return _not_built(process, launch)
        inside = SandboxMonitor(first)
        process.enclosed(inside)
        try:
            if confinement.services and not confinement.network:
                inside.serve(confinement.services)
            process_limits.apply(first, limits_of(confinement, bounds, alone=True))
            if bounds is not None:
                bounds.attach(first)
        except (OSError, ValueError) as error:
            process.end(None, grace_s=0)
            return NotStarted(reason="not_supported", message=f"its sandbox could not be prepared: {error}")
        if not _let_go(block_w):
            return _not_built(process, launch)
    return process


def _told_variables(env: Mapping[str, str]) -> int:
    """Return a file without a name that holds bubblewrap's arguments for all variables except the markers: every user
    of the machine can read command lines, and variables may be keys. ValueError: a variable cannot be set."""
    words: list[str] = []
    for name, value in env.items():
        if "=" in name or "\0" in name or "\0" in value:  # a NUL would begin another argument of bubblewrap
            raise ValueError(f"the variable {name!r} has a NUL in its value or a `=` in its name")
        if name and not name.startswith(_MARKS):
            words += ("--setenv", name, value)
    fd = os.memfd_create("variables")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(b"".join(os.fsencode(word) + b"\0" for word in words))
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _let_go(block_w: int) -> bool:
    """Let the step start; return whether the sandbox was built: it then reads the byte that it waits for."""
    try:
        os.write(block_w, b"1")  # noqa: TID251 - a pipe, no file
    except BrokenPipeError:
        return False
    poll = select.poll()
    poll.register(block_w, 0)  # reports an error when the other end is closed
    with RESTING:
        poll.poll(_BOX_S * 1000)
    return int.from_bytes(fcntl.ioctl(block_w, termios.FIONREAD, bytes(4)), sys.byteorder) == 0


def _not_built(process: Process, launch: Launch) -> NotStarted:
    process.end(None, grace_s=0)
    return NotStarted(reason="not_supported", message=f"the sandbox could not be built: {_said(launch.stderr)}")


def arguments(confinement: Confinement, pinned: Mapping[str, int], *, file: str, cwd: str) -> list[str]:
    """Return the options for what is visible and what is writable. Later mounts cover earlier ones.

    Writable paths are bound by descriptor, which bubblewrap closes: a path would follow a link that was put there in
    the last moment.
    """
    words = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    words += ["--cap-drop", "ALL", "--die-with-parent"]
    if not confinement.network:
        words.append("--unshare-net")
    if confinement.reads is None:
        words += ["--ro-bind", "/", "/"]
    words += ["--dev", "/dev", "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]
    words += ["--size", str(_SHARED_BYTES), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108
    # /run has the sockets of the machine's services.
    words += ["--size", str(1 << 20), "--tmpfs", "/run"] if os.path.isdir("/run") else []
    if confinement.tmp is None:
        words += ["--size", str(_SHARED_BYTES), "--tmpfs", _TMP]
    else:
        words += ["--bind-fd", str(pinned[_TMP]), _TMP]
        for folder in _skeleton(confinement, file, cwd):
            words += ["--size", str(1 << 20), "--perms", "0755", "--tmpfs", folder]
    words += _opened(confinement, cwd, file) if confinement.reads is None else _closed(confinement)
    if network_names := _resolver(confinement):
        words += ["--ro-bind-try", network_names, network_names]
    for path in (*confinement.writable, *((confinement.tmp,) if confinement.tmp is not None else ())):
        words += ["--bind-fd", str(pinned[path]), path]
    for path in _on_the_way(confinement):
        words += ["--bind-fd", str(pinned[path]), path]
    for path in confinement.protected:
        words += ["--ro-bind-fd", str(pinned[path]), path]
    if confinement.reads is not None:  # only now is every mount point made
        emptied = [path for path in confinement.hidden if path in words and os.path.isdir(path)]
        return [*words, *(word for path in ("/", *emptied) for word in ("--remount-ro", path)), "--chdir", cwd]
    for path in confinement.hidden:
        if os.path.isdir(path):
            words += ["--perms", "0000", "--tmpfs", path, "--remount-ro", path]
        elif os.path.exists(path):
            words += ["--ro-bind", "/dev/null", path]
    return [*words, "--chdir", cwd]


def _opened(confinement: Confinement, cwd: str, file: str) -> list[str]:
    """Show what must be visible in the folders that are emptied."""
    words: list[str] = []
    bound: list[str] = []
    for path in (*confinement.readable, cwd, file):
        # Not if it is bound already: a link in it, such as the python of a venv, is broken while this is built.
        if any(within(path, folder) for folder in EMPTIED) and not any(within(path, one) for one in bound):
            words += ["--ro-bind-try", path, path]
            bound.append(path)
    return words


def _closed(confinement: Confinement) -> list[str]:
    """Show what is in the closed list and nothing else: the sandbox begins with an empty root."""
    assert confinement.reads is not None
    words = ["--tmpfs", "/proc/1", "--remount-ro", "/proc/1"]  # bubblewrap's own, which is the first process inside
    visible: dict[str, bool] = {}  # each folder that is bound, and each in it that is emptied
    for path in sorted({*confinement.reads, *confinement.hidden}):
        around = max((folder for folder in visible if within(path, folder)), key=len, default=None)
        shown = around is not None and visible[around]
        hidden = path in confinement.hidden
        if within(path, "/proc") or hidden != shown:
            continue
        if not hidden and os.path.islink(path):
            words += ["--symlink", os.readlink(path), path]
        elif hidden and not os.path.isdir(path):
            words += ["--ro-bind-try", "/dev/null", path]
        else:
            words += ["--size", str(1 << 20), "--tmpfs", path] if hidden else ["--ro-bind-try", path, path]
            visible[path] = not hidden
    return words


def _skeleton(confinement: Confinement, file: str, cwd: str) -> list[str]:
    """Return the folders directly in /tmp below which paths are bound. They are made for each process: steps may have
    left a link in the job's own /tmp, and bubblewrap would make folders at its target, outside the sandbox."""
    return sorted({f"{_TMP}/{first}" for first, deeper, _ in _below_tmp(confinement, file, cwd) if deeper})


def _refuse_links(launch: Launch, confinement: Confinement) -> None:
    """Refuse links in the job's own /tmp where a path is to be bound: bubblewrap would make a file at their target."""
    for first, deeper, _ in _below_tmp(confinement, launch.executable or "", launch.cwd):
        if confinement.tmp is not None and not deeper and os.path.islink(f"{confinement.tmp}/{first}"):
            raise paths.PathRefused(f"{_TMP}/{first} is a link that an earlier step has left there")


def _below_tmp(confinement: Confinement, file: str, cwd: str) -> Iterator[tuple[str, str, str]]:
    """Yield each path that is bound in /tmp as its first name, a slash if there is more, and the rest."""
    tmp = () if confinement.tmp is None else (confinement.tmp,)
    readable = confinement.readable if confinement.reads is None else confinement.reads
    for path in (*readable, *confinement.writable, *tmp, *confinement.protected, cwd, file):
        if path != _TMP and within(path, _TMP):
            yield path[len(_TMP) + 1 :].partition("/")


def _on_the_way(confinement: Confinement) -> list[str]:
    """Return the folders between a writable folder and the protected paths in it, outermost first. Each is bound in
    place: a step could rename one, together with the protected path, and make another in its place."""
    found: dict[str, None] = {}
    for path in confinement.protected:
        for folder in confinement.writable:
            if within(path, folder):
                parts = path[len(folder) + 1 :].split("/")[:-1]
                found.update((f"{folder}/{'/'.join(parts[: n + 1])}", None) for n in range(len(parts)))
    return [path for path in sorted(found) if path not in confinement.writable]


class PinnedPaths:
    """Descriptors of the bound paths, held until bubblewrap has them."""

    def __init__(self, confinement: Confinement) -> None:
        self.fds: dict[str, int] = {}
        tmp = () if confinement.tmp is None else (confinement.tmp,)
        try:
            for path in tmp:
                self.fds[_TMP] = paths.pin(path)  # a second descriptor: bubblewrap closes each that it has bound
            on_the_way = _on_the_way(confinement)
            for path in dict.fromkeys((*confinement.writable, *tmp, *on_the_way, *confinement.protected)):
                self.fds[path] = paths.pin(path)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> PinnedPaths:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self.fds.values():
            os.close(fd)


class SandboxMonitor:
    """The monitor of a step of this level (processes.Enclosure)."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._end_services: Callable[[], None] | None = None
        process_tree.started(first)  # it becomes our child when the monitor is gone: only `ended` may reap it
        self._pidfd: int | None = None
        with contextlib.suppress(AttributeError, OSError):
            self._pidfd = os.pidfd_open(first)

    def serve(self, services: Sequence[LocalService]) -> None:
        """Let these services listen in the network of the sandbox, until it has ended."""
        self._end_services = serve_inside(self._first, services)

    def ended(self) -> tuple[float, float, int] | None:
        try:
            if self._pidfd is not None:
                # Killed with its monitor, unless the monitor died before it requested that.
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                with RESTING:
                    waiting.readable([self._pidfd], _GONE_S)
                os.close(self._pidfd)
                self._pidfd = None
            pid, _, usage = os.wait4(self._first, os.WNOHANG)
        except ChildProcessError:  # it is not ours: this process does not adopt orphans
            return None
        finally:
            process_tree.reaped(self._first)
            if self._end_services is not None:
                self._end_services()
        return (usage.ru_utime, usage.ru_stime, usage.ru_maxrss) if pid else None


def _told_pid(fd: int) -> int | None:
    said = b""
    while (found := _PID.search(said)) is None or not said.rstrip().endswith(b"}"):
        with RESTING:
            ready = waiting.readable([fd], _BOX_S)
        piece = os.read(fd, 4096) if ready else b""
        if not piece:
            return None
        said += piece
    return int(found[1])


def _resolver(confinement: Confinement) -> str | None:
    """Return the resolver's configuration if it is in /run, as it often is, behind a link."""
    place = os.path.realpath("/etc/resolv.conf")
    return place if confinement.network and within(place, "/run") else None


def _said(stderr: str) -> str:
    lines = fs.read_bytes(stderr, 4096).decode("utf-8", "replace").split("\n")
    return next((line for line in lines if line), "bubblewrap ended without a message")


class Pipes:
    """Ends of pipes, each closed exactly once: at a second close, the descriptor may be a file of another thread."""

    def __init__(self) -> None:
        self._open: list[int] = []

    def __enter__(self) -> Pipes:
        return self

    def make(self) -> tuple[int, int]:
        ends = os.pipe()
        self._open += ends
        return ends

    def keep(self, fd: int) -> int:
        self._open.append(fd)
        return fd

    def close(self, *fds: int) -> None:
        for fd in fds:
            self._open.remove(fd)
            os.close(fd)

    def __exit__(self, *_: object) -> None:
        self.close(*self._open)
