"""Cron lines: five fields or a nickname → the moments at which they fall due, in any zone.

No clock and no zone files: moments and zones (`tzinfo`) come in. Who fires, and what was missed, lives in operations
and services.

As Vixie cron: lists, ranges, steps, names (JAN, MON), 0 and 7 for Sunday. When both the day of the month and the day of
the week are restricted, either is enough; a field that starts with `*` restricts nothing.

Where a zone changes its clocks (tests with Europe/Berlin and America/New_York):
- a local time that does not exist falls due once, at the next moment that does: the change itself;
- a local time that occurs twice falls due once, the first time.
Without a change of clocks in the zone (UTC) neither happens.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import partial

from farro.kernel.start_times import moment_of
from farro.late import dataclass

NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTH_NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, start=1)}
_DAYS = {name: number for number, name in enumerate(("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))}
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of month", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 7, _DAYS),
)
_ITEM = re.compile(r"(?:(\*)|([A-Za-z]+|[0-9]+)(?:-([A-Za-z]+|[0-9]+))?)(?:/([0-9]+))?")
_FARTHEST = 45  # years: 29 February on a given weekday comes again after 40 at most


class BadCron(ValueError):
    """The line is wrong; the message says which field, and what would be right."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cron:
    """A parsed line. Local times only; `due` puts them into a zone."""

    text: str
    times: tuple[int, ...]  # minutes of the day, sorted
    days: frozenset[int]  # of the month
    months: frozenset[int]
    weekdays: frozenset[int]  # 0 is Sunday
    either: bool  # both kinds of day are restricted: one that fits is enough

    @classmethod
    def parse(cls, text: str) -> Cron:
        line = NICKNAMES.get(text.strip().lower(), text)
        if line.lstrip().startswith("@"):
            raise BadCron(f"{text.strip()} is not one of {', '.join(NICKNAMES)}")
        parts = line.split()
        if len(parts) != len(_FIELDS):
            raise BadCron(
                f"has {len(parts)} fields; five are wanted: minute hour day-of-month month day-of-week, "
                "such as 30 9 * * MON-FRI"
            )
        minutes, hours, days, months, weekdays = (
            _numbers(part, *field) for part, field in zip(parts, _FIELDS, strict=True)
        )
        made = cls(
            text=text.strip(),
            times=tuple(sorted(hour * 60 + minute for hour in hours for minute in minutes)),
            days=days,
            months=months,
            weekdays=frozenset(day % 7 for day in weekdays),
            either=not (parts[2].startswith("*") or parts[4].startswith("*")),
        )
        if made.next_after(datetime(2000, 1, 1)) is None:  # noqa: DTZ001 - a local time, of no zone
            raise BadCron("never falls due: no month that it names has such a day")
        return made

    def on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return (of_month or of_week) if self.either else (of_month and of_week)

    def matches(self, local: datetime) -> bool:
        return self.on(local.date()) and local.hour * 60 + local.minute in self.times

    def next_after(self, local: datetime) -> datetime | None:
        """The first local time after the minute of `local`; None when there is none within a lifetime."""
        try:
            start = local.replace(second=0, microsecond=0, tzinfo=None, fold=0) + timedelta(minutes=1)
            day, last = start.date(), start.year + _FARTHEST
            index = bisect_left(self.times, start.hour * 60 + start.minute)
            while day.year <= last:
                if day.month not in self.months:
                    day, index = (day.replace(day=1) + timedelta(days=32)).replace(day=1), 0
                    continue
                if index < len(self.times) and self.on(day):
                    hour, minute = divmod(self.times[index], 60)
                    return datetime(day.year, day.month, day.day, hour, minute)  # noqa: DTZ001 - local
                day, index = day + timedelta(days=1), 0
        except OverflowError:  # the calendar ends
            pass
        return None


def due(cron: Cron, zone: tzinfo, after: datetime) -> Iterator[datetime]:
    """Every moment (UTC) after `after` at which the line falls due in that zone, in order, each once."""
    local: datetime | None = after.astimezone(zone)
    last = after.astimezone(UTC)
    while local is not None and (local := cron.next_after(local)) is not None:
        try:
            moment = moment_of(local, partial(_in_zone, zone))
        except OverflowError:  # the last day of the calendar
            return
        if moment > last:
            last = moment
            yield moment


def _in_zone(zone: tzinfo, moment: datetime) -> datetime:
    return moment.replace(tzinfo=zone) if moment.tzinfo is None else moment.astimezone(zone)


def _numbers(text: str, field: str, low: int, high: int, names: dict[str, int]) -> frozenset[int]:
    found: set[int] = set()
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise BadCron(f"{field}: {item!a} is not understood; write numbers, 1-5, */10 or lists of these")
        star, first, last, step_text = match.groups()
        step = 1 if step_text is None else int(step_text[:9])
        if step == 0:
            raise BadCron(f"{field}: a step of 0 never comes; */1 is every one")
        start = low if star else _number(first, field, low, high, names)
        if last is not None:
            end = _number(last, field, low, high, names)
            if end == 0 and field == "day of week" and start > 0:
                end = 7  # FRI-SUN
        else:
            end = high if star or step_text is not None else start
        if end < start:
            raise BadCron(f"{field}: {item} runs backwards; write it as two parts, such as {first}-{high},{low}-{last}")
        found.update(range(start, end + 1, step))
    return frozenset(found)


def _number(text: str, field: str, low: int, high: int, names: dict[str, int]) -> int:
    if text.isdigit():
        number = int(text[:9])
        if not low <= number <= high:
            raise BadCron(f"{field}: {text[:9]} is not between {low} and {high}")
        return number
    if text.upper() not in names:
        known = f"a name such as {next(iter(names))} or " if names else ""
        raise BadCron(f"{field}: {text!a} is not {known}a number between {low} and {high}")
    return names[text.upper()]
