"""Limit what a process may use: memory, CPU, file size, number of processes.

Limits are set by prlimit(2) right after the spawn. For its first microseconds, about the time the kernel takes to map
it, a program runs without them, and a process that it forks in that time keeps none. The alternatives are worse:
preexec_fn can deadlock (see processes), and a helper program in between is one more exec for each step.
"""

from __future__ import annotations

import contextlib
import os

from farro.lazy_dataclass import dataclass, replace

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_CPU_GRACE_S = 5  # between SIGXCPU, which a program may catch to clean up, and SIGKILL


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessLimits:
    """The limits of a process and of each process that it starts; None keeps the worker's own limit."""

    address_space: int | None = None  # bytes of virtual memory
    cpu_s: int | None = None  # seconds of CPU; SIGXCPU, and SIGKILL five seconds later
    file_size: int | None = None  # bytes that a file may grow to; SIGXFSZ
    processes: int | None = None  # counted by the kernel over all processes of the user; root is never limited


def available() -> bool:
    """Return whether this platform can limit another process (Linux)."""
    return hasattr(resource, "prlimit")


def apply(pid: int, limits: ProcessLimits) -> None:
    """Limit a process. One that has ended is no error; OSError or ValueError when a limit is not permitted."""
    hard_cpu_s = None if limits.cpu_s is None else limits.cpu_s + _CPU_GRACE_S
    wanted = (
        (resource.RLIMIT_AS, limits.address_space, limits.address_space),
        (resource.RLIMIT_CPU, limits.cpu_s, hard_cpu_s),
        (resource.RLIMIT_FSIZE, limits.file_size, limits.file_size),
        (resource.RLIMIT_NPROC, limits.processes, limits.processes),
    )
    with contextlib.suppress(ProcessLookupError):
        for kind, soft, hard in wanted:
            if soft is not None and hard is not None:
                resource.prlimit(pid, kind, (soft, hard))


def limit_self(limits: ProcessLimits) -> None:
    """Limit this process and what it will start. Only the soft limit of the file size is set: see `lift_file_size`."""
    apply(os.getpid(), replace(limits, file_size=None))
    if limits.file_size is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        bound = limits.file_size if hard == resource.RLIM_INFINITY else min(limits.file_size, hard)
        resource.setrlimit(resource.RLIMIT_FSIZE, (bound, hard))


def allow_open_files(count: int) -> None:
    """Raise this process's limit of open files to `count`, or as near to it as the hard limit permits."""
    if not hasattr(resource, "getrlimit"):  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    bound = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < bound:
        resource.setrlimit(resource.RLIMIT_NOFILE, (bound, hard))


def lift_file_size() -> None:
    """Lift the limit of the file size at the end of the work: what this process writes now is not its job's output."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
