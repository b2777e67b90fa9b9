"""Ends what confined processes of level B left behind, though they left their session and cleaned their environment.

What still carries its mark is found by system.process_tree; on level A the kernel ends everything with the sandbox.

A worker adopts orphans, so that a stray is its child; but whose was it? What it cannot shed tells that it was confined
(a seccomp filter, no new privileges), and the mark that it should carry, and does not, that it hides. One that carries
the mark of another plan which still runs is that plan's, and is ended with it.
"""

from __future__ import annotations

import threading
from collections import Counter

from farro.system import process_table, process_tree

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
    process_tree.end_adopted(lambda pid: _confined(pid) and not _claimed(pid))


def _confined(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            fields = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    except OSError:
        return False
    return fields.get("NoNewPrivs") == "1" and fields.get("Seccomp") == "2"


def _claimed(pid: int) -> bool:
    return any(process_table.carries(pid, f"{process_tree.MARKER}={claim}") for claim in tuple(_claims))
