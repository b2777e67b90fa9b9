"""Find in a program's words when a usage limit resets.

Programs write this for people, so each form below was copied from a program:

- Claude Code: "resets 1:14pm (UTC)", "resets Nov 21, 3pm (Europe/Berlin)", "usage limit reached|1795007685"
- Codex: "try again at 1:14 PM.", "try again at Nov 18th, 2026 1:14 PM."
- Gemini CLI, and messages of the APIs: "Please retry in 36.06s", "reset after 17h20m5s", "try again in 2 days 3 hours"
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_LONGEST = timedelta(days=366)  # a later time is not the reset of a limit
_PASSED = timedelta(minutes=2)  # a clock time that passed so recently means now, not tomorrow
_SECONDS = timedelta(minutes=1)  # a clock time leaves out the seconds: a request within that minute may be too early

_AMOUNT = r"\d+(?:\.\d+)?\s*(?:weeks?|days?|hours?|minutes?|mins?|seconds?|secs?|ms|[wdhms])(?![a-z])"
# Compiled on use: few runs meet a limit.
_EPOCH = r"limit reached\|(\d{10,13})\b"
_WAIT = rf"\b(?:in|after)\s+({_AMOUNT}(?:(?:\s|,|and)*{_AMOUNT})*)"
_MOMENT = (
    r"\b(?:resets?|again|until|available|back)\b[^\w\n]{0,3}(?:\s*(?:at|on)\b)?\s*"
    r"(?:(?P<month>[A-Z][a-z]{2})[a-z]*\.? (?P<day>\d{1,2})(?:st|nd|rd|th)?,?(?: (?P<year>\d{4}),?)?(?: at)? )?"
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d{2}))?\s*(?P<half>[AaPp])\.?[Mm]\b\.?(?:\s*\((?P<zone>[\w/+-]{1,40})\))?"
)


def reset_time(text: str, now: datetime) -> datetime | None:
    """Return the time that a text names, in UTC; None if it names none. `now` has the program's time zone."""
    found: datetime | None
    if epoch := re.search(_EPOCH, text):
        number = int(epoch[1])
        found = datetime.fromtimestamp(number / 1000 if number > 10**11 else number, UTC)
    elif moment := re.search(_MOMENT, text):
        found = _moment(moment, now)
    elif wait := re.search(_WAIT, text, re.IGNORECASE):
        found = _after(wait[1], now)
    else:
        return None
    return found if found is not None and found - now <= _LONGEST else None


def _after(text: str, now: datetime) -> datetime | None:
    seconds = 0.0
    for number, unit in re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.lower()):
        seconds += float(number) * _UNIT_S["ms" if unit == "ms" else unit[0]]
    return now.astimezone(UTC) + timedelta(seconds=seconds) if seconds <= _LONGEST.total_seconds() else None


def _moment(found: re.Match[str], now: datetime) -> datetime | None:
    zone = _zone(found["zone"], now)
    here = now.astimezone(zone)
    hour = int(found["hour"]) % 12 + (12 if found["half"] in "Pp" else 0)
    try:
        time = here.replace(hour=hour, minute=int(found["minute"] or 0), second=0, microsecond=0)
        if found["month"] is None:
            time += timedelta(days=1) if time < here - _PASSED else timedelta()
        else:
            month = _MONTHS.index(found["month"].lower()) + 1
            time = time.replace(year=int(found["year"] or here.year), month=month, day=int(found["day"]))
            if found["year"] is None and time < here - timedelta(days=180):  # December speaks of January
                time = time.replace(year=here.year + 1)
    except ValueError:
        return None
    return time.astimezone(UTC) + _SECONDS


def _zone(name: str | None, now: datetime) -> tzinfo | None:
    if name is None:
        return now.tzinfo
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return now.tzinfo
