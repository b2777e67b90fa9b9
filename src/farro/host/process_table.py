"""What the system says of its processes: parents, groups, sessions, start times, environments.

Reading only: signals are sent by process_tree and process_identity. Everything here is a snapshot that may be out of
date when it returns; whoever acts on it pins the process first (pidfd) and looks again.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

from farro.lazy_dataclass import dataclass

LINUX = sys.platform.startswith("linux")

_PF_KTHREAD = 0x0020_0000
_BECOMING_S = 0.25  # to become another program takes microseconds, or a read from the disk
_PAUSE_S = 0.0005
_LOOKS = 3  # at a program that has arguments, no environment, and sleeps: it has become whatever it is


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """One process. (pid, start) names it for as long as the machine is up; pid alone does not."""

    pid: int
    ppid: int
    group: int
    session: int
    start: int  # Linux: clock ticks since boot; elsewhere milliseconds since the epoch
    state: str  # R S D T Z X …
    threads: int
    kernel: bool = False  # a thread of the kernel's own

    @property
    def alive(self) -> bool:
        """A zombie is over, unless only its first thread ended: then the others still run."""
        return self.state not in "ZX" or self.threads > 1


def entries() -> Iterator[ProcessEntry]:
    """Every process that can be seen from here."""
    if not LINUX:
        yield from _entries_by_psutil()
        return
    for name in os.listdir("/proc"):
        if name.isdigit() and (found := entry(int(name))) is not None:
            yield found


def entry(pid: int) -> ProcessEntry | None:
    """One process; None when there is none of that number (any more)."""
    if not LINUX:
        return next((found for found in _entries_by_psutil() if found.pid == pid), None)
    stat = _read(f"/proc/{pid}/stat")
    # The name in parentheses may itself hold spaces and parentheses: the fields start after the last one.
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
    """Whether a process was started with `NAME=value` in its environment. Other users' processes cannot be asked."""
    if not LINUX:
        return _carries_by_psutil(pid, variable)
    return b"\0" + os.fsencode(variable) + b"\0" in b"\0" + _environment(pid) + b"\0"


def _environment(pid: int) -> bytes:
    """What it was started with. A process that is just becoming another program has none for an instant, nor any
    arguments: to take that for an answer would spare what a job left.
    [test_a_process_is_known_while_it_becomes_another]"""
    told = _readable(f"/proc/{pid}/environ")
    if told or told is None:
        return told or b""
    until_s, looks = time.monotonic() + _BECOMING_S, 0
    while not told and told is not None and time.monotonic() < until_s and looks < _LOOKS:
        found = entry(pid)
        if found is None or not found.alive or found.kernel:
            return b""
        # The kernel gives it its arguments first: one that had to wait for a core in between has those alone.
        looks += found.state == "S" and bool(_read(f"/proc/{pid}/cmdline"))
        time.sleep(_PAUSE_S)
        told = _readable(f"/proc/{pid}/environ")
    return told or b""


def children_of_main_thread() -> list[int] | None:
    """The children of this process's first thread, zombies included; None where the kernel does not list them."""
    pid = os.getpid()
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb", buffering=0) as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return None


def boot_id() -> str:
    """Names this boot of this machine; empty where the system does not say."""
    return _read("/proc/sys/kernel/random/boot_id").decode().strip()


def pid_namespace() -> int:
    """The inode of this process's PID namespace: a PID means something only inside it. 0 where there are none."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _read(path: str) -> bytes:
    return _readable(path) or b""


def _readable(path: str) -> bytes | None:
    # Gone (ENOENT, ESRCH) or not ours to see (EACCES, EPERM): either way it has nothing to say.
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
