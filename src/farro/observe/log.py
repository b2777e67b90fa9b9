"""The structured log: one JSON object a line with the seed's fields, on stdout for daemons and stderr for commands.

Which events exist is up to the callers; the append-only audit log is a separate file with codes only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TextIO

from farro.kernel.moves import timestamp

Log = Callable[[str, str, Mapping[str, Any]], None]


def json_lines(actor: str, now: Callable[[], datetime], stream: TextIO | None = None) -> Log:
    """A log that writes lines. Escaped by JSON itself: a newline or an escape sequence in a name cannot forge a line."""

    def log(level: str, message: str, fields: Mapping[str, Any]) -> None:
        line = {
            "timestamp": timestamp(now()),
            "level": level,
            "message": message,
            "app": "farro",
            "actor": actor,
            **fields,
        }
        out = stream or sys.stdout
        out.write(json.dumps(line, default=str) + "\n")
        out.flush()

    return log
