"""What the machine would otherwise charge to whoever is measured first, or makes most files: paid before, by nobody.

- A virtual machine is given its memory when it first touches it, a page at a time, and a new page costs as much as a
  small system call. Whoever writes most new files would pay for it, on a machine that has just started, and nobody on
  one that has been up for a while.
- ext4 without a journal does not give out the number of an inode again for five minutes, and looks at each of those
  whenever it makes one: after a large tree was removed (by tests, by a run before) a new file takes up to four times
  as long.
"""

from __future__ import annotations

import mmap
import os
import time

from bench.machine import mount, tell

_PAGE = 4096
_LEFT_BYTES = 2 << 30  # of free memory, for everybody else
_MOST_BYTES = 12 << 30
FORGOTTEN_S = 360.0  # after which ext4 has forgotten what was deleted


def touch_memory() -> None:
    """Free memory, once, up to what a run needs."""
    size = min(_free_bytes() - _LEFT_BYTES, _MOST_BYTES) // _PAGE * _PAGE
    if size <= 0:
        return
    started_s = time.monotonic()
    with mmap.mmap(-1, size) as memory:
        for at in range(0, size, _PAGE):
            memory[at] = 1
    tell(f"touched {size >> 30} GiB of free memory in {time.monotonic() - started_s:.0f} s")


def wait_for_inodes(folder: str, since_s: float) -> None:
    """Until nothing that was deleted before `since_s` (of time.monotonic) is in the way; only where it would be."""
    left_s = since_s + FORGOTTEN_S - time.monotonic()
    if left_s > 0 and _remembers_deleted(folder):
        tell(f"ext4 without a journal: waiting {left_s:.0f} s, until it has forgotten what was deleted before this run")
        time.sleep(left_s)


def _free_bytes() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            known = dict(line.split(":", 1) for line in file)
        return int(known["MemFree"].split()[0]) << 10
    except (OSError, KeyError, ValueError):  # not Linux
        return 0


def _remembers_deleted(folder: str) -> bool:
    kind, device, _ = mount(folder)
    journals = os.listdir("/proc/fs/jbd2") if os.path.isdir("/proc/fs/jbd2") else []
    return kind == "ext4" and not any(name.startswith(f"{os.path.basename(device)}-") for name in journals)
