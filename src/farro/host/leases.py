"""Leases: liveness that the kernel keeps. A lease is an flock on a file; it is released when its holder dies.

R3: PID, start time and boot id are written into the file for people and for killing a hung process; they never decide
whether a process is dead. A lease is never inherited: descriptors are close-on-exec, and in a child of a bare fork
(multiprocessing inside a Python tool) a fork hook closes them. Without it a forked child keeps a dead agent alive.
Tests: tests/host/test_leases.py.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator

from farro.host import fs, machine

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_PAUSE_S = 0.002
_held: set[int] = set()  # descriptors of every lease of this process
_opening: list[str] = []  # paths that are being opened and whose descriptors are not yet in `_held`


def _forget_after_fork() -> None:
    for fd in _held:
        with contextlib.suppress(OSError):
            os.close(fd)
    _held.clear()
    if _opening and os.path.isdir("/proc/self/fd"):
        _close_half_opened({os.path.realpath(path) for path in _opening})
    _opening.clear()


def _close_half_opened(paths: set[str]) -> None:
    """Close, in a child forked while another thread opened a lease, the descriptor that is not in `_held` yet."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}") in paths:
                os.close(fd)


@contextlib.contextmanager
def _becoming_a_lease(path: str) -> Iterator[None]:
    _opening.append(path)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # already removed in a forked child
            _opening.remove(path)


machine.run_after_fork(_forget_after_fork)


class Lease:
    """A lock on a file (or on a folder in staging), held until `drop` or the death of this process."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd
        _held.add(fd)

    def beat(self) -> None:
        """Send a heartbeat: the file's time changes. A watchdog observes the change on its own clock."""
        fs.touch(self.fd)

    def stands(self) -> bool:
        """Return whether the file still has a name: a process that declares the holder dead removes it."""
        return self.fd >= 0 and os.fstat(self.fd).st_nlink > 0

    def drop(self) -> None:
        fd, self.fd = self.fd, -1  # reset first: a second drop would close a descriptor that reused the number
        if fd in _held:
            _held.discard(fd)
            os.close(fd)


def create(path: str, content: bytes) -> Lease:
    """Create a lease file with `content`, locked before another process can know its name."""
    with _becoming_a_lease(path):
        fd = fs.create_file(path)
        try:
            _lock(fd)
            fs.write(fd, content)
        except BaseException:
            os.close(fd)
            raise
        return Lease(fd)


def take(path: str) -> Lease | None:
    """Take the lease at `path`; None if a live process holds it. FileNotFoundError when it is gone."""
    with _becoming_a_lease(path):
        fd = fs.open_read(path)
        try:
            if not _locked(fd):
                os.close(fd)
                return None
            # A process that recovered the folder meanwhile has unlinked the file: then this locks nothing.
            if fs.lstat(path).st_ino != os.fstat(fd).st_ino:
                raise FileNotFoundError(path)
        except BaseException:  # a descriptor left open would hold the lease as long as this process lives
            os.close(fd)
            raise
        return Lease(fd)


def take_new(path: str) -> Lease | None:
    """Like `take`, for a folder that the caller has just made under a random name. Whether it still exists is not
    checked: filling it fails if it is gone."""
    with _becoming_a_lease(path):
        fd = fs.open_folder(path)
        if _locked(fd):
            return Lease(fd)
        os.close(fd)
        return None


def _locked(fd: int) -> bool:
    try:
        _lock(fd)
    except OSError:
        return False
    return True


def adopt(fd: int) -> Lease:
    """Adopt a lease that this process inherited: its parent took it, and both hold it (one lock, two descriptors)."""
    os.set_inheritable(fd, False)
    return Lease(fd)


@contextlib.contextmanager
def exclusively(path: str, *, listening: bool = False) -> Iterator[None]:
    """Wait for the lock on a file and hold it for a moment. The file is created if absent. Other users of the machine
    cannot open it: one that held the lock would block every process.

    `listening`: poll for the lock, because a thread that waits in the kernel cannot be interrupted by an exception.
    """
    with _becoming_a_lease(path):
        lease = Lease(fs.open_lock(path))
    try:
        while listening and not _locked(lease.fd):
            time.sleep(_PAUSE_S)
        if not listening:
            _lock(lease.fd, wait=True)
        yield
    finally:
        lease.drop()


def is_held(path: str) -> bool:
    """Return whether a live process holds the lease at `path`; False for an absent lease."""
    try:
        lease = take(path)
    except FileNotFoundError:
        return False
    if lease is None:
        return True
    lease.drop()
    return False


if sys.platform == "win32":

    def _lock(fd: int, *, wait: bool = False) -> None:
        os.lseek(fd, 1 << 30, os.SEEK_SET)  # beyond the content, so that other processes can read it
        msvcrt.locking(fd, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)

else:

    def _lock(fd: int, *, wait: bool = False) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


FOLDERS = sys.platform != "win32"  # whether a folder can be leased
