"""Moments as text: how every time that farro writes is spelled, and read back.

What time it is lives in system.clock.
"""

from __future__ import annotations

from datetime import UTC, datetime


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
