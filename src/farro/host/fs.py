"""Durable files, once: the only module that creates, renames, syncs and unlinks.

Nothing here knows what a job is. Callers name plain `str` paths from the root; no directory handle is kept (R4).

Every mutating call is one system call made through the seam (system.seam), and every look at the disk that a decision
rests on announces itself there. Without a seam there is nothing between: the names that every job needs are bound to
the system calls themselves (`_BARE`), for a Python function around a call costs a tenth of it.

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
from typing import Any, TypeVar

from farro.host import seam, syscalls
from farro.host.async_write import AsyncWriter
from farro.host.group_commit import GroupCommit
from farro.host.seam import Seam as Seam
from farro.host.seam import look as _look
from farro.host.seam import perform as _perform
from farro.host.syscalls import BLOCK as BLOCK
from farro.host.syscalls import pass_the_cache as pass_the_cache
from farro.host.thread_turns import RESTING
from farro.host.transient_errors import PASSING as PASSING
from farro.host.transient_errors import WRITE_TRIES as WRITE_TRIES
from farro.host.transient_errors import retried as retried

T = TypeVar("T")

TEMPORARY = ".tmp-"  # no job, agent or role name may start with a dot

# Descriptors that Python opens are close-on-exec by themselves (PEP 446).
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_READ = os.O_RDONLY | _NOFOLLOW | getattr(os, "O_NONBLOCK", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | _NOFOLLOW


def set_seam(placed: Seam | None) -> None:
    """Put a seam in place for this process (tests only); None takes it away."""
    seam.placed = placed
    here = globals()
    for name, (bare, seen) in _BARE.items():
        if here[name] is (seen if placed is None else bare):  # else somebody has put something of his own there
            here[name] = bare if placed is None else seen


# --- looking -----------------------------------------------------------------------------------------------------


def read_bytes(path: str, limit: int | None = None) -> bytes:
    """The bytes of a regular file, at most `limit` + 1 of them (so that the caller can tell "too long").

    Links are not followed and FIFOs and devices are refused: nobody can make farro read something else, or wait.
    """
    return read_with_status(path, limit)[0]


def read_with_status(path: str, limit: int | None = None) -> tuple[bytes, os.stat_result]:
    """As `read_bytes`, with what `lstat` says of that very file, whatever has replaced it meanwhile."""
    if seam.placed is not None:
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
    """As `read_bytes`, for a file that a person named: links are followed, FIFOs and devices are still refused."""
    return read_bytes(os.path.realpath(path), limit)


def open_read(path: str) -> int:
    """A descriptor for reading a regular file (a step's stdin) or a folder (its lease). The caller closes it."""
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


# At most `count` bytes from `offset` on, without moving the descriptor's position. Bound to the system call itself.
read_at: Callable[[int, int, int], bytes] = getattr(os, "pread", _read_at)


def open_folder(path: str) -> int:
    """A descriptor of a folder, and of nothing else. The caller closes it."""
    _look("read", path)
    return os.open(path, _READ | getattr(os, "O_DIRECTORY", 0))


def listdir(path: str) -> list[str]:
    """The names in a directory, in the order of the filesystem."""
    _look("list", path)
    return os.listdir(path)


def subdirectories(path: str) -> list[str]:
    """The names of the directories in `path`, temporary and hidden ones left out; an absent `path` has none."""
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
    """Whether the name is there, whatever it is. OSError when nobody can say: `os.path.lexists` calls that "no", and an
    I/O error would pass for a fence."""
    if seam.placed is not None:
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
    """What a symbolic link says, or the first line of the file that stands for one; None when there is nothing."""
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
    """A folder that nobody else can look into."""
    _perform("mkdir", os.mkdir, path, 0o700)


def create_file(path: str, *, append: bool = False) -> int:
    """A new, empty file, opened for writing; EEXIST when the name is taken, by a link also. The caller closes it."""
    return _perform("create", os.open, path, _CREATE | (os.O_APPEND if append else 0), 0o666)


def create_private(path: str, data: bytes) -> None:
    """As `create`, and nobody else can read it, whatever folder it comes to lie in."""
    fd = _perform("create", os.open, path, _CREATE, 0o600)
    try:
        write(fd, data)
    finally:
        os.close(fd)


def open_append(path: str) -> int:
    """A log file, made if it is not there, that is written at its end and can be read. The caller closes it."""
    return _perform("create", os.open, path, _APPEND, 0o666)


def open_lock(path: str) -> int:
    """As `open_append`, a file that nobody but its owner and the owner's group can open: whoever can so much as read a
    file can lock it. The caller closes it."""
    return _perform("create", os.open, path, _APPEND, 0o660)


def truncate(fd: int, size: int) -> None:
    _perform("truncate", os.ftruncate, fd, size)


def sync_descriptor(fd: int, path: str) -> None:
    """Sync an open file; OSError when the disk does not confirm."""
    _perform("fsync", _fsync, fd, path)


def write_through(fd: int, path: str, data: bytes, offset: int, begun: AsyncWriter | None = None) -> None:
    """`data` at `offset`, on the disk when this returns: a write and a sync in one call, or the end of what was begun.
    OSError: nobody knows."""
    _perform("write_sync", begun.end if begun else syscalls.write_through, fd, path, data, offset)


def can_write_through() -> bool:
    """Return whether this platform has `write_through`."""
    return hasattr(os, "RWF_DSYNC")


def begin_write(ahead: AsyncWriter, fd: int, path: str, data: bytes, offset: int) -> None:
    """As `write_through`, which returns when what is only begun here is on the disk. OSError: not begun."""
    _perform("write_begun", ahead.begin, fd, path, data, offset)


def sync_filesystem(fd: int, path: str) -> None:
    """Return when everything written to the filesystem of `fd`, which is `path`, before this call is on the disk.
    OSError also for what failed since `fd` was opened, by whomever: the kernel tells each open file once."""
    _perform("syncfs", syscalls.sync_filesystem, fd, path)


def write(fd: int, data: bytes) -> None:
    """All of `data`; one call unless the kernel takes less."""
    done = _perform("write", os.write, fd, data) if data else 0
    while done < len(data):
        done += _perform("write", os.write, fd, memoryview(data)[done:])


def symlink(target: str, path: str) -> None:
    """An exclusive link that is complete when it appears; where there are no links, an exclusive file of one line."""
    if sys.platform == "win32":
        fd = create_file(path)
        try:
            write(fd, target.encode())
        finally:
            os.close(fd)
    else:
        _perform("symlink", os.symlink, target, path)


def link(source: str, path: str) -> None:
    """A second name of `source` itself, also where that is a symbolic link; EEXIST when `path` is taken."""
    _perform("link", _link, source, path)


def unlink(path: str) -> None:
    _perform("unlink", os.unlink, path)


def rmdir(path: str) -> None:
    _perform("rmdir", os.rmdir, path)


def replace(source: str, path: str) -> None:
    """Atomic replacement of a file. The source must be synced if the promise reaches to power cuts (R5)."""
    _perform("replace", os.replace, source, path)


def move(source: str, path: str) -> None:
    """Rename that never replaces (R1, RELIABILITY 17): EEXIST when the destination is there, an empty folder also."""
    _perform("move", syscalls.rename_noreplace, source, path)


def exchange(source: str, path: str) -> None:
    """Two files change places at once; EINVAL where the filesystem cannot."""
    _perform("exchange", syscalls.exchange, source, path)


def touch(fd: int) -> None:
    """Set the times of an open file to now: a heartbeat is a change of this time, never its value."""
    _perform("utime", os.utime, fd)


def set_mtime_ns(path: str, mtime_ns: int) -> None:
    _perform("utime", _set_mtime_ns, path, mtime_ns)


def _set_mtime_ns(path: str, mtime_ns: int) -> None:
    os.utime(path, ns=(mtime_ns, mtime_ns))


def set_mode(path: str, mode: int) -> None:
    _perform("chmod", os.chmod, path, mode)


# --- composed ----------------------------------------------------------------------------------------------------


def temporary(folder: str) -> str:
    """A new name in `folder` that nobody else can have chosen."""
    return f"{folder}/{TEMPORARY}{os.urandom(8).hex()}"


def create(path: str, data: bytes) -> None:
    """A new file with `data`; EEXIST when the name is taken. A crash may leave it empty or half written."""
    fd = create_file(path)
    try:
        write(fd, data)
    finally:
        os.close(fd)


def write_atomic(path: str, data: bytes, *, sync: bool, pause: Callable[[float], None] | None = None) -> None:
    """Replace `path` by `data`, whole or not at all. Retried on a new temporary file when the trouble may pass.

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
    """As `write_atomic`, once: the new file and the old one change places, then the old one goes.

    ext4 begins to write out a file that is renamed over another: 60 to 150 us of the 400 that a job costs there.
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
        _write_atomic(path, data, sync)  # there is no old one, or this filesystem cannot
        return
    unlink(name)


# --- syncing -----------------------------------------------------------------------------------------------------


_group = GroupCommit(lambda path: _sync_one(path))


def sync_all(paths: Iterable[str]) -> None:
    """Return when every named file and directory is on the disk, as it is now; SyncFailed when one is not."""
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


# What each name is without a seam, and with one.
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
