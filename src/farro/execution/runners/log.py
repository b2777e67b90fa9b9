"""What a runner itself says (a tool's `print`, a traceback, a crash): `runner.log` in the attempt's folder, bounded.

What steps say has files of its own (execution); how it is shown lives in operations.logs.
"""

from __future__ import annotations

import os

from farro.host import fs

NAME = "runner.log"
LIMIT = 1 << 20  # bytes from the beginning; of what comes after them, only the end is kept
TAIL = 4096


class RunnerLog:
    """Written by the worker, as the runner speaks: a runner that talks for ever fills neither the disk nor memory. The
    file is made with the first byte, because most runners say nothing."""

    def __init__(self, folder: str, *, limit: int = LIMIT) -> None:
        self._path = f"{folder}/{NAME}"
        self._room = limit
        self._fd: int | None = None
        self._broken = False
        self._left_out = 0
        self._tail = b""

    def say(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-TAIL:]
        kept = data[: self._room]
        self._room -= len(kept)
        self._left_out += len(data) - len(kept)
        self._write(kept)

    def close(self) -> None:
        if self._left_out:
            end = self._tail[-min(len(self._tail), self._left_out) :]
            self._write(b"\n... %d bytes are left out here ...\n" % (self._left_out - len(end)) + end)
            self._left_out = 0
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            self._broken = True

    @property
    def files(self) -> tuple[str, ...]:
        """What there is of it, relative to the attempt's folder."""
        return (NAME,) if fs.exists(self._path) else ()

    @property
    def last_words(self) -> str:
        return self._tail.decode("utf-8", "replace").strip()

    def _write(self, data: bytes) -> None:
        """A disk that takes no log, or a job that was taken away, is told elsewhere."""
        if not data or self._broken:
            return
        try:
            if self._fd is None:
                self._fd = fs.create_file(self._path)
            fs.write(self._fd, data)
        except OSError:
            self._broken = True
