"""Cgroups, where the machine permits them: a worker's own, and one around the processes of a job.

A worker's own cgroup (v2) makes all its descendants killable at once. When a worker is SIGKILLed, no process is left to
end its steps, and a step that left its session and cleared its environment cannot be found by a walk over the
processes. The kernel tracks membership of a cgroup through every fork and exec (RELIABILITY 23). Without a writable
cgroup2 hierarchy (most containers, an ordinary user's shell) every function of it does nothing, and process_tree has to
suffice.

The cgroup of a job limits the number and memory of its processes. Both hierarchies are supported: version 2 where a
folder of it was delegated to this user (systemd's Delegate), version 1 for root. Elsewhere `make` returns None, and the
caller has to watch the processes itself.

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
from farro.lazy_dataclass import dataclass

_NAME = re.compile(r"farro-([0-9]+)-[0-9a-f]{16}")
_BOUND_S = 10.0
_END_S = 5.0


def own_cgroup() -> str | None:
    """Make a child of this process's cgroup and move this process into it; return its path, None if not possible.

    A worker calls it once, before it starts any process: those it starts later are members from the beginning.
    """
    parent = _current()
    if parent is None:
        return None
    path = f"{parent}/{_new_name()}"
    try:
        os.mkdir(path)  # noqa: TID251 (see the module's head)
    except OSError:
        return None
    try:
        _write(f"{path}/cgroup.procs", "0")
    except OSError:
        _rmdir(path)
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
            _write(f"{path}/cgroup.kill", "1")
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
            _write(f"{os.path.dirname(path)}/cgroup.procs", "0")
    return _rmdir(path)


def _current() -> str | None:
    """Return the folder of this process's cgroup in the v2 hierarchy."""
    return _place("cgroup2", "", "0::")


def _new_name() -> str:
    return f"farro-{os.getpid()}-{os.urandom(8).hex()}"


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
    return [int(pid) for pid in _text(f"{path}/cgroup.procs").split()]


def _write(path: str, text: str) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(text.encode())


def _rmdir(path: str) -> bool:
    try:
        os.rmdir(path)  # noqa: TID251 (see the module's head)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


# --- the cgroup of a job ---


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitGroup:
    """A cgroup with limits; the caller of `make` closes it."""

    folders: tuple[str, ...]  # version 1: one per controller; version 2: one
    by_thread: bool  # version 1: a thread can enter alone

    def enter(self) -> None:
        """Put this thread, and what it starts from now on, into the cgroup. Version 1 only."""
        for folder in self.folders:
            _write(f"{folder}/tasks", "0")

    def attach(self, pid: int) -> None:
        """Put a process, and what it starts from now on, into the cgroup. One that has ended is no error."""
        with contextlib.suppress(ProcessLookupError):
            for folder in self.folders:
                _write(f"{folder}/cgroup.procs", str(pid))

    def full(self) -> bool:
        """Return whether a fork was refused because there were too many processes."""
        return _number(_text(f"{self.folders[0]}/pids.events"), "max") > 0

    def out_of_memory(self) -> bool:
        """Return whether a process was killed because all of them together used too much memory."""
        last = self.folders[-1]
        return _number(_text(f"{last}/memory.events") or _text(f"{last}/memory.oom_control"), "oom_kill") > 0

    def close(self) -> tuple[int, ...]:
        """Kill the remaining processes and remove the cgroup; return the PIDs that could not be ended."""
        until = time.monotonic() + _END_S
        while (pids := self._members()) and time.monotonic() < until:
            for pid in pids:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)
        for folder in self.folders:
            while not _rmdir(folder) and time.monotonic() < until:
                time.sleep(0.001)
        return tuple(pids)

    def _members(self) -> list[int]:
        """Return the live members except this process: a thread that entered to start a step may not have ended yet."""
        found = (process_table.entry(pid) for pid in _members(self.folders[0]) if pid != os.getpid())
        return [entry.pid for entry in found if entry is not None and entry.alive]


def make(*, processes: int | None, memory_bytes: int | None) -> LimitGroup | None:
    """Return a new cgroup with these limits; None where this machine does not permit one."""
    name = _new_name()
    return _version_2(name, processes, memory_bytes) or _version_1(name, processes, memory_bytes)


def _version_2(name: str, processes: int | None, memory_bytes: int | None) -> LimitGroup | None:
    parent = _current()
    if parent is None:
        return None
    if _NAME.fullmatch(os.path.basename(parent)):  # the worker's own, which cannot enable controllers
        parent = os.path.dirname(parent)
    wanted = [*(["pids"] if processes is not None else []), *(["memory"] if memory_bytes is not None else [])]
    with contextlib.suppress(OSError):
        _write(f"{parent}/cgroup.subtree_control", " ".join(f"+{controller}" for controller in wanted))
    if not set(wanted) <= set(_text(f"{parent}/cgroup.subtree_control").split()):
        return None
    values = {"pids.max": processes, "memory.max": memory_bytes}
    folder = _made(parent, name, {key: value for key, value in values.items() if value is not None})
    if folder is None:
        return None
    with contextlib.suppress(OSError):
        _write(f"{folder}/memory.swap.max", "0")
    return LimitGroup(folders=(folder,), by_thread=False)


def _version_1(name: str, processes: int | None, memory_bytes: int | None) -> LimitGroup | None:
    made: list[str] = []
    wanted = (("pids", "pids.max", processes), ("memory", "memory.limit_in_bytes", memory_bytes))
    for controller, file, value in wanted:
        if value is None:
            continue
        parent = _place("cgroup", controller, f":{controller}:")
        folder = None if parent is None else _made(parent, name, {file: value})
        if folder is None:
            for done in made:
                _rmdir(done)
            return None
        made.append(folder)
        with contextlib.suppress(OSError):
            _write(f"{folder}/memory.memsw.limit_in_bytes", str(value))
    return LimitGroup(folders=tuple(made), by_thread=True) if made else None


def _made(parent: str, name: str, values: dict[str, int]) -> str | None:
    """Make the folder and set the limits; None if that fails. Also remove the cgroups that dead workers left."""
    with contextlib.suppress(OSError):
        for other in os.listdir(parent):
            match = _NAME.fullmatch(other)
            if match is not None and not os.path.exists(f"/proc/{match[1]}"):
                _rmdir(f"{parent}/{other}")
    folder = f"{parent}/{name}"
    try:
        os.mkdir(folder)  # noqa: TID251 (see the module's head)
        for file, value in values.items():
            _write(f"{folder}/{file}", str(value))
    except OSError:
        _rmdir(folder)
        return None
    return folder


def _place(kind: str, controller: str, mark: str) -> str | None:
    """Return the folder of this process's cgroup in a hierarchy."""
    try:
        mount = next(
            fields[1].encode().decode("unicode_escape")  # a space in a mount point is written \040
            for fields in (line.split() for line in _text("/proc/mounts").splitlines())
            if fields[2] == kind and (not controller or controller in fields[3].split(","))
        )
        line = next(line for line in _text("/proc/self/cgroup").splitlines() if mark in line)
    except StopIteration:
        return None
    inside = line.split(":", 2)[2]
    return None if inside.startswith("/..") else mount + inside.rstrip("/")


def _number(text: str, name: str) -> int:
    return next((int(line.split()[1]) for line in text.splitlines() if line.split()[0] == name), 0)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""
