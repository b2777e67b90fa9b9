"""The structured log: one JSON object per line, on stdout for daemons and stderr for commands.

A process that knows secrets calls `redact_with` once: from then on no line of any log, and no text made `printable` for
a person, contains one. It is a global setting because a caller that forgot a parameter would leak.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TextIO

from farro.documents.json_text import encoder
from farro.jobs.times import timestamp

LogEvent = tuple[str, str, Mapping[str, Any]]
Log = Callable[[str, str, Mapping[str, Any]], None]  # level, message, fields

GRAVE = ("error", "critical")
LEVELS = ("debug", "info", "warning", *GRAVE)

_encode = encoder(ensure_ascii=True, allow_nan=True, default=str)

_redact: Callable[[str], str] | None = None


def redact_with(redact: Callable[[str], str] | None) -> None:
    """Set the function that redacts every text before it is shown or logged; None removes it."""
    global _redact
    _redact = redact


def redacted(text: str) -> str:
    return text if _redact is None else _redact(text)


def lines(
    actor: str, now: Callable[[], datetime], stream: TextIO | None, *, short: bool = False, level: str = "debug"
) -> Log:
    """Return a log that writes one line per event of that level or above: JSON, or with `short` a form for people.

    A line that cannot be written (a full disk, a closed pipe) is dropped and counted; the work goes on, and the next
    written line says how many are missing. Without a `stream` nothing is written.
    """
    return _Lines(actor, now, stream, short, LEVELS[: LEVELS.index(level)])


class BatchLog:
    """A log that accepts several events at once."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def __call__(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        self._log(level, message, fields)

    def many(self, events: Sequence[LogEvent]) -> None:
        for event in events:
            self._log(*event)


def together(log: Log) -> BatchLog:
    return log if isinstance(log, BatchLog) else BatchLog(log)


class _Lines(BatchLog):
    def __init__(
        self, actor: str, now: Callable[[], datetime], stream: TextIO | None, short: bool, quiet: Sequence[str]
    ) -> None:
        self._actor = actor
        self._now = now
        self._stream = stream
        self._short = short
        self._quiet = quiet
        self._lock = threading.Lock()
        self._dropped = 0

    def __call__(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        self.many([(level, message, fields)])

    def many(self, events: Sequence[LogEvent]) -> None:
        """Write several events with one write."""
        if self._stream is None:
            return
        moment = timestamp(self._now())
        head = {"timestamp": moment, "level": "", "message": "", "app": "farro", "actor": self._actor}
        lines: list[dict[str, Any]] = [
            {**head, "level": level, "message": message, **fields}
            for level, message, fields in events
            if level not in self._quiet
        ]
        if not lines:
            return
        with self._lock:
            if self._dropped:
                lines[0]["dropped_lines"] = self._dropped
            try:
                told = [short_line(line) if self._short else redacted(_encode(line)) for line in lines]
                self._stream.write("\n".join(told) + "\n")
                self._stream.flush()
                self._dropped = 0
            except (OSError, ValueError):  # ValueError: closed
                self._dropped += len(lines)


def grave_only(stream: TextIO | None) -> Log:
    """Return the log of a command: errors only, as text on stderr."""

    def log(level: str, message: str, fields: Mapping[str, Any]) -> None:
        if stream is not None and level in GRAVE:
            whose = fields.get("job_id") or fields.get("agent") or fields.get("name")
            said = ": ".join(str(part) for part in (whose, message, fields.get("why")) if part)
            stream.write(f"farro: {printable(said)}\n")

    return log


def short_line(line: Mapping[str, Any]) -> str:
    """Format an event as a line for people: time, job, what happened."""
    event = line.get("event") or {}
    if event.get("type") == "state_transition":
        what = f"{event.get('from')} → {event.get('to')}"
        what += f" ({event['error']})" if event.get("error") else ""
    else:
        what = str(line.get("message"))
    what += f" [{line['dropped_lines']} lines could not be written]" if line.get("dropped_lines") else ""
    attempt = f" (attempt {line['attempt']})" if line.get("attempt", 1) != 1 else ""
    level = "" if line.get("level") == "info" else f"{line.get('level')}: "
    job = f"{line['job_id']}{attempt}: " if line.get("job_id") else ""
    return printable(f"{str(line.get('timestamp'))[11:23]}  {level}{job}{what}")


def printable(text: str, keep: str = "") -> str:
    """Redact and escape a text for a terminal: names and messages may contain escape sequences."""
    text = redacted(text)
    return "".join(char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text)
