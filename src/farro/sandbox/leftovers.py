"""Ends what confined processes of level B left behind, though they left their session and cleaned their environment.

What still carries its mark is found by system.process_tree; on level A the kernel ends everything with the sandbox.

A worker adopts orphans, so that a stray is its child; but whose was it? What it cannot shed tells that it was confined
(a seccomp filter, no new privileges), and the mark that it should carry, and does not, that it hides. One that carries
the mark of another plan which still runs is that plan's, and is ended with it.
"""

from __future__ import annotations

import threading
from collections import Counter

from farro.host import process_table, process_tree

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
    """By us: in a container every process has a filter and often no new privileges, and so have we. Who was confined
    has one filter more. [test_a_container_that_filters_everything_makes_nobody_a_stray]"""
    found = _status(pid)
    if found.get("NoNewPrivs") != "1" or found.get("Seccomp") != "2":
        return False
    own = _status("self")
    if "Seccomp_filters" not in found:  # Linux before 5.9
        return own.get("Seccomp") == "0"
    return int(found["Seccomp_filters"]) > int(own.get("Seccomp_filters", 0))


def _status(pid: int | str) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    except OSError:
        return {}


def _claimed(pid: int) -> bool:
    return any(process_table.carries(pid, f"{process_tree.MARKER}={claim}") for claim in tuple(_claims))
