"""Leases: liveness that the kernel keeps. A lease is an flock on a file; it drops when its holder dies.

Who holds which lease, and what it means for a job, lives in the stores.

R3: PID, start time and boot id are written into the file for people and for killing a hung process; they never decide
death. A lease is never inherited: descriptors are close-on-exec, and a bare fork (multiprocessing inside a Python tool)
closes them in the child through `os.register_at_fork`: without that guard a forked child keeps a dead agent alive.
Tests: tests/host/test_leases.py.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator

from farro.host import fs

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_PAUSE_S = 0.002
_held: set[int] = set()  # descriptors of every lease of this process
_opening: list[str] = []  # what is open, or about to be, and not yet in `_held`


def _forget_after_fork() -> None:
    for fd in _held:
        with contextlib.suppress(OSError):
            os.close(fd)
    _held.clear()
    if _opening and os.path.isdir("/proc/self/fd"):
        _close_half_opened({os.path.realpath(path) for path in _opening})
    _opening.clear()


def _close_half_opened(paths: set[str]) -> None:
    """Another thread forked while a lease was being opened: the child has a descriptor that nobody has noted yet."""
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
        with contextlib.suppress(ValueError):  # gone in a forked child, where nothing becomes a lease any more
            _opening.remove(path)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


class Lease:
    """A lock on a file (or on a folder in staging), held until `drop` or the death of this process."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd
        _held.add(fd)

    def beat(self) -> None:
        """One heartbeat: the file's time changes. A watchdog watches for the change on its own clock."""
        fs.touch(self.fd)

    def stands(self) -> bool:
        """Whether the file has a name yet: whoever declares its holder dead removes it."""
        return self.fd >= 0 and os.fstat(self.fd).st_nlink > 0

    def drop(self) -> None:
        fd, self.fd = self.fd, -1  # forgotten first: dropped twice, it would close whoever has the number by then
        if fd in _held:
            _held.discard(fd)
            os.close(fd)


def create(path: str, content: bytes) -> Lease:
    """A new lease file with `content`, locked before anyone else can know its name (the caller built its folder)."""
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
    """The lease at `path` if nobody alive holds it; None if somebody does. FileNotFoundError when it is gone."""
    with _becoming_a_lease(path):
        fd = fs.open_read(path)
        try:
            if not _locked(fd):
                os.close(fd)
                return None
            # Whoever recovered the folder meanwhile has unlinked the file: then this is a lock on nothing.
            if fs.lstat(path).st_ino != os.fstat(fd).st_ino:
                raise FileNotFoundError(path)
        except BaseException:  # whatever it was: a descriptor left open would hold the lease for as long as we live
            os.close(fd)
            raise
        return Lease(fd)


def take_new(path: str) -> Lease | None:
    """As `take`, of a folder that the caller has just made under a random name and goes on to fill: should it be gone,
    that says so."""
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
    """A lease that this process was started with: its parent took it, and both hold it (one lock, two descriptors)."""
    os.set_inheritable(fd, False)
    return Lease(fd)


@contextlib.contextmanager
def exclusively(path: str, *, listening: bool = False) -> Iterator[None]:
    """Wait for, and hold, the lock on a file that is made if it is not there: for moments, not for lifetimes.
    Other users of the machine cannot open it: one that held it would keep everybody waiting.

    `listening`: it is asked for again and again, because who waits inside the kernel hears no exception for its thread.
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
    """Whether somebody alive holds the lease at `path`; an absent lease is held by nobody."""
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
        os.lseek(fd, 1 << 30, os.SEEK_SET)  # beyond the content, so that others may read it
        msvcrt.locking(fd, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)

else:

    def _lock(fd: int, *, wait: bool = False) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


FOLDERS = sys.platform != "win32"  # whether a folder itself can be leased
