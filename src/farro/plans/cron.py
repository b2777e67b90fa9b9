"""Parse cron lines, five fields or a nickname, and compute when they are due in a time zone.

The library cronsim finds the local times, as Vixie cron has them: lists, ranges, steps, names (JAN, MON), 0 and 7 for
Sunday. When both the day of the month and the day of the week are restricted, either is enough; a field that starts
with `*` restricts nothing. By hand:
- the check of each field, because cronsim says no more than "Bad minute", and accepts seconds, `L` and `#`;
- nicknames, and ranges that end with Sunday (FRI-SUN), which cronsim does not know;
- changes of clocks, because cronsim fires a line such as `*/5 * * * *` twice in an hour that occurs twice.

When clocks change (tests with Europe/Berlin and America/New_York):
- a local time that does not exist is due once, at the moment of the change;
- a local time that occurs twice is due once, the first time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from functools import partial

from farro.jobs.start_times import moment_of
from farro.lazy_dataclass import dataclass

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


class BadCron(ValueError):
    """An invalid cron line; the message names the field and what would be right."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cron:
    """A valid cron line. It yields local times; `due` converts them."""

    text: str
    fields: str  # five fields, names replaced by numbers

    @classmethod
    def parse(cls, text: str) -> Cron:
        line = NICKNAMES.get(text.strip().lower(), text)
        if line.lstrip().startswith("@"):
            raise BadCron(f"{text.strip()} is not one of {', '.join(NICKNAMES)}")
        parts = line.split()
        if len(parts) != len(_FIELDS):
            raise BadCron(
                f"has {len(parts)} fields; five are needed: minute hour day-of-month month day-of-week, "
                "such as 30 9 * * MON-FRI"
            )
        checked = [
            ",".join(_checked(item, *field) for item in part.split(","))
            for part, field in zip(parts, _FIELDS, strict=True)
        ]
        made = cls(text=text.strip(), fields=" ".join(checked))
        if made.next_after(datetime(2000, 1, 1)) is None:  # noqa: DTZ001 - a local time, of no zone
            raise BadCron("never falls due: no month that it names has such a day")
        return made

    def next_after(self, local: datetime) -> datetime | None:
        """Return the first local time after `local`; None when there is none within 50 years."""
        return next(self.local_times(local), None)

    def local_times(self, after: datetime) -> Iterator[datetime]:
        from cronsim import CronSim, CronSimError

        try:
            yield from CronSim(self.fields, after.replace(tzinfo=None, fold=0))
        except (CronSimError, OverflowError):  # a day that no month has; the end of the calendar
            return


def due(cron: Cron, zone: tzinfo, after: datetime) -> Iterator[datetime]:
    """Yield every UTC time after `after` at which the line is due in that zone, in order, each once."""
    last = after.astimezone(UTC)
    for local in cron.local_times(after.astimezone(zone)):
        try:
            moment = moment_of(local, partial(_in_zone, zone))
        except OverflowError:  # the last day of the calendar
            return
        if moment > last:
            last = moment
            yield moment


def _in_zone(zone: tzinfo, moment: datetime) -> datetime:
    return moment.replace(tzinfo=zone) if moment.tzinfo is None else moment.astimezone(zone)


def _checked(item: str, field: str, low: int, high: int, names: dict[str, int]) -> str:
    """Check one part of a list and replace names by numbers."""
    match = _ITEM.fullmatch(item)
    if match is None:
        raise BadCron(f"{field}: {item!a} is not understood; write numbers, 1-5, */10 or lists of these")
    star, first, last, step_text = match.groups()
    step = 1 if step_text is None else int(step_text[:9])
    if step == 0:
        raise BadCron(f"{field}: a step of 0 never comes; */1 is every one")
    if star:
        return f"*/{step}"
    start = _number(first, field, low, high, names)
    if last is None:
        return str(start) if step_text is None else f"{start}-{high}/{step}"
    end = _number(last, field, low, high, names)
    if end == 0 and field == "day of week" and start > 0:
        end = 7  # FRI-SUN
    if end < start:
        raise BadCron(f"{field}: {item} runs backwards; write it as two parts, such as {first}-{high},{low}-{last}")
    # cronsim takes a step behind a single number as a step to the end of the field: 5-5/10 would be 5,15,25,…
    return str(start) if start == end else f"{start}-{end}/{step}"


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
