"""The base of all readers: collect what a run says, and judge it at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal

from farro.agents.programs.outcomes import ProgramError, RunEnd, trouble_of
from farro.agents.programs.output import Event, Lines, count_at, json_object, one_line
from farro.agents.programs.port import ReaderReport
from farro.agents.programs.session_files import is_session_id
from farro.agents.providers.port import Usage
from farro.store.ledger import NO_TOKENS

MOST_FILES = 1000  # names of files, and denials, that one report holds
_LINE = 1 << 16  # characters of a line of text that is not whole yet


def local_now() -> datetime:
    return datetime.now().astimezone()


class OutputReader(ABC):
    """Collects what a run says, line by line (port: Reader). The reader of a program sets the public members."""

    def __init__(self, on_progress: Callable[[str], None], now: Callable[[], datetime] = local_now) -> None:
        self.session_id: str | None = None
        self.model: str | None = None
        self.text = ""  # the answer so far
        self.finished = False  # the program said that it had finished
        self.error: ProgramError | None = None
        self.usage: Usage | None = None
        self.cost_usd: Decimal | None = None
        self._files: dict[str, None] = {}
        self._denied: dict[str, None] = {}
        self._line = ""  # of a text that comes in pieces
        self._on_progress = on_progress
        self._now = now
        self._lines = Lines(self.take_line)

    @abstractmethod
    def take_line(self, line: str) -> None:
        """Take one line."""

    def read_stderr(self, code: int, stderr: str) -> None:  # noqa: B027 - most have nothing to do
        """Read at the end what only standard error says."""

    def feed(self, data: bytes) -> None:
        self._lines.feed(data)

    def end(self, code: int, stderr: str) -> ReaderReport:
        self._lines.end()
        self.read_stderr(code, stderr)
        end = RunEnd(
            code=code, stderr=stderr, text=self.text, finished=self.finished, error=self.error, now=self._now()
        )
        usage = self._settled_usage()
        return ReaderReport(
            text=self.text or None,
            session_id=self.session_id,
            model=self.model,
            usage=usage,
            cost_usd=self.cost_usd,
            denied=tuple(self._denied),
            files=tuple(self._files),
            trouble=trouble_of(end, usage, self.cost_usd),
        )

    def _settled_usage(self) -> Usage | None:
        """Return the tokens of the run. A program counts none for an answer that broke off, although it has a price."""
        status = None if self.error is None else self.error.status
        rejected = status is not None and 400 <= status < 500
        return None if self.usage == NO_TOKENS and self.error is not None and not rejected else self.usage

    def note_session(self, session_id: str) -> None:
        """Keep the id of the session, if it can be one: it becomes a word of the next command line."""
        if is_session_id(session_id):
            self.session_id = session_id

    def progress(self, text: str) -> None:
        """Pass on what happens, for people who watch."""
        if line := one_line(text):
            self._on_progress(line)

    def say(self, piece: str) -> None:
        """Pass on a piece of the agent's text; its lines are passed on when they are whole."""
        *lines, self._line = (self._line + piece)[-_LINE:].split("\n")
        for line in lines:
            self.progress(line)

    def said(self) -> None:
        """Pass on the last line of a text that has ended."""
        self.progress(self._line)
        self._line = ""

    def wrote(self, path: str) -> None:
        """Note a file that a tool wrote."""
        if path and len(self._files) < MOST_FILES:
            self._files[path] = None

    def deny(self, what: str) -> None:
        """Note what the program's own rules refused."""
        line = one_line(what)
        if line and line not in self._denied and len(self._denied) < MOST_FILES:
            self._denied[line] = None
            self._on_progress(f"denied: {line}")

    def add_usage(self, usage: Usage) -> None:
        """Add the tokens of one request."""
        self.usage = (self.usage or NO_TOKENS) + usage


class EventReader(OutputReader):
    """Reads a program that writes a JSON object on each line. Other lines are banners and warnings."""

    def take_line(self, line: str) -> None:
        event = json_object(line) if line.lstrip().startswith("{") else None
        if event is not None:
            self.take(event)

    @abstractmethod
    def take(self, event: Event) -> None:
        """Take one event. Its members may be anything."""


def usage_beside_cache(counts: Event, *, fresh: str, output: str, cache_read: str, cache_write: str) -> Usage:
    """Return tokens of a program that does not count cached tokens as input; farro does."""
    read, written = count_at(counts, cache_read), count_at(counts, cache_write)
    return Usage(
        input_tokens=count_at(counts, fresh) + read + written,
        output_tokens=count_at(counts, output),
        cache_read_tokens=read,
        cache_write_tokens=written,
    )
