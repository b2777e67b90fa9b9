"""Asynchronous writes: begun by one call, on the disk when another returns.

Linux's own asynchronous I/O (io_submit) on a file that bypasses the page cache. It needs no thread, and a caller that
has other work meanwhile finds the write done and never sleeps. A synchronous write puts the caller to sleep and wakes
it on a processor whose caches are cold.

- One write at a time: beginning another waits for the one before, even if no one called `end` for it.
  [test_an_unawaited_write_ends_before_the_next_begins]
- Where the kernel or the container does not permit it, `async_writer` returns None, and callers write synchronously.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys

from farro.host import syscalls

# io_setup, io_destroy, io_getevents, io_submit; the layout of a request below is a little-endian machine's.
_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2), "riscv64": (0, 1, 4, 2)}
_PWRITE = 1
_LARGEST = 64 << 10  # a larger write takes longer than any work that could be done meanwhile


class _Request(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("fd", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("event_fd", ctypes.c_uint32),
    )


class _Answer(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class AsyncWriter:
    """Writes to one file, from one thread at a time. Unusable after a fork: a child has the memory, not the kernel's
    context."""

    def __init__(self, call: ctypes._NamedFuncPointer, numbers: tuple[int, int, int, int]) -> None:
        self._call = call
        self._setup, self._destroy, self._events, self._submit = numbers
        self._context = ctypes.c_ulong(0)
        self._under_way = False
        self._check(call(self._setup, 1, ctypes.byref(self._context)))
        self._pages = mmap.mmap(-1, _LARGEST)
        self._request = _Request(opcode=_PWRITE, rw_flags=os.RWF_DSYNC)
        self._request.buffer = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        self._requests = (ctypes.POINTER(_Request) * 1)(ctypes.pointer(self._request))
        self._answer = _Answer()

    @staticmethod
    def accepts(data: bytes) -> bool:
        return len(data) <= _LARGEST and len(data) % syscalls.BLOCK == 0

    def begin(self, fd: int, path: str, data: bytes, offset: int) -> None:
        """Begin a write. OSError: it was not begun."""
        self.finish()
        self._pages[: len(data)] = data
        self._request.fd, self._request.length, self._request.offset = fd, len(data), offset
        self._check(self._call(self._submit, self._context, 1, self._requests))
        self._under_way = True

    def end(self, fd: int, path: str, data: bytes, offset: int) -> None:
        """Return when the write is on the disk. After an OSError it is unknown whether it is."""
        written = self._ended()
        if written < 0:
            raise OSError(-written, os.strerror(-written), path)
        if written != len(data):
            syscalls.write_through(fd, path, data, offset)

    def finish(self) -> None:
        """Wait until no write is under way, however the last one ended."""
        if self._under_way:
            self._ended()

    def close(self) -> None:
        context, self._context = self._context, ctypes.c_ulong(0)
        if context.value:
            self._call(self._destroy, context)  # waits for a write that is under way
            self._under_way = False

    def __del__(self) -> None:
        self.close()

    def _ended(self) -> int:
        while True:
            try:
                self._check(self._call(self._events, self._context, 1, 1, ctypes.byref(self._answer), None))
            except InterruptedError:
                continue
            self._under_way = False
            return int(self._answer.result)

    @staticmethod
    def _check(answer: int) -> None:
        if answer < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))


def async_writer() -> AsyncWriter | None:
    """Return a new writer; None where this machine has no asynchronous writes or does not permit them."""
    numbers = _NUMBERS.get(os.uname().machine) if sys.platform == "linux" and sys.byteorder == "little" else None
    if numbers is None:
        return None
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    try:
        return AsyncWriter(call, numbers)
    except OSError as error:
        if error.errno == errno.EINTR:
            return async_writer()
        return None
