"""Request long scheduler time slices for a worker's slots, so that short tasks preempt them.

A process that submits a job, and the kernel thread that completes a write for it, run for a moment and wait again.
While a worker occupies their processor, they also wait for the end of its slice, which the kernel notices at the next
clock tick: milliseconds of waiting for a tenth of one of work. Linux 6.12 lets a woken thread run first if its slice is
shorter than that of the running thread. This changes when each thread runs, not how much processor time it gets.
Without it a stream of small jobs on two busy processors takes 25 % longer (median of 20 pairs).
Decided in docs/decisions/small-jobs-go-in-batches.md.

- Processes that a worker starts do not inherit it. [test_a_program_that_a_worker_starts_has_ordinary_slices]
- Best effort: no effect on other kernels, in containers that forbid it, or for threads with a raised priority.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

LONG_NS = 10_000_000  # ordinary ones are 1 to 3 ms

_NUMBERS = {"x86_64": (314, 315), "aarch64": (274, 275), "riscv64": (274, 275)}  # sched_setattr, sched_getattr
_ATTRIBUTES = struct.Struct("IIQiIQQQII")  # size, policy, flags, nice, priority, slice, deadline, period, two limits
_ORDINARY = 0  # SCHED_OTHER
_NOT_FOR_CHILDREN = 1  # SCHED_FLAG_RESET_ON_FORK


def take_long() -> None:
    """Request long slices for this thread."""
    found = _attributes(0)
    if found is None:
        return
    size, policy, flags, nice, priority, slice_ns, *rest = found
    if policy != _ORDINARY or nice < 0 or slice_ns >= LONG_NS:
        return
    asked = _ATTRIBUTES.pack(size, policy, flags | _NOT_FOR_CHILDREN, nice, priority, LONG_NS, *rest)
    _call(0, 0, asked, 0)


def length_ns(thread: int = 0) -> int:
    """Return the length of a thread's slices; 0 if the thread is gone or the kernel has no such setting."""
    found = _attributes(thread)
    return 0 if found is None else found[5]


def _attributes(thread: int) -> tuple[int, ...] | None:
    buffer = ctypes.create_string_buffer(_ATTRIBUTES.size)
    return _ATTRIBUTES.unpack(buffer.raw) if _call(1, thread, buffer, _ATTRIBUTES.size, 0) else None


def _call(which: int, *arguments: object) -> bool:
    """Make the system call; return whether it succeeded."""
    numbers = _NUMBERS.get(os.uname().machine) if sys.platform == "linux" else None
    return numbers is not None and ctypes.CDLL(None).syscall(numbers[which], *arguments) == 0
