"""Durable files: the only module that creates, renames, syncs and unlinks.

Callers name plain `str` paths from the root; no directory handle is kept (R4).

Every mutating call is one system call made through the seam, and every read that a decision rests on announces itself
there. Without a seam there is nothing in between: the names that every job needs are bound to the system calls
themselves (`_BARE`), because a Python function around a call costs a tenth of it.

R5: temporary names are random, exclusive and start with `TEMPORARY`, which no scan pattern matches; a file is synced
before it replaces another (`write_atomic(sync=True)`). Tests: tests/host/test_fs.py, tests/crash.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from farro.errors import DiskFull, StorageTrouble
from farro.host import syscalls
from farro.host.async_write import AsyncWriter
from farro.host.group_commit import GroupCommit
from farro.host.syscalls import BLOCK as BLOCK
from farro.host.syscalls import bypass_cache as bypass_cache
from farro.host.thread_turns import RESTING

T = TypeVar("T")

TEMPORARY = ".tmp-"  # no job, agent or role name may start with a dot

# Descriptors that Python opens are close-on-exec by themselves (PEP 446).
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_READ = os.O_RDONLY | _NOFOLLOW | getattr(os, "O_NONBLOCK", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | _NOFOLLOW

# Errors that may pass: a full disk that is being cleaned, a flaky device, a burst of open files.
TRANSIENT = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.EAGAIN})
if sys.platform == "win32":  # antivirus programs and indexers hold files for a moment
    TRANSIENT |= {errno.EACCES, errno.EBUSY}
WRITE_TRIES = 3


# --- the seam ----------------------------------------------------------------------------------------------------


class Seam(Protocol):
    """Intercept filesystem calls in a test, to kill, tear, delay and reorder them.

    A seam may raise instead of calling (a kill, an errno), call and then raise (an ambiguous error), write half (a torn
    file), record, or let another actor run first. Alternatives that fail: patching `os` misses calls made through other
    modules; a filesystem object passed to every function makes each of them take an argument that only tests vary.
    """

    def perform(self, op: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any: ...

    def look(self, op: str, path: str) -> None: ...


_seam: Seam | None = None


def _perform(op: str, call: Callable[..., T], *args: Any) -> T:
    """Make a mutating call, through the seam if there is one."""
    if _seam is None:
        return call(*args)
    result: T = _seam.perform(op, call, args)
    return result


def _look(op: str, path: str) -> None:
    """Tell the seam about a read whose result decides what happens next, so that tests can interleave there."""
    if _seam is not None:
        _seam.look(op, path)


def set_seam(seam: Seam | None) -> None:
    """Put a seam in place for this process (tests only); None removes it."""
    global _seam
    _seam = seam
    here = globals()
    for name, (bare, observed) in _BARE.items():
        if here[name] is (observed if seam is None else bare):  # else a test has replaced the function itself
            here[name] = bare if seam is None else observed


# --- transient errors --------------------------------------------------------------------------------------------


def remedy(code: int | None) -> str:
    """Say what helps against an error of the filesystem."""
    if code in (errno.ENOSPC, errno.EDQUOT):
        return "Free space or inodes (df -h, df -i; `farro prune` removes finished jobs)"
    if code in (errno.EMFILE, errno.ENFILE):
        return "Allow more open files (ulimit -n)"
    return "Check the device (dmesg)"


def trouble_for(error: OSError) -> type[StorageTrouble]:
    return DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageTrouble


def retried(call: Callable[[], T], path: str, pause: Callable[[float], None] | None = None) -> T:
    """Return what `call` returns; repeat it after a short pause while its error is transient, then raise
    StorageTrouble."""
    for attempt in range(1, WRITE_TRIES + 1):
        try:
            return call()
        except OSError as error:
            if error.errno not in TRANSIENT:
                raise
            if attempt == WRITE_TRIES:
                raise trouble_for(error)(
                    f"{path}: {error.strerror} after {WRITE_TRIES} tries; nothing was changed. "
                    f"{remedy(error.errno)}, then try again"
                ) from error
            if pause is not None:
                pause(0.05 * 4 ** (attempt - 1))
    raise AssertionError("unreachable")


# --- reading -----------------------------------------------------------------------------------------------------


def read_bytes(path: str, limit: int | None = None) -> bytes:
    """Return the bytes of a regular file, at most `limit` + 1 of them (so that the caller can detect "too long").

    Links are not followed and FIFOs and devices are refused: they would make farro read another file, or wait.
    """
    return read_with_status(path, limit)[0]


def read_with_status(path: str, limit: int | None = None) -> tuple[bytes, os.stat_result]:
    """Like `read_bytes`, with the status of the very file that was read, even if its name is another file's by now."""
    if _seam is not None:
        _look("read", path)
    fd = os.open(path, _READ)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        wanted = status.st_size if limit is None else min(status.st_size, limit + 1)
        data = os.read(fd, wanted)
        while len(data) < wanted and (chunk := os.read(fd, wanted - len(data))):
            data += chunk
        return data, status
    finally:
        os.close(fd)


def read_regular(path: str, limit: int) -> bytes:
    """Like `read_bytes`, for a file that a person named: links are followed, FIFOs and devices are still refused."""
    return read_bytes(os.path.realpath(path), limit)


def open_read(path: str) -> int:
    """Open a regular file (a step's stdin) or a folder (its lease) for reading. The caller closes the descriptor."""
    _look("read", path)
    fd = os.open(path, _READ)
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a planted FIFO would make its reader wait for ever
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return fd


def _read_at(fd: int, count: int, offset: int) -> bytes:
    before = os.lseek(fd, 0, os.SEEK_CUR)
    try:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, count)
    finally:
        os.lseek(fd, before, os.SEEK_SET)


# read_at(fd, count, offset): read at most `count` bytes from `offset` on, without moving the descriptor's position.
read_at: Callable[[int, int, int], bytes] = getattr(os, "pread", _read_at)


def open_folder(path: str) -> int:
    """Open a folder; NotADirectoryError for anything else. The caller closes the descriptor."""
    _look("read", path)
    return os.open(path, _READ | getattr(os, "O_DIRECTORY", 0))


def listdir(path: str) -> list[str]:
    """Return the names in a directory, in the order of the filesystem."""
    _look("list", path)
    return os.listdir(path)


def subdirectories(path: str) -> list[str]:
    """Return the names of the directories in `path` without temporary and hidden ones; [] if `path` is absent."""
    _look("list", path)
    try:
        with os.scandir(path) as entries:
            return [
                entry.name
                for entry in entries
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
            ]
    except FileNotFoundError:
        return []


def exists(path: str) -> bool:
    """Return whether the name exists, whatever it is. Raises OSError when that cannot be determined: `os.path.lexists`
    returns False then, and an I/O error would be taken for a fence."""
    if _seam is not None:
        _look("stat", path)
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def lstat(path: str) -> os.stat_result:
    _look("stat", path)
    return os.lstat(path)


def readlink(path: str) -> str | None:
    """Return the target of a symbolic link, or the content of the file that replaces one (see `symlink`); None when the
    name is absent."""
    _look("readlink", path)
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EINVAL and sys.platform != "win32":
            raise
        return read_bytes(path, 4096).decode("utf-8", "replace").strip()


# --- single mutating calls: one system call each -----------------------------------------------------------------


def mkdir(path: str) -> None:
    _perform("mkdir", os.mkdir, path, 0o777)


def mkdir_private(path: str) -> None:
    """Make a folder that only this user can enter."""
    _perform("mkdir", os.mkdir, path, 0o700)


def create_file(path: str, *, append: bool = False) -> int:
    """Create an empty file, open for writing; EEXIST when the name is taken, also by a link. The caller closes it."""
    return _perform("create", os.open, path, _CREATE | (os.O_APPEND if append else 0), 0o666)


def create_private(path: str, data: bytes) -> None:
    """Like `create`, readable by this user only, whatever folder it is moved to."""
    fd = _perform("create", os.open, path, _CREATE, 0o600)
    try:
        write(fd, data)
    finally:
        os.close(fd)


def open_append(path: str) -> int:
    """Open a log file for appending and reading; it is created if absent. The caller closes it."""
    return _perform("create", os.open, path, _APPEND, 0o666)


def open_lock(path: str) -> int:
    """Like `open_append`, for a file that only its owner and the owner's group can open: a process that can read a file
    can lock it. The caller closes it."""
    return _perform("create", os.open, path, _APPEND, 0o660)


def truncate(fd: int, size: int) -> None:
    _perform("truncate", os.ftruncate, fd, size)


def sync_descriptor(fd: int, path: str) -> None:
    """Sync an open file; OSError when the disk does not confirm."""
    _perform("fsync", _fsync, fd, path)


def write_through(fd: int, path: str, data: bytes, offset: int, begun: AsyncWriter | None = None) -> None:
    """Write `data` at `offset`; it is on the disk when this returns. A write and a sync in one call, or the end of a
    write that `begun` has under way. After an OSError it is unknown whether the data is on the disk."""
    _perform("write_sync", begun.end if begun else syscalls.write_through, fd, path, data, offset)


def can_write_through() -> bool:
    """Return whether this platform supports `write_through`."""
    return hasattr(os, "RWF_DSYNC")


def begin_write(ahead: AsyncWriter, fd: int, path: str, data: bytes, offset: int) -> None:
    """Begin a write; `write_through(..., begun=ahead)` returns when it is on the disk. OSError: it was not begun."""
    _perform("write_begun", ahead.begin, fd, path, data, offset)


def sync_filesystem(fd: int, path: str) -> None:
    """Return when everything written to the filesystem of `fd` (opened from `path`) before this call is on the disk.
    Raises OSError also for writes of other processes that failed since `fd` was opened: the kernel reports each failure
    once per open file."""
    _perform("syncfs", syscalls.sync_filesystem, fd, path)


def write(fd: int, data: bytes) -> None:
    """Write all of `data`; one call unless the kernel accepts less."""
    done = _perform("write", os.write, fd, data) if data else 0
    while done < len(data):
        done += _perform("write", os.write, fd, memoryview(data)[done:])


def symlink(target: str, path: str) -> None:
    """Create a link, complete when it appears; EEXIST when the name is taken. Windows: a file of one line."""
    if sys.platform == "win32":
        fd = create_file(path)
        try:
            write(fd, target.encode())
        finally:
            os.close(fd)
    else:
        _perform("symlink", os.symlink, target, path)


def link(source: str, path: str) -> None:
    """Give `source` a second name, also if it is a symbolic link itself; EEXIST when `path` is taken."""
    _perform("link", _link, source, path)


def unlink(path: str) -> None:
    _perform("unlink", os.unlink, path)


def rmdir(path: str) -> None:
    _perform("rmdir", os.rmdir, path)


def replace(source: str, path: str) -> None:
    """Replace a file atomically. The source must be synced first if power cuts must not lose it (R5)."""
    _perform("replace", os.replace, source, path)


def move(source: str, path: str) -> None:
    """Rename without replacing (R1, RELIABILITY 17): EEXIST when the destination exists, even as an empty folder."""
    _perform("move", syscalls.rename_noreplace, source, path)


def exchange(source: str, path: str) -> None:
    """Exchange two files atomically; EINVAL where the filesystem cannot."""
    _perform("exchange", syscalls.exchange, source, path)


def touch(fd: int) -> None:
    """Set the times of an open file to now. A heartbeat is a change of this time, never its value."""
    _perform("utime", os.utime, fd)


def set_mtime_ns(path: str, mtime_ns: int) -> None:
    _perform("utime", _set_mtime_ns, path, mtime_ns)


def _set_mtime_ns(path: str, mtime_ns: int) -> None:
    os.utime(path, ns=(mtime_ns, mtime_ns))


def set_mode(path: str, mode: int) -> None:
    _perform("chmod", os.chmod, path, mode)


# --- composed ----------------------------------------------------------------------------------------------------


def temporary(folder: str) -> str:
    """Return a new random name in `folder`."""
    return f"{folder}/{TEMPORARY}{os.urandom(8).hex()}"


def create(path: str, data: bytes) -> None:
    """Create a file with `data`; EEXIST when the name is taken. A crash may leave it empty or half written."""
    fd = create_file(path)
    try:
        write(fd, data)
    finally:
        os.close(fd)


def write_atomic(path: str, data: bytes, *, sync: bool, pause: Callable[[float], None] | None = None) -> None:
    """Replace the content of `path` by `data`, whole or not at all. Retried after transient errors.

    With `sync` the bytes are on the disk before the name shows them: without that a power cut may keep the rename and
    lose the bytes. Raises StorageTrouble after `WRITE_TRIES`; what was there before is intact.
    """
    retried(lambda: _write_atomic(path, data, sync), path, pause)


def _write_atomic(path: str, data: bytes, sync: bool) -> None:
    name = temporary(os.path.dirname(path))
    try:
        create(name, data)
        if sync:
            sync_all([name])
        replace(name, path)
    except OSError:
        with contextlib.suppress(OSError):
            unlink(name)
        raise


def swap_in(path: str, data: bytes, *, sync: bool) -> None:
    """Like `write_atomic` without retries: exchange the new file with the old one, then remove the old one.

    ext4 starts to write out a file that is renamed over another: 60 to 150 us of the 400 that a job costs there.
    """
    name = temporary(path.rsplit("/", 1)[0])
    try:
        create(name, data)
        if sync:
            sync_all([name])
        exchange(name, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            unlink(name)
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOENT):
            raise
        _write_atomic(path, data, sync)  # there is no old file, or this filesystem cannot exchange
        return
    unlink(name)


# --- syncing -----------------------------------------------------------------------------------------------------


_group = GroupCommit(lambda path: _sync_one(path))


def sync_all(paths: Iterable[str]) -> None:
    """Return when every named file and directory is on the disk as it is now; SyncFailed when one is not."""
    with RESTING:
        _group.sync(list(paths))


def _sync_one(path: str) -> None:
    if sys.platform == "win32" and os.path.isdir(path):
        return  # NTFS journals directory entries; FlushFileBuffers takes files only
    flags = os.O_RDWR if sys.platform == "win32" else os.O_RDONLY
    fd = os.open(path, flags | _NOFOLLOW)
    try:
        _perform("fsync", _fsync, fd, path)
    finally:
        os.close(fd)


def _fsync(fd: int, path: str) -> None:
    os.fsync(fd)


# --- without a seam ----------------------------------------------------------------------------------------------


def _link(source: str, path: str) -> None:
    os.link(source, path, follow_symlinks=False)


def _created(path: str, data: bytes) -> None:
    fd = os.open(path, _CREATE, 0o666)
    try:
        done = os.write(fd, data) if data else 0
        if done < len(data):
            write(fd, data[done:])
    finally:
        os.close(fd)


# Name → the function without a seam, the function with one.
_BARE: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "mkdir": (os.mkdir, mkdir),
    "create": (_created, create),
    "link": (_link, link),
    "unlink": (os.unlink, unlink),
    "rmdir": (os.rmdir, rmdir),
    "move": (syscalls.rename_noreplace, move),
    "exchange": (syscalls.exchange, exchange),
    "lstat": (os.lstat, lstat),
}
if sys.platform != "win32":
    _BARE["symlink"] = (os.symlink, symlink)
set_seam(None)
