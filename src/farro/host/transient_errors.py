"""Trouble of a filesystem that may pass, and trying again.

What an error means to a transaction is decided where it happens; what is tried lives in fs and in the stores.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from typing import TypeVar

from farro.errors import StorageTrouble

T = TypeVar("T")

# What may pass: a full disk that is being cleaned, a flaky device, a burst of open files.
PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.EAGAIN})
if sys.platform == "win32":  # antivirus and indexers hold files for a moment
    PASSING |= {errno.EACCES, errno.EBUSY}
WRITE_TRIES = 3


def remedy(code: int | None) -> str:
    """What helps against an error of the filesystem."""
    if code in (errno.ENOSPC, errno.EDQUOT):
        return "Free space or inodes (df -h, df -i; `farro prune` removes finished jobs)"
    if code in (errno.EMFILE, errno.ENFILE):
        return "Allow more open files (ulimit -n)"
    return "Check the device (dmesg)"


def retried(call: Callable[[], T], path: str, pause: Callable[[float], None] | None = None) -> T:
    """`call`, again after a short pause when the filesystem's trouble may pass; then StorageTrouble."""
    for attempt in range(1, WRITE_TRIES + 1):
        try:
            return call()
        except OSError as error:
            if error.errno not in PASSING:
                raise
            if attempt == WRITE_TRIES:
                raise StorageTrouble(
                    f"{path}: {error.strerror} after {WRITE_TRIES} tries; nothing was changed. "
                    f"{remedy(error.errno)}, then try again"
                ) from error
            if pause is not None:
                pause(0.05 * 4 ** (attempt - 1))
    raise AssertionError("unreachable")
