"""Names a process so that it can be recognised later, by another process, and killed without ever hitting a stranger.

Not for deciding whether an agent is alive: that is the lease's (R3, RELIABILITY 8 and 9). A PID is reused, and means
something else in another PID namespace; so a name is host, boot, namespace, PID and start time together.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
from collections.abc import Mapping
from typing import TypedDict

from farro.host import process_table


class Identity(TypedDict):
    """What is written into a lease, as JSON."""

    host: str
    boot_id: str
    pid_ns: int
    pid: int
    start: int


def identity() -> Identity:
    """This process."""
    return identity_of(os.getpid())


def identity_of(pid: int) -> Identity:
    """A process that the caller knows to live: its own child, or itself."""
    entry = process_table.entry(pid)
    return Identity(
        host=platform.node(),
        boot_id=process_table.boot_id(),
        pid_ns=process_table.pid_namespace(),
        pid=pid,
        start=entry.start if entry is not None else 0,
    )


def started_at_s(pid: int) -> float | None:
    """When the process that has this number now was started, in Unix time; None: there is none."""
    import psutil  # here: only whoever meets another program's PID file asks

    try:
        return float(psutil.Process(pid).create_time())
    except (psutil.Error, ValueError, OverflowError):
        return None


def matches(claimed: Mapping[str, object]) -> bool:
    """Whether exactly that process lives here and now. A name that is incomplete or malformed matches nobody."""
    pid, start = claimed.get("pid"), claimed.get("start")
    if not isinstance(pid, int) or not isinstance(start, int) or isinstance(pid, bool) or pid <= 0 or start <= 0:
        return False
    if (
        claimed.get("host") != platform.node()
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
    """SIGKILL to exactly that process; whether it was sent. Never hits a process that merely has the PID now.

    Pinned first, then compared, then signalled through the pin: if the PID changes hands in between, the pin refers to
    the dead process and the signal goes nowhere.
    """
    if not matches(claimed):
        return False
    pid = claimed["pid"]
    assert isinstance(pid, int)
    if not hasattr(os, "pidfd_open"):  # not Linux: compared just now is the best there is
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
