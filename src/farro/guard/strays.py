"""Ends what confined processes of level B left behind, though they left their session and cleaned their environment.

What still carries its mark is found by system.process_tree; on level A the kernel ends everything with the sandbox.

A worker adopts orphans, so that a stray is its child; but whose was it? What it cannot shed tells that it was confined
(a seccomp filter, no new privileges), and the mark that it should carry, and does not, that it hides. One that carries
the mark of another plan which still runs is that plan's, and is ended with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections import Counter

from farro.system import process_table, process_tree

_TURNS = 200
_TURN_S = 0.05

_claims: Counter[str] = Counter()  # of confined plans, and of calls in them, that run in this process
_lock = threading.Lock()


def opened(claim: str) -> None:
    """A plan with this mark begins."""
    with _lock:
        _claims[claim] += 1


def end(claim: str) -> None:
    """It is over: so are its strays, unless another of the same mark still runs, with which they end."""
    with _lock:
        _claims[claim] -= 1
        if _claims[claim] <= 0:
            del _claims[claim]
    for _ in range(_TURNS):
        found = [pid for pid in process_tree.reap_adopted() if _confined(pid) and not _claimed(pid)]
        if not found:
            return
        for pid in found:
            _kill(pid)


def _confined(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            fields = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    except OSError:
        return False
    return fields.get("NoNewPrivs") == "1" and fields.get("Seccomp") == "2"


def _claimed(pid: int) -> bool:
    return any(process_table.carries(pid, f"{process_tree.MARKER}={claim}") for claim in tuple(_claims))


def _kill(pid: int) -> None:
    """It is our child, and only we wait for it: its number is its own until then."""
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            poll.poll(_TURN_S * 1000)
        finally:
            os.close(fd)
