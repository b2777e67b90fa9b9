"""End leftover processes of level B that left their session and cleared their environment.

On level A the kernel ends everything with the sandbox. On level B a worker adopts orphans, so a leftover process is its
child, but no longer carries its marker. What it cannot remove shows that it was confined: a seccomp filter, and no new
privileges. A process that carries the marker of a plan that still runs belongs to that plan and is ended with it.
"""

from __future__ import annotations

import threading
from collections import Counter

from farro.host import process_table, process_tree

_claims: Counter[str] = Counter()  # markers of the confined plans, and of calls in them, that run in this process
_lock = threading.Lock()


def opened(claim: str) -> None:
    """Register that a plan with this marker begins."""
    with _lock:
        _claims[claim] += 1


def end(claim: str) -> None:
    """Unregister a plan and end its leftover processes, unless another plan with the same marker still runs."""
    with _lock:
        _claims[claim] -= 1
        if _claims[claim] <= 0:
            del _claims[claim]
    process_tree.end_adopted(lambda pid: confined(pid) and not _claimed(pid))


def confined(pid: int) -> bool:
    """Return whether farro confined this process. In a container every process may have a filter and no new privileges,
    this one too; a confined process has one filter more.
    [test_a_container_with_a_seccomp_filter_makes_no_process_a_stray]"""
    found = status(pid)
    if found.get("NoNewPrivs") != "1" or found.get("Seccomp") != "2":
        return False
    own = status("self")
    if "Seccomp_filters" not in found:  # Linux before 5.9
        return own.get("Seccomp") == "0"
    return int(found["Seccomp_filters"]) > int(own.get("Seccomp_filters", 0))


def status(pid: int | str) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    except OSError:
        return {}


def _claimed(pid: int) -> bool:
    return any(process_table.carries(pid, f"{process_tree.MARKER}={claim}") for claim in tuple(_claims))
