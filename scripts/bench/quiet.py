"""Prepare memory and disk before a run, so that their costs do not fall on one contestant alone.

- A virtual machine gets each page of memory at its first use, which costs as much as a small system call. On a machine
  that has just started, the contestant that writes most new files would pay for it; on an older one, none would.
- ext4 without a journal reuses an inode number only after five minutes, and examines all recently freed ones whenever
  it creates a file. After a large tree was removed (by tests, by an earlier run), a new file takes up to four times as
  long.
"""

from __future__ import annotations

import mmap
import os
import time

from bench.machine import mount, tell

_PAGE = 4096
_LEFT_BYTES = 2 << 30  # of free memory that stays untouched, for other processes
_MOST_BYTES = 12 << 30
FORGOTTEN_S = 360.0  # after this time ext4 no longer examines deleted inodes


def touch_memory() -> None:
    """Touch free memory once, up to what a run needs."""
    size = min(_free_bytes() - _LEFT_BYTES, _MOST_BYTES) // _PAGE * _PAGE
    if size <= 0:
        return
    started_s = time.monotonic()
    with mmap.mmap(-1, size) as memory:
        for at in range(0, size, _PAGE):
            memory[at] = 1
    tell(f"touched {size >> 30} GiB of free memory in {time.monotonic() - started_s:.0f} s")


def wait_for_inodes(folder: str, since_s: float) -> None:
    """Wait until files deleted before `since_s` (of time.monotonic) slow nothing down, on filesystems where they do."""
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
