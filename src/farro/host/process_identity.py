"""Identify a process so that another process can recognise it later and kill it without ever hitting an unrelated one.

Not for deciding whether an agent is alive: its lease decides that (R3, RELIABILITY 8 and 9). A PID is reused, and means
something else in another PID namespace; so an identity is host, boot, namespace, PID and start time together.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from typing import TypedDict

from farro.host import machine, process_table


class Identity(TypedDict):
    """The identity of a process, as JSON in a lease."""

    host: str
    boot_id: str
    pid_ns: int
    pid: int
    start: int


def identity() -> Identity:
    """Return the identity of this process."""
    return identity_of(os.getpid())


def identity_of(pid: int) -> Identity:
    """Return the identity of a process that is certainly alive: the caller's child, or the caller."""
    entry = process_table.entry(pid)
    return Identity(
        host=machine.node_name(),
        boot_id=process_table.boot_id(),
        pid_ns=process_table.pid_namespace(),
        pid=pid,
        start=entry.start if entry is not None else 0,
    )


def started_at_s(pid: int) -> float | None:
    """Return when the process with this PID was started, in Unix time; None if there is none."""
    import psutil  # here: only needed for PID files of other programs

    try:
        return float(psutil.Process(pid).create_time())
    except (psutil.Error, ValueError, OverflowError):
        return None


def matches(claimed: Mapping[str, object]) -> bool:
    """Return whether exactly that process is alive on this machine; False for a malformed identity."""
    pid, start = claimed.get("pid"), claimed.get("start")
    if not isinstance(pid, int) or not isinstance(start, int) or isinstance(pid, bool) or pid <= 0 or start <= 0:
        return False
    if (
        claimed.get("host") != machine.node_name()
        or claimed.get("boot_id") != process_table.boot_id()
        or claimed.get("pid_ns") != process_table.pid_namespace()
    ):
        return False
    entry = process_table.entry(pid)
    return entry is not None and entry.start == start and entry.alive


def terminate_identified(claimed: Mapping[str, object]) -> bool:
    """Send SIGTERM to exactly that process, and to its group if it leads one; return whether it lives here."""
    if not matches(claimed):
        return False
    pid = claimed["pid"]
    assert isinstance(pid, int)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        entry = process_table.entry(pid)
        send = os.killpg if hasattr(os, "killpg") and entry is not None and entry.group == pid else os.kill
        send(pid, signal.SIGTERM)
        if hasattr(signal, "SIGCONT"):  # a stopped process would not handle the SIGTERM
            send(pid, signal.SIGCONT)
    return True


def kill_identified(claimed: Mapping[str, object]) -> bool:
    """Send SIGKILL to exactly that process; return whether it was sent. Never hits a process that reused the PID.

    The process is pinned (pidfd), compared, then signalled through the pin: if the PID is reused in between, the pin
    refers to the dead process and the signal has no effect.
    """
    if not matches(claimed):
        return False
    pid = claimed["pid"]
    assert isinstance(pid, int)
    if not hasattr(os, "pidfd_open"):  # not Linux: the comparison above is the best there is
        try:
            os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        except OSError:
            return False
        return True
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not matches(claimed):
            return False
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
