"""The environment and the output files of the programs that a provider starts.

The output files have no name while the program runs: if the worker dies, nothing of the output stays on the disk.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping

from farro.agents.providers.port import OutputSink
from farro.execution.step import TRY
from farro.host import fs
from farro.host.process_tree import MARKER

ALWAYS = ("PATH", "LANG", "LANGUAGE", "LC_*", "TZ", "TERM")  # these hold no secrets


def named(environ: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Select variables by name; `LC_*` selects all with that prefix."""
    wanted = set(names)
    beginnings = tuple(name[:-1] for name in wanted if name.endswith("*"))
    return {name: value for name, value in environ.items() if name in wanted or name.startswith(beginnings)}


def own_mark(env: Mapping[str, str]) -> str:
    """Return the variable that marks the processes of one try, and of no other."""
    return f"{TRY}={env[TRY]}" if TRY in env else f"{MARKER}={env[MARKER]}"


LIMIT = 16 << 20  # bytes of an answer that are read
_SAID = 2000  # characters of stderr in a message


class ProgramOutput:
    """The stdout and stderr files of a program, unlinked as soon as the program has opened them."""

    def __init__(self, folder: str, *, read_along: int = 0) -> None:
        self.answer = f"{folder}/answer.tmp"
        self.errors = f"{folder}/errors.tmp"
        self._fds: list[int] = []  # of the answer and of the errors
        self._read_along = read_along  # index of the file that is passed on while the program runs
        self._passed = 0

    def __enter__(self) -> ProgramOutput:
        self._remove()
        return self

    def __exit__(self, *exception: object) -> None:
        self._remove()
        for fd in self._fds:
            os.close(fd)

    def forget_names(self) -> None:
        """Open the files and unlink them. A program whose output goes to a pipe has errors only."""
        for path in (self.answer, self.errors):
            with contextlib.suppress(FileNotFoundError):
                self._fds.append(fs.open_read(path))
        self._remove()

    def texts(self) -> tuple[str, str]:
        """Return the answer, and the end of stderr."""
        return self.data(LIMIT).decode("utf-8", "replace"), self.last_words()

    def data(self, most: int) -> bytes:
        """Return at most `most` bytes of the answer."""
        pieces, at = [], 0
        while at < most and (piece := fs.read_at(self._fds[0], min(most - at, 1 << 20), at)):
            pieces.append(piece)
            at += len(piece)
        return b"".join(pieces)

    def last_words(self) -> str:
        """Return the end of stderr."""
        fd = self._fds[-1]
        begin = max(os.fstat(fd).st_size - 4 * _SAID - 4, 0)
        return end_of(fs.read_at(fd, 4 * _SAID + 4, begin).decode("utf-8", "replace"), _SAID)

    def too_long(self, most: int) -> bool:
        return max(os.fstat(fd).st_size for fd in self._fds) > most

    def pass_on(self, partial: OutputSink) -> None:
        """Pass on what came since the last time, for people who watch."""
        with contextlib.suppress(ValueError):  # the sink is closed
            while piece := fs.read_at(self._fds[self._read_along], 1 << 16, self._passed):
                partial.write(piece)
                self._passed += len(piece)
            partial.flush()

    def _remove(self) -> None:
        for path in (self.answer, self.errors):
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(path)


def end_of(text: str, most: int) -> str:
    """Return the end of a text, cut between words: half a key would not be recognised as a secret."""
    if len(text) <= most:
        return text
    return "".join(re.split(r"(\s)", text[-most - 1 :], maxsplit=1)[1:])
