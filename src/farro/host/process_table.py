"""Read the system's table of processes: parents, groups, sessions, start times, environments.

Everything is a snapshot that may be out of date when it is returned. Before it acts on an entry, a caller pins the
process (pidfd) and reads its entry again.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

from farro.lazy_dataclass import dataclass

LINUX = sys.platform.startswith("linux")

_PF_KTHREAD = 0x0020_0000
_BECOMING_S = 0.25  # an exec takes microseconds, or a read from the disk
_PAUSE_S = 0.0005
_LOOKS = 3  # at a program that has arguments, no environment, and sleeps: its exec is over


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """One process. (pid, start) identifies it until the next boot; pid alone does not."""

    pid: int
    ppid: int
    group: int
    session: int
    start: int  # Linux: clock ticks since boot; elsewhere milliseconds since the epoch
    state: str  # R S D T Z X …
    threads: int
    kernel: bool = False  # a kernel thread

    @property
    def alive(self) -> bool:
        """False for a zombie, unless only its first thread has ended and others still run."""
        return self.state not in "ZX" or self.threads > 1


def entries() -> Iterator[ProcessEntry]:
    """Yield every process that is visible from this namespace."""
    if not LINUX:
        yield from _entries_by_psutil()
        return
    for name in os.listdir("/proc"):
        if name.isdigit() and (found := entry(int(name))) is not None:
            yield found


def entry(pid: int) -> ProcessEntry | None:
    """Return one process; None when no process has that PID."""
    if not LINUX:
        return next((found for found in _entries_by_psutil() if found.pid == pid), None)
    stat = _read(f"/proc/{pid}/stat")
    # The name in parentheses may itself contain spaces and parentheses: the fields start after the last one.
    fields = stat[stat.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return ProcessEntry(
        pid=pid,
        ppid=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        start=int(fields[19]),
        state=fields[0].decode(),
        threads=int(fields[17]),
        kernel=bool(int(fields[6]) & _PF_KTHREAD),
    )


def carries(pid: int, variable: str) -> bool:
    """Return whether a process was started with `NAME=value` in its environment. False for other users' processes."""
    if not LINUX:
        return _carries_by_psutil(pid, variable)
    return b"\0" + os.fsencode(variable) + b"\0" in b"\0" + _environment(pid) + b"\0"


def _environment(pid: int) -> bytes:
    """Return the environment that a process was started with. During an exec it is empty for an instant, and so are the
    arguments: taking that for the answer would miss leftover processes of a job.
    [test_a_process_keeps_its_marker_during_exec]"""
    told = _readable(f"/proc/{pid}/environ")
    if told or told is None:
        return told or b""
    until_s, looks = time.monotonic() + _BECOMING_S, 0
    while not told and told is not None and time.monotonic() < until_s and looks < _LOOKS:
        found = entry(pid)
        if found is None or not found.alive or found.kernel:
            return b""
        # The kernel sets the arguments first: a process that waits for a core in between has only those.
        looks += found.state == "S" and bool(_read(f"/proc/{pid}/cmdline"))
        time.sleep(_PAUSE_S)
        told = _readable(f"/proc/{pid}/environ")
    return told or b""


def children_of_main_thread() -> list[int] | None:
    """Return the children of this process's first thread, zombies included; None if the kernel lists none."""
    pid = os.getpid()
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb", buffering=0) as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return None


def boot_id() -> str:
    """Return the id of this boot of the machine; empty where the system has none."""
    return _read("/proc/sys/kernel/random/boot_id").decode().strip()


def pid_namespace() -> int:
    """Return the inode of this process's PID namespace: PIDs are valid only inside it. 0 where there are none."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _read(path: str) -> bytes:
    return _readable(path) or b""


def _readable(path: str) -> bytes | None:
    # Gone (ENOENT, ESRCH) or not readable by us (EACCES, EPERM).
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError:
        return None


def _entries_by_psutil() -> Iterator[ProcessEntry]:
    import psutil  # only off Linux: it costs 20 ms to import

    for process in psutil.process_iter():
        try:
            zombie = process.status() == psutil.STATUS_ZOMBIE
            yield ProcessEntry(
                pid=process.pid,
                ppid=process.ppid(),
                group=os.getpgid(process.pid) if hasattr(os, "getpgid") else 0,
                session=os.getsid(process.pid) if hasattr(os, "getsid") else 0,
                start=int(process.create_time() * 1000),
                state="Z" if zombie else "S",
                threads=1,
            )
        except (psutil.Error, OSError):
            continue


def _carries_by_psutil(pid: int, variable: str) -> bool:
    import psutil

    name, _, value = variable.partition("=")
    try:
        return psutil.Process(pid).environ().get(name) == value
    except (psutil.Error, OSError):
        return False
