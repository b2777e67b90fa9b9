"""The environment of the programs that a provider starts: what was named for them, and the marks they are found by.

Which variables a config names lives in settings.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping

from farro.agents.providers.port import OutputSink
from farro.execution.step import TRY
from farro.host import fs
from farro.host.processes import MARKER

ALWAYS = ("PATH", "LANG", "LANGUAGE", "LC_*", "TZ", "TERM")  # no secret is in these


def named(environ: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """What these name; `LC_*` names all that begin so."""
    wanted = set(names)
    beginnings = tuple(name[:-1] for name in wanted if name.endswith("*"))
    return {name: value for name, value in environ.items() if name in wanted or name.startswith(beginnings)}


def own_mark(env: Mapping[str, str]) -> str:
    """What the processes of one try carry, and no other's do."""
    return f"{TRY}={env[TRY]}" if TRY in env else f"{MARKER}={env[MARKER]}"


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
        while at < most and (piece := fs.read_at(self._fds[0], min(most - at, 1 << 20), at)):
            pieces.append(piece)
            at += len(piece)
        return b"".join(pieces)

    def last_words(self) -> str:
        """The end of what it said beside its answer."""
        fd = self._fds[1]
        begin = max(os.fstat(fd).st_size - 4 * _SAID - 4, 0)
        return end_of(fs.read_at(fd, 4 * _SAID + 4, begin).decode("utf-8", "replace"), _SAID)

    def too_long(self, most: int) -> bool:
        return max(os.fstat(fd).st_size for fd in self._fds) > most

    def pass_on(self, partial: OutputSink) -> None:
        """What came since the last time, for people who read along."""
        with contextlib.suppress(ValueError):  # who read along has left
            while piece := fs.read_at(self._fds[self._read_along], 1 << 16, self._passed):
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
