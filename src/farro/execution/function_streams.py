"""The files that a function inside the worker is handed as its streams: none of them is made before it is used.

Calling the function lives in functions.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

from farro.host import fs

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
            self._fd = os.open(os.devnull, os.O_RDONLY)  # noqa: TID251 - no file of farro's
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
        super().close()


class CallFiles:
    """The three streams of one call, each made when somebody asks for it: most functions ask for none of them.

    From any thread of the function's, also after `close`: whoever is late gets one that is closed.
    """

    __slots__ = ("_closed", "_files", "_make", "_outputs", "_stderr", "_stdout")

    def __init__(self, stdin: BinaryIO | None, stdout: str, stderr: str, make: Callable[[], None]) -> None:
        """`stdin` None: an empty one. The others by path; `make` makes the attempt's folder."""
        self._files: dict[str, BinaryIO] = {} if stdin is None else {"stdin": stdin}
        self._stdout, self._stderr, self._make = stdout, stderr, make
        self._outputs: list[Output] = []
        self._closed = False

    @property
    def stdin(self) -> BinaryIO:
        return self._files.get("stdin") or self._kept("stdin", Nothing())

    @property
    def stdout(self) -> BinaryIO:
        return self._files.get("stdout") or self._kept("stdout", self._output(self._stdout))

    @property
    def stderr(self) -> BinaryIO:
        return self._files.get("stderr") or self._kept("stderr", self._output(self._stderr))

    def _output(self, path: str) -> BinaryIO:
        raw = Output(path, self._make)
        self._outputs.append(raw)
        return io.BufferedWriter(raw)

    def _kept(self, name: str, file: BinaryIO) -> BinaryIO:
        kept = self._files.setdefault(name, file)  # atomic: of two threads one was first
        if self._closed:
            kept.close()
        return kept

    @property
    def silent(self) -> bool:
        """Whether nothing was said, on neither stream: then there are no files of it."""
        return not any(output.opened for output in self._outputs)

    def finish(self, say: Callable[[str], None]) -> bool:
        """Close them; whether all that was said has reached its file. If not, `say` is told why."""
        self._closed = whole = True
        for name in ("stdin", "stdout", "stderr"):
            file = self._files.get(name)
            try:
                if file is not None:
                    file.close()
            except OSError as error:  # the last bytes did not: a full disk
                whole = False
                say(f"{error}\n")
        return whole

    def close(self) -> None:
        """Whatever that meets: whoever waits must be told of the end."""
        self._closed = True
        for file in list(self._files.values()):
            with contextlib.suppress(BaseException):
                file.close()
