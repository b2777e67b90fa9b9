"""Times as job files tell them, read without trust: a damaged file is no reason to fail a look.

How farro itself spells a time lives in kernel.moments.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from farro.jobs.times import parse_timestamp


def moment_or_none(text: Any) -> datetime | None:
    try:
        return parse_timestamp(text) if isinstance(text, str) else None
    except (ValueError, OverflowError):
        return None


def seconds_between(start: Any, end: Any) -> float | None:
    """Never less than nothing: clocks go back. None: one of the two is not known."""
    first, last = moment_or_none(start), moment_or_none(end)
    return None if first is None or last is None else max(0.0, (last - first).total_seconds())
