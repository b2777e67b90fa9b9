"""A worker's own cgroup (v2), where the machine permits one: it makes all descendants of the worker killable at once.

When a worker is SIGKILLed, no process is left to end its steps, and a step that left its session and cleared its
environment cannot be found by a walk over the processes. The kernel tracks membership of a cgroup through every fork
and exec (RELIABILITY 23). Without a writable cgroup2 hierarchy (most containers, an ordinary user's shell) every
function here does nothing, and process_tree has to suffice.

A cgroup is kernel state in a virtual filesystem, not stored data: its mkdir and rmdir do not go through fs.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import time

from farro.host import process_table

_NAME = re.compile(r"farro-[0-9]+-[0-9a-f]{16}")
_BOUND_S = 10.0


def own_cgroup() -> str | None:
    """Make a child of this process's cgroup and move this process into it; return its path, None if not possible.

    A worker calls it once, before it starts any process: those it starts later are members from the beginning.
    """
    parent = _current()
    if parent is None:
        return None
    path = f"{parent}/farro-{os.getpid()}-{os.urandom(8).hex()}"
    try:
        os.mkdir(path)  # noqa: TID251 (see the module's head)
    except OSError:
        return None
    try:
        write(f"{path}/cgroup.procs", "0")
    except OSError:
        rmdir(path)
        return None
    return path


def kill_cgroup(path: str) -> bool:
    """SIGKILL every process in the cgroup and below; return whether none is left, also when the cgroup is gone.

    Only for cgroups made by `own_cgroup`: a path from a damaged lease must not end a whole user session.
    """
    if not _is_ours(path):
        return False
    if not os.path.isdir(path):
        return True
    until = time.monotonic() + _BOUND_S
    while time.monotonic() < until:
        try:
            write(f"{path}/cgroup.kill", "1")
        except OSError:  # Linux before 5.14, or gone meanwhile
            for pid in _members(path):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        if _wait_until_empty(path, until):
            return True
    return False


def has_member(path: str, start: object) -> bool:
    """Return whether a member was started at `start` (ProcessEntry.start, the same in every namespace). A member that
    is invisible from this namespace counts as one."""
    if not _is_ours(path):
        return False
    for pid in _members(path):
        found = process_table.entry(pid) if pid else None
        if pid == 0 or (found is not None and found.alive and found.start == start):
            return True
    return False


def remove_cgroup(path: str) -> bool:
    """Remove the empty cgroup; return whether it is gone. A process in it first moves back to the parent."""
    if not _is_ours(path):
        return False
    if _current() == path:
        with contextlib.suppress(OSError):
            write(f"{os.path.dirname(path)}/cgroup.procs", "0")
    return rmdir(path)


def _current() -> str | None:
    """Return the folder of this process's cgroup in the v2 hierarchy."""
    try:
        mount = next(
            fields[1].encode().decode("unicode_escape")  # a space in a mount point is written \040
            for fields in (line.split() for line in _lines("/proc/mounts"))
            if fields[2] == "cgroup2"
        )
        inside = next(line[3:] for line in _lines("/proc/self/cgroup") if line.startswith("0::"))
    except (OSError, StopIteration):
        return None
    if inside.startswith("/.."):  # a cgroup namespace whose root is elsewhere: unreachable from here
        return None
    return mount + inside.rstrip("/")


def _is_ours(path: str) -> bool:
    return _NAME.fullmatch(os.path.basename(path)) is not None


def _wait_until_empty(path: str, until: float) -> bool:
    """Wait until the last member has gone: the kernel then reports POLLPRI on cgroup.events."""
    try:
        with open(f"{path}/cgroup.events", "rb", buffering=0) as events:
            poll = select.poll()
            poll.register(events, select.POLLPRI)
            while True:
                events.seek(0)
                if b"populated 0" in events.read(4096):
                    return True
                if not poll.poll(min(1.0, max(until - time.monotonic(), 0)) * 1000):
                    return False
    except OSError:
        return not os.path.isdir(path)


def _members(path: str) -> list[int]:
    try:
        return [int(line) for line in _lines(f"{path}/cgroup.procs")]
    except OSError:
        return []


def _lines(path: str) -> list[str]:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read().splitlines()


def write(path: str, text: str) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(text.encode())


def rmdir(path: str) -> bool:
    try:
        os.rmdir(path)  # noqa: TID251 (see the module's head)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
