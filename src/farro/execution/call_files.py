"""The files that a function inside the worker is handed as its streams: none of them is made before it is used.

Calling the function lives in functions.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from farro.system import fs

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer


class Output(io.RawIOBase):
    """A stream of a call, whose file and folders are made when the first byte comes: most functions say nothing."""

    def __init__(self, path: str, make: Callable[[], None]) -> None:
        self._path = path
        self._make = make
        self._fd: int | None = None
        self.opened = False

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        # Not fs.write: what a step says is its own, as it is for a program that writes into its file.
        return os.write(self.fileno(), data)  # noqa: TID251

    def fileno(self) -> int:
        if self._fd is None:
            if self.closed:
                raise ValueError("I/O operation on a closed stream")
            self._fd = fs.retried(self._create, self._path, time.sleep)
            self.opened = True
        return self._fd

    def _create(self) -> int:
        self._make()
        folder = os.path.dirname(self._path)
        for path in (os.path.dirname(folder), folder):
            with contextlib.suppress(FileExistsError):
                fs.mkdir(path)
        return fs.create_file(self._path)

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
        super().close()


class Nothing(io.BytesIO):
    """An empty stdin. Only a tool that hands it to a process of its own costs a descriptor."""

    _fd: int | None = None

    def fileno(self) -> int:
        if self._fd is None:
            self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # noqa: TID251 - no file of farro's
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
        super().close()
