"""Describe what one process may access, in the same way for every level of the sandbox, and limit what the processes of
one plan use together: processes, memory, disk.

A cgroup enforces the limits where possible. Without one, RLIMIT_NPROC limits an ordinary user's processes, root's (to
whom it does not apply) are counted while they run, and memory is limited per process. The disk is always watched.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from farro.host import cgroup, process_table
from farro.host.process_limits import ProcessLimits
from farro.jobs.outcomes import ErrorInfo
from farro.lazy_dataclass import dataclass, field, replace

DISK_FULL = "disk_full"
LIMIT = "limit_reached"
_NODES = 10_000  # inodes that must stay free for others
_KNOWN_S = 5.0  # how long a count of the user's processes is valid
_counted = (0.0, 0)
PROCESSES = 512  # at once, of one step: more than a build needs, less than a machine has


Network = bool | tuple[str, ...]  # all of it, nothing, or these hosts: "index.example:443"


def wider(one: Network, other: Network) -> Network:
    """Return the network of a process to which both are given."""
    if isinstance(one, bool) or isinstance(other, bool):
        return True if True in (one, other) else one or other
    return (*one, *other)


@dataclass(frozen=True, slots=True)
class LocalService:
    """A service of the worker that a confined process reaches at 127.0.0.1:`port`, although its network is off.

    It listens there itself. Where the process has a network of its own, `serve` is called with a second listener, made
    in that network, and returns what closes it.
    """

    port: int
    serve: Callable[[socket.socket], Callable[[], None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Confinement:
    """The access rights of a process. Paths are absolute and physical (without links), without a slash at the end."""

    writable: tuple[str, ...] = ()  # files and folders; a folder with all that is in it
    protected: tuple[str, ...] = ()  # read-only though inside writable folders
    readable: tuple[str, ...] = ()  # visible though in a folder that is emptied (/tmp, /run)
    hidden: tuple[str, ...] = ()  # not even readable
    reads: tuple[str, ...] | None = None  # all that is readable besides what is writable; None: what its user can read
    network: bool = False
    services: tuple[LocalService, ...] = ()  # that it can reach without a network
    tmp: str | None = None  # a private writable folder: TMPDIR, and /tmp where mounts can be made
    memory_bytes: int | None = None  # of each process; of all of them where there is a cgroup
    processes: int | None = PROCESSES  # at once
    file_bytes: int | None = None  # of each file
    env: dict[str, str] = field(default_factory=dict)  # added to the process's own

    @property
    def limits(self) -> ProcessLimits:
        return ProcessLimits(address_space=self.memory_bytes, file_size=self.file_bytes, processes=self.processes)


def within(path: str, folder: str) -> bool:
    """Return whether `path` is `folder` or inside it."""
    return path == folder or folder == "/" or path.startswith(f"{folder}/")


class SharedLimits:
    """The limits that the processes of one confined plan share."""

    def __init__(
        self, *, processes: int | None, memory_bytes: int | None, disk: str, free_bytes: int, group: bool = True
    ) -> None:
        """`free_bytes` of the disk of `disk` must stay free. `group` False: do without a cgroup."""
        self._processes = processes
        self._disk = disk
        free, nodes = _free(disk)
        self._floor = min(free_bytes, free // 2)  # this plan is not to blame for a disk that is full already
        self._nodes_floor = min(_NODES, nodes // 2)
        self.group = cgroup.make(processes=processes, memory_bytes=memory_bytes) if group else None
        self._counts = self.group is None and _is_root()

    def enter(self) -> None:
        """Put this thread, which will start a process, into the cgroup (level B)."""
        if self.group is not None and self.group.by_thread:
            self.group.enter()

    def attach(self, pid: int) -> None:
        if self.group is not None:
            self.group.attach(pid)

    def attach_started(self, pid: int) -> None:
        """Put a started process into the cgroup if the thread that started it could not enter it."""
        if self.group is not None and not self.group.by_thread:
            self.group.attach(pid)

    def exceeded(self, leader: int) -> ErrorInfo | None:
        """Return why a running process must be ended because it uses too much; None if it need not."""
        free, nodes = _free(self._disk)
        if nodes < self._nodes_floor:
            message = f"ended, because the disk has room for {nodes} more files only (df -i)"
            return ErrorInfo(category=DISK_FULL, message=message)
        if free < self._floor:
            message = (
                f"ended, because the disk is nearly full: {free >> 20} MiB are free, and "
                f"{self._floor >> 20} MiB must stay so (security.min_free_bytes)"
            )
            return ErrorInfo(category=DISK_FULL, message=message)
        if self._counts and self._processes is not None and (count := _descendants(leader)) > self._processes:
            message = f"ended, because it had {count} processes; security.max_processes is {self._processes}"
            return ErrorInfo(category=LIMIT, message=message)
        return None

    def hit(self) -> str | None:
        """Return which limit may have made a process fail; None if none was reached."""
        if self.group is None:
            return None
        if self.group.out_of_memory():
            return "it was out of memory (security.max_memory_bytes)"
        if self.group.full():
            return f"it could not start more processes ({self._processes}: security.max_processes)"
        return None

    def close(self) -> tuple[int, ...]:
        """Kill what is left in the cgroup; return the PIDs that could not be killed."""
        return () if self.group is None else self.group.close()


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _free(path: str) -> tuple[int, int]:
    """Return the free bytes and inodes; some filesystems have no limit of inodes."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize, status.f_favail if status.f_files else _NODES


def _descendants(leader: int) -> int:
    children: dict[int, list[int]] = {}
    for entry in process_table.entries():
        if entry.alive:
            children.setdefault(entry.ppid, []).append(entry.pid)
    queue, count = [leader], 0
    while queue:
        found = children.get(queue.pop(), [])
        count += len(found)
        queue += found
    return count


def _of_user() -> int:
    """Count all threads of this user: the kernel counts them against the limit, even a browser's."""
    global _counted
    at_s, count = _counted
    now_s = time.monotonic()
    if count == 0 or now_s - at_s > _KNOWN_S:
        user, count = os.getuid(), 0
        for entry in process_table.entries():
            try:
                if os.stat(f"/proc/{entry.pid}").st_uid == user:
                    count += entry.threads
            except OSError:
                continue
        _counted = (now_s, count)
    return count


def limits_of(confinement: Confinement, bounds: SharedLimits | None, *, alone: bool) -> ProcessLimits:
    """Return the limits of each process. `alone`: the kernel counts the sandbox's processes only. A limit of processes
    does not apply to root."""
    own = confinement.limits
    if bounds is not None and bounds.group is not None:
        return replace(own, processes=None, address_space=None)
    if own.processes is None or _is_root():
        return replace(own, processes=None)
    return own if alone else replace(own, processes=own.processes + _of_user())
