"""Read the end of the log of a component."""

from __future__ import annotations

import contextlib
import json
import os
import signal

from farro.host import fs, signals
from farro.worker.runtime import ProcessView

_LAST, _LINES = 4096, 8
_CHARACTERS = 300  # of the last line of a component that ended
_KILLED = (-signals.KILL, -signal.SIGTERM, -signal.SIGINT)


def last_lines(path: str, lines: int = _LINES, *, since: int = 0) -> str:
    """Return the end of a log, at most what was written from the offset `since`; empty if there is none."""
    try:
        fd = fs.open_read(path)
    except OSError:
        return ""
    try:
        size = os.fstat(fd).st_size
        start = since if since <= size else 0  # the log was rotated
        data = fs.read_at(fd, _LAST, max(start, size - _LAST))
    finally:
        os.close(fd)
    return "\n".join(data.decode("utf-8", "replace").strip().splitlines()[-lines:])


def last_line(path: str) -> tuple[str, str | None]:
    """Return the message and the level of the last line, if farro's own services wrote it; else the line and None."""
    line = last_lines(path, lines=1)
    with contextlib.suppress(ValueError):
        entry = json.loads(line)
        if isinstance(entry, dict) and isinstance(entry.get("message"), str):
            return entry["message"], str(entry.get("level"))
    return line, None


def last_words(dead: ProcessView) -> str:
    """Return the last log line if it may explain the end: a process that was killed could not write why."""
    if dead.exit_code in _KILLED:
        return ""
    return last_line(dead.log)[0][:_CHARACTERS]
