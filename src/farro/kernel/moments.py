"""Moments as text: how every time that farro writes is spelled, and read back.

What time it is lives in system.clock.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

_UNITS_S = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}
_DURATION = re.compile(r"(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?", re.ASCII)


def timestamp(moment: datetime) -> str:
    """As in every file farro writes: UTC, milliseconds (cut, not rounded: never in the future), `Z`."""
    return aware(moment).astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def parse_timestamp(text: str) -> datetime:
    """Read a timestamp back, as an aware datetime in UTC. Any RFC 3339 moment is taken; one without a zone is not."""
    if "T" not in text:  # fromisoformat also takes bare dates and week dates, which are not moments
        raise ValueError(f"{text!r} is not a timestamp such as 2026-01-31T12:00:00.000Z")
    return aware(datetime.fromisoformat(text)).astimezone(UTC)


def aware(moment: datetime) -> datetime:
    if moment.utcoffset() is None:
        raise ValueError(f"{moment.isoformat()} has no time zone; farro's times are UTC")
    return moment


def parse_duration(text: str) -> float:
    """Seconds: `90`, `90s`, `10m`, `2h`, `1d`, `1w`, or several in that order from the largest: `1h30m`."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        raise ValueError(f"{text!r} is not a duration such as 90s, 10m, 2h, 1d or 1h30m")
    return sum(float(number) * unit for number, unit in zip(found.groups(), _UNITS_S.values(), strict=True) if number)
