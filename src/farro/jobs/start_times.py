"""Parse a start time as people write it: a timestamp, a local time, a day, a time of day, or a delay.

The current time and the zone are passed in. A day without a time means its beginning. When clocks change, the rule is
that of cron lines: a local time that does not exist means the moment of the change, one that occurs twice the first.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

from farro.jobs.times import duration_fault, parse_duration

FORMS = "2027-01-31T09:00, 2027-01-31T09:00Z, 2027-01-31, 09:30, tomorrow, tomorrow 09:30, monday 09:00 or +5m"

Local = Callable[[datetime], datetime]  # attaches the local zone to a naive time, or converts an aware one

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_DAY = r"(?:([a-z]+)|(\d{4})-(\d{1,2})-(\d{1,2}))"
_WORDS = re.compile(rf"{_DAY}?(\s+|(?<=\d)t)?(?:(\d{{1,2}}):(\d{{2}})(?::(\d{{2}}))?)?", re.ASCII)


def parse_start(text: str, now: datetime, local: Local) -> datetime:
    """Return the time that `text` names, in UTC. `now` is aware.

    Raise ValueError for an invalid time, or one in the past: that is a typing mistake.
    """
    bare = text.strip().lower()
    try:
        moment = _moment(bare, now, local)
        if moment > now:
            return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{text!r} is beyond the end of the calendar") from None
    except ValueError as error:
        raise ValueError(f"{text!r} {error}") from None
    raise ValueError(f"{text!r} is in the past; {_instead(bare, now, local)}, or leave it out to start now")


def moment_of(wall: datetime, local: Local) -> datetime:
    """Return the UTC time of a local time: its first occurrence, or the end of the gap that skips it."""
    wall = _wall(wall)
    first = local(wall).astimezone(UTC)
    if _wall(local(first)) == wall:
        return first
    # Bisect: before the change the local clock is at most `wall`, after it later.
    before, behind = sorted(local(wall.replace(fold=fold)).astimezone(UTC) for fold in (0, 1))
    while behind - before > timedelta(seconds=1):
        middle = before + timedelta(seconds=(behind - before) // timedelta(seconds=2))
        if _wall(local(middle)) > wall:
            behind = middle
        else:
            before = middle
    return behind


def _wall(moment: datetime) -> datetime:
    return moment.replace(tzinfo=None, fold=0)


def _moment(bare: str, now: datetime, local: Local) -> datetime:
    """Raise ValueError with what is wrong; the caller adds the text."""
    if bare.startswith("+"):
        if fault := duration_fault(bare[1:]):
            raise ValueError(f"is not + and a duration: {bare[1:]!r} {fault}")
        return now + timedelta(seconds=parse_duration(bare[1:]))
    found = _WORDS.fullmatch(bare)
    if found is None or not bare:
        return _exact(bare, local)
    word, year, month, day, between, hours, minutes, seconds = found.groups()
    if (between is None) == bool(hours is not None and (word or year)):
        raise ValueError(f"is not a time such as {FORMS}")
    today = _wall(local(now))
    time = _time_of_day(hours, minutes, seconds)
    if word in _DAYS:
        ahead = timedelta(days=(_DAYS.index(word) - today.weekday()) % 7)
        wall = _midnight(today.date() + ahead) + time
        return moment_of(wall if wall > today else wall + timedelta(days=7), local)
    if word in ("today", "tomorrow", None) and year is None:
        return moment_of(_midnight(today.date() + timedelta(days=word == "tomorrow")) + time, local)
    if word is not None:
        raise ValueError(f"is not a time such as {FORMS}")
    return moment_of(_midnight(_date(int(year), int(month), int(day))) + time, local)


def _exact(bare: str, local: Local) -> datetime:
    try:
        moment = datetime.fromisoformat(bare.upper())
    except ValueError as error:
        if (day := re.match(r"(\d{4})-(\d{1,2})-(\d{1,2})(?!\d)", bare, re.ASCII)) is not None:
            _date(*map(int, day.groups()))
        why = f" ({error})" if re.match(r"\d{4}-\d\d-\d\d[t ]\d\d:\d\d", bare, re.ASCII) else ""
        raise ValueError(f"is not a time such as {FORMS}{why}") from None
    return moment_of(moment, local) if moment.utcoffset() is None else moment


def _time_of_day(hours: str | None, minutes: str | None, seconds: str | None) -> timedelta:
    hour, minute, second = int(hours or 0), int(minutes or 0), int(seconds or 0)
    if hour == 24 and not minute and not second:
        raise ValueError("is not a time of day: midnight is 00:00 of the day that begins")
    for value, most, unit in ((hour, 23, "hours"), (minute, 59, "minutes"), (second, 59, "seconds")):
        if value > most:
            raise ValueError(f"is not a time of day: {unit} go from 00 to {most}")
    return timedelta(hours=hour, minutes=minute, seconds=second)


def _date(year: int, month: int, day: int) -> date:
    if not 1 <= month <= 12:
        raise ValueError(f"names a day that does not exist: there is no month {month:02d}; write YEAR-MONTH-DAY")
    if year < 1 or not 1 <= day <= monthrange(year, month)[1]:
        most = f"{_MONTHS[month - 1]} {year} has {monthrange(year, month)[1]} days" if year else "years begin with 1"
        raise ValueError(f"names a day that does not exist: {most}")
    return date(year, month, day)


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day)  # noqa: DTZ001 - a local time


def _instead(bare: str, now: datetime, local: Local) -> str:
    if re.fullmatch(r"(?:today\s+)?\d{1,2}:\d{2}(?::\d{2})?", bare, re.ASCII):
        return "write `tomorrow` before it"
    if bare == "today" or bare == _wall(local(now)).date().isoformat():
        return "that day has begun: name a time of it"
    return "name a later time"
