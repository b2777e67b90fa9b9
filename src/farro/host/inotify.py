"""inotify by ctypes: the kernel reports changes in a folder within about 0.2 ms and without idle cost.

Events are hints: after an overflow, and on filesystems that other machines write to, some are missing. So every watcher
also scans its folder from time to time.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
import threading
from typing import Any, NamedTuple

from farro.host import waiting

# <sys/inotify.h>
ATTRIB = 0x0000_0004
CLOSE_WRITE = 0x0000_0008
MOVED_FROM = 0x0000_0040
MOVED_TO = 0x0000_0080
CREATE = 0x0000_0100
DELETE = 0x0000_0200
Q_OVERFLOW = 0x0000_4000  # the queue was full: events are missing, scan the folder
IGNORED = 0x0000_8000  # the watch is gone: the folder was removed
ISDIR = 0x4000_0000

_HEADER = struct.Struct("iIII")  # wd, mask, cookie, length of the padded name
_BUFFER = 64 * 1024  # hundreds of events a read; the least the kernel accepts is one event of a 255-byte name


class InotifyEvent(NamedTuple):
    """One change. `name` is the entry in the watched folder; empty when the change is of the folder itself."""

    wd: int  # -1 for an overflow
    mask: int
    cookie: int  # the same for the two halves of one rename
    name: str

    @property
    def overflow(self) -> bool:
        return bool(self.mask & Q_OVERFLOW)


def available() -> bool:
    """Return whether this platform has inotify. Creating an instance may still fail (OSError: none left)."""
    return sys.platform.startswith("linux") and hasattr(os, "eventfd") and hasattr(_libc(), "inotify_init1")


class Inotify:
    """One inotify instance. One thread reads; any thread may watch, wake and close.

    Raises OSError from the constructor where there is no inotify (ENOSYS) or none left (EMFILE), and from `watch`
    where the folder is missing (ENOENT) or the user has no watches left (ENOSPC); the message says which setting.
    """

    def __init__(self) -> None:
        self._closed = True  # until both descriptors are there: __del__ runs also after a failed constructor
        if not available():
            raise OSError(errno.ENOSYS, f"inotify is not available on {sys.platform}; poll instead")
        self._libc = _libc()
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            code = ctypes.get_errno()
            hint = " (see fs.inotify.max_user_instances)" if code == errno.EMFILE else ""
            raise OSError(code, os.strerror(code) + hint)
        try:
            self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            os.close(self._fd)
            raise
        self._state = threading.Lock()  # guards _closed: without it `wake` could write into a reused descriptor
        self._reading = threading.Lock()
        self._closed = False

    def watch(self, path: str, mask: int) -> int:
        """Report the changes of `mask` in `path`; return the watch. Watching a path again replaces its mask."""
        with self._state:
            self._check_open()
            wd = int(self._libc.inotify_add_watch(self._fd, os.fsencode(path), mask))
            code = ctypes.get_errno()
        if wd < 0:
            hint = " (see fs.inotify.max_user_watches)" if code == errno.ENOSPC else ""
            raise OSError(code, os.strerror(code) + hint, path)
        return wd

    def read(self, timeout_s: float | None) -> list[InotifyEvent]:
        """Wait for events and return those queued; [] after the timeout (None: no timeout), `wake` or `close`."""
        with self._reading:
            self._check_open()
            if timeout_s is not None and timeout_s <= 0:
                return self._read_now()  # a worker reads at every claim: one system call instead of three
            ready = waiting.readable([self._fd, self._wake_fd], timeout_s)
            if self._wake_fd in ready:
                os.eventfd_read(self._wake_fd)
            # An IGNORED event can be coalesced away between poll and read: then nothing is there after all.
            return self._read_now() if self._fd in ready else []

    def _read_now(self) -> list[InotifyEvent]:
        try:
            return _parse(os.read(self._fd, _BUFFER))
        except BlockingIOError:
            return []

    def fileno(self) -> int:
        """Return a descriptor that is readable when there are events, for loops that poll several. `wake` does not
        make it readable."""
        return int(self._fd)

    def wake(self) -> None:
        """Make the read that is blocked, else the next one, return at once. After `close` nothing happens."""
        with self._state:
            if not self._closed:
                os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """Release everything; a blocked `read` returns first. Closing twice is no error."""
        with self._state:
            if self._closed:
                return
            self._closed = True
            os.eventfd_write(self._wake_fd, 1)
        with self._reading:  # the reader must have returned before its descriptors can be reused
            os.close(self._fd)
            os.close(self._wake_fd)

    def __enter__(self) -> Inotify:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed:
            self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("this Inotify is closed")


def _parse(data: bytes) -> list[InotifyEvent]:
    events = []
    at, end, head = 0, len(data), _HEADER.size
    while at < end:
        wd, mask, cookie, length = _HEADER.unpack_from(data, at)
        at += head
        name = data[at : at + length].rstrip(b"\0")
        events.append(InotifyEvent(wd, mask, cookie, name.decode() if name.isascii() else os.fsdecode(name)))
        at += length
    return events


def _libc() -> Any:
    # CDLL(None) is the running program itself: no search for a file named libc, and musl works as glibc does.
    return ctypes.CDLL(None, use_errno=True)
