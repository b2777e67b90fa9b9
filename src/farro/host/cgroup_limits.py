"""A cgroup around the processes of one job: limits their number and memory, and ends all of them at once.

A cgroup is kernel state in a virtual filesystem, not stored data: its mkdir and rmdir do not go through fs.

Both hierarchies are supported: version 2 where a folder of it was delegated to this user (systemd's Delegate), version
1 for root. Elsewhere `make` returns None, and the caller has to watch the processes itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time

from farro.host import cgroup
from farro.lazy_dataclass import dataclass

_NAME = re.compile(r"farro-([0-9]+)-[0-9a-f]{16}")
_END_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitGroup:
    """A cgroup with limits; the caller of `make` closes it."""

    folders: tuple[str, ...]  # version 1: one per controller; version 2: one
    by_thread: bool  # version 1: a thread can enter alone

    def enter(self) -> None:
        """Put this thread, and what it starts from now on, into the cgroup. Version 1 only."""
        for folder in self.folders:
            cgroup.write(f"{folder}/tasks", "0")

    def attach(self, pid: int) -> None:
        """Put a process, and what it starts from now on, into the cgroup. One that has ended is no error."""
        with contextlib.suppress(ProcessLookupError):
            for folder in self.folders:
                cgroup.write(f"{folder}/cgroup.procs", str(pid))

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
            while not cgroup.rmdir(folder) and time.monotonic() < until:
                time.sleep(0.001)
        return tuple(pids)

    def _members(self) -> list[int]:
        """Return the live members except this process: a thread that entered to start a step may not have ended yet."""
        pids = map(int, _text(f"{self.folders[0]}/cgroup.procs").split())
        return [pid for pid in pids if pid != os.getpid() and _alive(pid)]


def make(*, processes: int | None, memory_bytes: int | None) -> LimitGroup | None:
    """Return a new cgroup with these limits; None where this machine does not permit one."""
    name = f"farro-{os.getpid()}-{os.urandom(8).hex()}"
    return _version_2(name, processes, memory_bytes) or _version_1(name, processes, memory_bytes)


def _version_2(name: str, processes: int | None, memory_bytes: int | None) -> LimitGroup | None:
    parent = _place("cgroup2", "", "0::")
    if parent is None:
        return None
    if _NAME.fullmatch(os.path.basename(parent)):  # the worker's own, which cannot enable controllers
        parent = os.path.dirname(parent)
    wanted = [*(["pids"] if processes is not None else []), *(["memory"] if memory_bytes is not None else [])]
    with contextlib.suppress(OSError):
        cgroup.write(f"{parent}/cgroup.subtree_control", " ".join(f"+{controller}" for controller in wanted))
    if not set(wanted) <= set(_text(f"{parent}/cgroup.subtree_control").split()):
        return None
    values = {"pids.max": processes, "memory.max": memory_bytes}
    folder = _made(parent, name, {key: value for key, value in values.items() if value is not None})
    if folder is None:
        return None
    with contextlib.suppress(OSError):
        cgroup.write(f"{folder}/memory.swap.max", "0")
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
                cgroup.rmdir(done)
            return None
        made.append(folder)
        with contextlib.suppress(OSError):
            cgroup.write(f"{folder}/memory.memsw.limit_in_bytes", str(value))
    return LimitGroup(folders=tuple(made), by_thread=True) if made else None


def _made(parent: str, name: str, values: dict[str, int]) -> str | None:
    """Make the folder and set the limits; None if that fails. Also remove the cgroups that dead workers left."""
    with contextlib.suppress(OSError):
        for other in os.listdir(parent):
            match = _NAME.fullmatch(other)
            if match is not None and not os.path.exists(f"/proc/{match[1]}"):
                cgroup.rmdir(f"{parent}/{other}")
    folder = f"{parent}/{name}"
    try:
        os.mkdir(folder)  # noqa: TID251 (see the module's head)
        for file, value in values.items():
            cgroup.write(f"{folder}/{file}", str(value))
    except OSError:
        cgroup.rmdir(folder)
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


def _alive(pid: int) -> bool:
    state = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return bool(state) and state[0] not in ("Z", "X")


def _number(text: str, name: str) -> int:
    return next((int(line.split()[1]) for line in text.splitlines() if line.split()[0] == name), 0)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""
