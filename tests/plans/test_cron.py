"""Compare cron lines with a model that tests every minute, across daylight saving changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.plans.cron import BadCron, Cron, due
from farro.plans.schedule import MOST_MISSED, run_id, to_run

MINUTE = timedelta(minutes=1)
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]
# Around changes of clocks, the end of a year and a leap day.
STARTS = [
    datetime(2026, 3, 28, 22, tzinfo=UTC),  # Berlin springs forward at 01:00 on the 29th
    datetime(2026, 10, 24, 22, tzinfo=UTC),  # and back at 01:00 on the 25th
    datetime(2026, 3, 8, 4, tzinfo=UTC),  # New York
    datetime(2026, 11, 1, 3, tzinfo=UTC),
    datetime(2026, 10, 3, 12, tzinfo=UTC),  # Lord Howe moves by half an hour
    datetime(2027, 12, 31, 12, tzinfo=UTC),
    datetime(2028, 2, 28, 12, tzinfo=UTC),
]


def local(year: int, month: int, day: int) -> datetime:
    """Return midnight of that day, without a zone."""
    return datetime(year, month, day, tzinfo=UTC).replace(tzinfo=None)


def item(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    spans = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    return st.one_of(
        st.just("*"),
        number.map(str),
        spans,
        st.integers(1, 20).map(lambda step: f"*/{step}"),
        st.tuples(spans, st.integers(1, 9)).map(lambda pair: f"{pair[0]}/{pair[1]}"),
    )


def field(low: int, high: int) -> st.SearchStrategy[str]:
    return st.lists(item(low, high), min_size=1, max_size=3).map(",".join)


LINES = st.tuples(field(0, 59), st.one_of(field(0, 23), field(0, 4)), item(1, 31), item(1, 12), item(0, 7)).map(
    " ".join
)


def numbers(text: str, low: int, high: int) -> set[int]:
    """Return the values that a field of LINES names."""
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        start, end = (low, high) if span == "*" else (int(first), int(last or first))
        found.update(range(start, end + 1, int(step or 1)))
    return found


def fits(line: str, moment: datetime) -> bool:
    """Check whether a line of LINES names that local time."""
    minute, hour, day, month, weekday = line.split()
    if (
        moment.minute not in numbers(minute, 0, 59)
        or moment.hour not in numbers(hour, 0, 23)
        or moment.month not in numbers(month, 1, 12)
    ):
        return False
    days = moment.day in numbers(day, 1, 31)
    weekdays = moment.isoweekday() % 7 in {number % 7 for number in numbers(weekday, 0, 7)}
    return (days and weekdays) if day.startswith("*") or weekday.startswith("*") else (days or weekdays)


def walked(line: str, zone: ZoneInfo, after: datetime, minutes: int) -> list[datetime]:
    """Test every minute: does this local time occur for the first time, or follow a gap that contains a due time?"""
    found = []
    before = after
    for step in range(1, minutes + 1):
        now = after + step * MINUTE
        was, here = (moment.astimezone(zone).replace(tzinfo=None) for moment in (before, now))
        skipped = []
        while (was := was + MINUTE) < here:
            skipped.append(was)
        first = now.astimezone(zone).fold == 0
        if (first and fits(line, here)) or any(fits(line, each) for each in skipped):
            found.append(now)
        before = now
    return found


@given(line=LINES, zone=st.sampled_from(ZONES), start=st.sampled_from(STARTS), shift=st.integers(0, 300))
def test_a_cron_line_falls_due_as_in_the_model(line: str, zone: str, start: datetime, shift: int) -> None:
    try:
        cron = Cron.parse(line)
    except BadCron:  # 31 February
        return
    minutes, after = 12 * 60, start + shift * MINUTE
    until = after + minutes * MINUTE
    told = list(takewhile(lambda moment: moment <= until, due(cron, ZoneInfo(zone), after)))
    assert told == walked(line, ZoneInfo(zone), after, minutes)


@given(line=LINES, seconds=st.integers(0, 59))
def test_moments_only_grow_and_come_after_the_start(line: str, seconds: int) -> None:
    try:
        cron = Cron.parse(line)
    except BadCron:
        return
    after = datetime(2026, 3, 29, 0, 30, seconds, tzinfo=UTC)
    moments = list(islice(due(cron, ZoneInfo("Europe/Berlin"), after), 20))
    assert moments == sorted(set(moments))
    assert all(moment > after for moment in moments)


def firsts(line: str, zone: str, after: datetime, count: int) -> list[str]:
    return [f"{moment:%m-%d %H:%M}" for moment in islice(due(Cron.parse(line), ZoneInfo(zone), after), count)]


def test_a_local_time_that_does_not_exist_falls_due_once_at_the_change() -> None:
    berlin = datetime(2026, 3, 28, tzinfo=UTC)
    assert firsts("30 2 * * *", "Europe/Berlin", berlin, 3) == ["03-28 01:30", "03-29 01:00", "03-30 00:30"]
    assert firsts("*/20 2 29 3 *", "Europe/Berlin", berlin, 1) == ["03-29 01:00"]
    new_york = datetime(2026, 3, 7, 12, tzinfo=UTC)
    assert firsts("30 2 * * *", "America/New_York", new_york, 2) == ["03-08 07:00", "03-09 06:30"]


def test_a_local_time_that_occurs_twice_falls_due_once_the_first_time() -> None:
    berlin = datetime(2026, 10, 24, 12, tzinfo=UTC)
    assert firsts("30 2 * * *", "Europe/Berlin", berlin, 2) == ["10-25 00:30", "10-26 01:30"]
    new_york = datetime(2026, 10, 31, 12, tzinfo=UTC)
    assert firsts("30 1 * * *", "America/New_York", new_york, 2) == ["11-01 05:30", "11-02 06:30"]


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@Weekly", "0 0 * * SUN"),
        ("@monthly", "0 0 1 * *"),
        ("0 0 * jan-Mar,DEC mon-fri", "0 0 * 1-3,12 1-5"),
        ("0 0 * * FRI-SUN", "0 0 * * 0,5,6"),
        ("0 0 * * 7", "0 0 * * 0"),
        ("5/20 * * * *", "5,25,45 * * * *"),
    ],
)
def test_names_nicknames_and_sundays(line: str, same: str) -> None:
    start = local(2026, 11, 18)
    one, other = (list(islice(Cron.parse(text).local_times(start), 400)) for text in (line, same))
    assert one == other


def test_either_kind_of_day_is_enough_when_both_are_restricted() -> None:
    friday = set(islice(Cron.parse("0 0 13 * FRI").local_times(local(2026, 11, 1)), 20))
    assert local(2026, 11, 13) in friday
    assert local(2026, 12, 13) in friday
    assert local(2026, 11, 20) in friday
    assert local(2026, 11, 21) not in friday
    star = set(islice(Cron.parse("0 0 */2 * FRI").local_times(local(2026, 11, 1)), 20))
    assert local(2026, 11, 13) in star
    assert local(2026, 11, 20) not in star, "a star restricts nothing, so both must fit"


def test_a_step_behind_a_range_of_one_number_stays_in_that_range() -> None:
    found = set(islice(Cron.parse("5-5/10 * * * *").local_times(local(2026, 11, 1)), 20))
    assert {moment.minute for moment in found} == {5}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "has 0 fields"),
        ("* * * *", "has 4 fields; five are needed"),
        ("@reboot", "@reboot is not one of @hourly"),
        ("60 * * * *", "minute: 60 is not between 0 and 59"),
        ("* 5-2 * * *", "hour: 5-2 runs backwards"),
        ("* * 0 * *", "day of month: 0 is not between 1 and 31"),
        ("* * * FOO *", "month: 'FOO' is not a name such as JAN"),
        ("* * * * MON#2", "day of week: 'MON#2' is not understood"),
        ("*/0 * * * *", "minute: a step of 0"),
        ("0 0 31 2 *", "never falls due"),
        ("1,,2 * * * *", "minute: '' is not understood"),
        ("9999999999999999999999 * * * *", "minute: 999999999 is not between"),
    ],
)
def test_a_wrong_line_says_which_field_and_why(line: str, why: str) -> None:
    with pytest.raises(BadCron) as caught:
        Cron.parse(line)
    assert why in str(caught.value)


def test_a_leap_day_on_a_weekday_is_found() -> None:
    assert firsts("0 0 29 2 *", "UTC", datetime(2026, 1, 1, tzinfo=UTC), 1) == ["02-29 00:00"]
    assert Cron.parse("0 0 29 2 */7").next_after(local(2026, 1, 1)) == local(2032, 2, 29)


def test_the_calendar_has_an_end() -> None:
    assert list(due(Cron.parse("0 0 1 1 *"), ZoneInfo("UTC"), datetime(9999, 6, 1, tzinfo=UTC))) == []


NOW = datetime(2026, 11, 16, 9, 0, 10, tzinfo=UTC)
DUES = [NOW.replace(second=0) - timedelta(minutes=minute) for minute in range(300, -1, -1)]


def test_missed_runs_are_selected_by_policy() -> None:
    assert to_run("run_once", DUES, NOW) == DUES[-1:]
    assert to_run("run_all", DUES, NOW) == DUES[-MOST_MISSED:]
    assert to_run("skip", DUES, NOW) == DUES[-1:], "that run is on time"
    assert to_run("skip", DUES[:-2], NOW) == []
    assert to_run("run_once", [], NOW) == to_run("skip", [], NOW) == []


def test_a_run_has_the_id_of_its_time() -> None:
    assert run_id("nightly", datetime(2026, 11, 16, 9, tzinfo=UTC)) == "sched-nightly-20261116T090000Z"
    assert len(run_id("n" * 32, NOW)) <= 64
