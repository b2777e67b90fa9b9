"""Format and parse timestamps and durations."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any


def timestamp(moment: datetime) -> str:
    """Format a time as farro's files do: UTC, milliseconds (truncated, so never in the future), `Z`."""
    global _spelled, _last
    if moment is (known := _last)[0]:
        return known[1]
    given = moment
    if moment.tzinfo is not UTC:  # the clocks' times already are; this runs seven times a job
        moment = aware(moment).astimezone(UTC)
    second, near = moment.replace(microsecond=0), _spelled
    if near[0] != second:
        near = _spelled = (second, second.isoformat()[:-6])
    text = f"{near[1]}.{moment.microsecond // 1000:03d}Z"
    _last = (given, text)
    return text


# Cache the last second and the last time with their texts: formatting takes 2 us, most times share their second, and
# jobs that are claimed or committed together share the same time.
_spelled = (datetime.fromtimestamp(0, UTC), "1970-01-01T00:00:00")
_last: tuple[datetime | None, str] = (None, "")


def parse_timestamp(text: str) -> datetime:
    """Parse an RFC 3339 timestamp into an aware datetime in UTC. One without a zone is refused."""
    if "T" not in text:  # fromisoformat also takes bare dates and week dates
        raise ValueError(f"{text!r} is not a timestamp such as 2026-01-31T12:00:00.000Z")
    return aware(datetime.fromisoformat(text)).astimezone(UTC)


def aware(moment: datetime) -> datetime:
    if moment.utcoffset() is None:
        raise ValueError(f"{moment.isoformat()} has no time zone; farro's times are UTC")
    return moment


UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
MAX_DURATION_S = 36_525 * 86_400  # a hundred years: added to any current time it is still a valid time

_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,6})?"
_PARTS = re.compile("".join(f"(?:({_NUMBER}){unit})?" for unit in UNITS))
_SECONDS = re.compile(_NUMBER)
_EXAMPLES = "such as 90s, 10m, 2h, 1d, 1w or 1h30m"


def parse_duration(text: str) -> float:
    """Parse a duration into seconds: `90` (seconds), `90s`, `0.5s`, `10m`, `1.5h`, `1d`, `1w`, `1h30m`.

    Each unit may occur once, larger units first. The ValueError says what would be right.
    """
    if fault := duration_fault(text):
        raise ValueError(f"{text!r} {fault}")
    seconds = _seconds(text)
    assert seconds is not None
    return seconds


def duration_fault(text: str) -> str | None:
    """Say what is wrong with a duration and what would be right; None when it is valid."""
    seconds = _seconds(text)
    if seconds is None:
        return f"is not a duration {_EXAMPLES}{_why_not(text.strip().lower())}"
    if seconds > MAX_DURATION_S:
        return "is longer than a hundred years, the longest duration that farro takes"
    return None


def _seconds(text: str) -> float | None:
    bare = text.strip().lower()
    found = _PARTS.fullmatch(f"{bare}s" if _SECONDS.fullmatch(bare) else bare) if bare else None
    if found is None:
        return None
    return sum(float(count) * unit for count, unit in zip(found.groups("0"), UNITS.values(), strict=True))


def _why_not(bare: str) -> str:
    """Name the most likely mistake; empty when the examples say enough."""
    if bare.startswith("-"):
        return "; it cannot be negative"
    if "," in bare:
        return "; the decimal mark is a point: 1.5h"
    units = re.findall(r"[a-z]+", bare)
    if any(unit not in UNITS for unit in units):
        return "; the units are w, d, h, m and s"
    if units != sorted(set(units), key=list(UNITS).index):
        return "; each unit once, the larger first"
    return ""


def span(seconds: float | None) -> str:
    """Format a duration in at most two units: 0.25s, 12s, 3m20s, 2h05m, 4d1h; - when unknown."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{max(0.0, seconds):.2f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600}h"


def in_words(seconds: float) -> str:
    """Format a duration in one or two units."""
    whole = max(0, int(seconds))
    for size, unit, below, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size}{unit}" + (f"{rest}{small}" if rest else "")
    return f"{whole}s"


def moment_or_none(text: Any) -> datetime | None:
    try:
        return parse_timestamp(text) if isinstance(text, str) else None
    except (ValueError, OverflowError):
        return None


def seconds_between(start: Any, end: Any) -> float | None:
    """Never less than nothing: clocks go back. None: one of the two is not known."""
    first, last = moment_or_none(start), moment_or_none(end)
    return None if first is None or last is None else max(0.0, (last - first).total_seconds())
