"""When a job shall start, as people say it: an exact moment, a local time, or a time of day.

Durations and farro's own timestamps live in moments; what time it is, and in which zone, is handed in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

FORMS = "2026-11-16T09:00, 2026-11-16T09:00Z, 09:30 or tomorrow 09:30"

_TIME_OF_DAY = re.compile(r"(?:(today|tomorrow)\s+)?(\d{1,2}):(\d{2})(?::(\d{2}))?", re.IGNORECASE | re.ASCII)


def parse_start(text: str, now: datetime, local: Callable[[datetime], datetime]) -> datetime:
    """The moment that `text` names, in UTC. `now` is aware; `local` gives a moment its zone, or brings one into it.

    ValueError when it is none, or is over already: a job that was asked to start in the past is a slip of the pen.
    """
    moment = _moment(text.strip(), now, local)
    if moment <= now:
        hint = (
            "write `tomorrow` before it, or leave it out to start now" if _TIME_OF_DAY.fullmatch(text.strip()) else ""
        )
        raise ValueError(f"{text!r} is in the past; {hint or 'name a later time, or leave it out to start now'}")
    return moment.astimezone(UTC)


def _moment(text: str, now: datetime, local: Callable[[datetime], datetime]) -> datetime:
    wrong = ValueError(f"{text!r} is not a time such as {FORMS}")
    found = _TIME_OF_DAY.fullmatch(text)
    try:
        if found is not None:
            day, hours, minutes, seconds = found.groups()
            date = local(now).replace(tzinfo=None) + timedelta(days=(day or "").lower() == "tomorrow")
            return local(date.replace(hour=int(hours), minute=int(minutes), second=int(seconds or 0), microsecond=0))
        if ":" not in text:  # a bare date: nobody can know which hour was meant
            raise wrong
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise wrong from None
    return local(moment) if moment.utcoffset() is None else moment
