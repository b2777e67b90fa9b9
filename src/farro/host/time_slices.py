"""How long a thread keeps its processor while others want one too: a worker's slots ask for long slices.

Who submits a job, and the kernel's own thread that ends a write for it, are woken for a moment and wait again. While a
worker has the processor that they need, they wait for the end of its slice too, which is noticed at the next tick of
the clock: milliseconds, for a tenth of one. Linux (6.12) lets whoever is woken go first when it has asked for a shorter
slice than the one that runs. Nobody gets more or less of the processor for it, only at another time.
Decided in docs/decisions/small-jobs-go-in-batches.md.

- What a worker starts does not inherit it: commands have what the system gives everyone.
  [test_a_program_that_a_worker_starts_has_ordinary_slices]
- Only advice: another kernel, a container that forbids it, a thread whose priority somebody has raised: left as it is.
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
    """For this thread."""
    found = _attributes(0)
    if found is None:
        return
    size, policy, flags, nice, priority, slice_ns, *rest = found
    if policy != _ORDINARY or nice < 0 or slice_ns >= LONG_NS:
        return
    asked = _ATTRIBUTES.pack(size, policy, flags | _NOT_FOR_CHILDREN, nice, priority, LONG_NS, *rest)
    _call(0, 0, asked, 0)


def length_ns(thread: int = 0) -> int:
    """As the kernel tells it; 0: this thread is gone, or nobody may choose here."""
    found = _attributes(thread)
    return 0 if found is None else found[5]


def _attributes(thread: int) -> tuple[int, ...] | None:
    buffer = ctypes.create_string_buffer(_ATTRIBUTES.size)
    return _ATTRIBUTES.unpack(buffer.raw) if _call(1, thread, buffer, _ATTRIBUTES.size, 0) else None


def _call(which: int, *arguments: object) -> bool:
    """Whether it was done."""
    numbers = _NUMBERS.get(os.uname().machine) if sys.platform == "linux" else None
    return numbers is not None and ctypes.CDLL(None).syscall(numbers[which], *arguments) == 0
