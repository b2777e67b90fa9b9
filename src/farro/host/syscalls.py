"""System calls that Python lacks, as plain functions. Only fs calls them, through its seam."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import threading

if sys.platform != "win32":
    import fcntl

BLOCK = 4096
_AT_FDCWD = -100
_NOREPLACE = 1
_EXCHANGE = 2
_ENCODING, _ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()


class _Scratch(threading.local):
    """Memory aligned to a page, as writes that bypass the page cache require."""

    pages: mmap.mmap | None = None


_scratch = _Scratch()


def _aligned(data: bytes) -> memoryview:
    """Return an aligned copy of `data`, valid until the next call of this thread."""
    pages = _scratch.pages
    if pages is None or len(pages) < len(data):
        pages = _scratch.pages = mmap.mmap(-1, max(len(data), 16 * BLOCK))
    pages[: len(data)] = data
    return memoryview(pages)[: len(data)]


def bypass_cache(fd: int, whether: bool) -> bool:
    """Let writes to `fd` bypass the page cache (or use it again); return whether they do. They must be whole blocks."""
    flag = getattr(os, "O_DIRECT", 0)
    if not flag:
        return False
    try:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~flag
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | (flag if whether else 0))
    except OSError:  # a filesystem without direct I/O
        return False
    return whether


def write_through(fd: int, path: str, data: bytes, offset: int) -> None:
    """Write `data` at `offset` and return when it is on the disk."""
    view = _aligned(data) if len(data) % BLOCK == 0 else memoryview(data)
    while view:
        done = os.pwritev(fd, [view], offset, os.RWF_DSYNC)
        view, offset = view[done:], offset + done


if sys.platform == "linux":
    _libc = ctypes.CDLL(None, use_errno=True)
    _renameat2 = _libc.renameat2
    _renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]

    def rename_noreplace(source: str, path: str) -> None:
        _rename(source, path, _NOREPLACE)

    def exchange(source: str, path: str) -> None:
        """Exchange two names atomically."""
        _rename(source, path, _EXCHANGE)

    def _rename(source: str, path: str, flags: int) -> None:
        # What os.fsencode does, which takes twice as long because it checks the types.
        one, other = source.encode(_ENCODING, _ERRORS), path.encode(_ENCODING, _ERRORS)
        if _renameat2(_AT_FDCWD, one, _AT_FDCWD, other, flags) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), source, None, path)

    def sync_filesystem(fd: int, path: str) -> None:
        """Return when everything written to the filesystem of `fd` before is on the disk."""
        if _libc.syncfs(fd) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), path)

else:

    def rename_noreplace(source: str, path: str) -> None:
        # Windows' rename never replaces. Elsewhere this leaves a race; farro is promised on Linux only (DESIGN §13).
        if sys.platform != "win32" and os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), source, None, path)
        os.rename(source, path)  # noqa: TID251 - part of fs

    def exchange(source: str, path: str) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), source, None, path)

    def sync_filesystem(fd: int, path: str) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), path)
