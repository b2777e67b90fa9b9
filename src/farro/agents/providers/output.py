"""What a program says, in files that have no name any more: whenever this worker dies, nothing of it stays on the disk.

Who runs the program lives in cli and worktrees.
"""

from __future__ import annotations

import contextlib
import os
import re

from farro.agents.providers.port import OutputSink
from farro.host import fs

LIMIT = 16 << 20  # bytes of an answer that are read
_SAID = 2000  # characters of stderr in a message


class ProgramOutput:
    """The two files of a program, whose names go as soon as it has them."""

    def __init__(self, folder: str, *, read_along: int = 0) -> None:
        self.answer = f"{folder}/answer.tmp"
        self.errors = f"{folder}/errors.tmp"
        self._fds: list[int] = []  # of the answer and of the errors
        self._read_along = read_along  # which of the two
        self._passed = 0

    def __enter__(self) -> ProgramOutput:
        self._remove()
        return self

    def __exit__(self, *exception: object) -> None:
        self._remove()
        for fd in self._fds:
            os.close(fd)

    def forget_names(self) -> None:
        for path in (self.answer, self.errors):
            self._fds.append(fs.open_read(path))
        self._remove()

    def texts(self) -> tuple[str, str]:
        """The answer, and the end of what else it said."""
        return self.data(LIMIT).decode("utf-8", "replace"), self.last_words()

    def data(self, most: int) -> bytes:
        """The answer as it is, so many bytes of it at most."""
        pieces, at = [], 0
        while at < most and (piece := os.pread(self._fds[0], min(most - at, 1 << 20), at)):
            pieces.append(piece)
            at += len(piece)
        return b"".join(pieces)

    def last_words(self) -> str:
        """The end of what it said beside its answer."""
        fd = self._fds[1]
        begin = max(os.fstat(fd).st_size - 4 * _SAID - 4, 0)
        return end_of(os.pread(fd, 4 * _SAID + 4, begin).decode("utf-8", "replace"), _SAID)

    def too_long(self, most: int) -> bool:
        return max(os.fstat(fd).st_size for fd in self._fds) > most

    def pass_on(self, partial: OutputSink) -> None:
        """What came since the last time, for people who read along."""
        with contextlib.suppress(ValueError):  # who read along has left
            while piece := os.pread(self._fds[self._read_along], 1 << 16, self._passed):
                partial.write(piece)
                self._passed += len(piece)
            partial.flush()

    def _remove(self) -> None:
        for path in (self.answer, self.errors):
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(path)


def end_of(text: str, most: int) -> str:
    """The last words of it. None is cut in two: half a key would be told by nobody as one."""
    if len(text) <= most:
        return text
    return "".join(re.split(r"(\s)", text[-most - 1 :], maxsplit=1)[1:])
