"""Durations and start times as people write them."""

from __future__ import annotations

import contextlib
import re
import time
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.host.clock import ManualClock
from farro.jobs.request import JobRequest
from farro.jobs.start_times import parse_start
from farro.jobs.times import parse_duration
from farro.plans.cron import Cron, due
from farro.queue.submit import SubmitPolicy, offline_options

TOKYO = timezone(timedelta(hours=9))
NOW = datetime(2026, 11, 15, 3, 0, tzinfo=UTC)  # noon in Tokyo


def local(moment: datetime) -> datetime:
    return moment.replace(tzinfo=TOKYO) if moment.tzinfo is None else moment.astimezone(TOKYO)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("90", 90), ("90s", 90), ("0.5s", 0.5), ("10m", 600), ("2h", 7200), ("1d", 86400), ("1w", 604800)),
        *(("1h30m", 5400), ("1d12h", 129600), (" 5m ", 300), ("0", 0)),
    ],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "soon", "-5m", "5 m", "10x", "30m1h", "1h1h", "1.h", "٣m", "inf", "1e3"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration such as"):
        parse_duration(text)


@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_is_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_duration(text) >= 0


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2026-11-16T09:00", "2026-11-16T00:00:00+00:00"),
        ("2026-11-16 09:00", "2026-11-16T00:00:00+00:00"),
        ("2026-11-16T09:00:30Z", "2026-11-16T09:00:30+00:00"),
        ("2026-11-16T09:00-05:00", "2026-11-16T14:00:00+00:00"),
        ("12:01", "2026-11-15T03:01:00+00:00"),
        ("today 23:59:59", "2026-11-15T14:59:59+00:00"),
        ("tomorrow 9:30", "2026-11-16T00:30:00+00:00"),
        ("Tomorrow 00:00", "2026-11-15T15:00:00+00:00"),
        ("tomorrow", "2026-11-15T15:00:00+00:00"),
        ("2026-11-16", "2026-11-15T15:00:00+00:00"),
        ("2026-11-16 9:00", "2026-11-16T00:00:00+00:00"),
        ("monday", "2026-11-15T15:00:00+00:00"),
        ("Monday 09:00", "2026-11-16T00:00:00+00:00"),
        ("sunday 12:01", "2026-11-15T03:01:00+00:00"),  # today, later
        ("sunday 12:00", "2026-11-22T03:00:00+00:00"),  # that time has passed today
        ("sunday", "2026-11-21T15:00:00+00:00"),
        ("+5m", "2026-11-15T03:05:00+00:00"),
        ("+1h30m", "2026-11-15T04:30:00+00:00"),
    ],
)
def test_a_start_time_is_read(text: str, wanted: str) -> None:
    assert parse_start(text, NOW, local).isoformat() == wanted


@pytest.mark.parametrize(
    "text", ["11:59", "12:00", "2026-11-15T12:00", "2020-01-01T00:00Z", "today", "today 9:00", "2026-11-15", "+0s"]
)
def test_a_start_time_in_the_past_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is in the past"):
        parse_start(text, NOW, local)


@pytest.mark.parametrize(
    "text", ["", "soon", "yesterday 09:00", "tomorrow09:00", "9:00 tomorrow", "2026-11", "nextday"]
)
def test_an_invalid_start_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time such as"):
        parse_start(text, NOW, local)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2027-02-30", "a day that does not exist: February 2027 has 28 days"),
        ("2027-02-30T10:00Z", "a day that does not exist: February 2027 has 28 days"),
        ("2026-13-01T00:00", "there is no month 13"),
        ("0000-01-01", "years begin with 1"),
        ("24:00", "midnight is 00:00 of the day that begins"),
        ("25:00", "hours go from 00 to 23"),
        ("tomorrow 12:60", "minutes go from 00 to 59"),
        ("2026-11-16 10:00:61", "seconds go from 00 to 59"),
        ("2026-11-16T25:00Z", "hour must be in 0..23"),
        ("+5 minutes", "'5 minutes' is not a duration such as"),
        ("+200000d", "longer than a hundred years"),
        ("9999-12-31T23:59:59-12:00", "beyond the end of the calendar"),
        ("12:00", "in the past; write `tomorrow` before it"),
        ("9:30", "in the past; write `tomorrow` before it"),
        ("2026-11-15", "in the past; that day has begun: name a time of it"),
        ("2020-01-01T00:00Z", "in the past; name a later time"),
    ],
)
def test_the_refusal_of_a_start_time_says_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        parse_start(text, NOW, local)


BERLIN = ZoneInfo("Europe/Berlin")


def in_berlin(moment: datetime) -> datetime:
    return moment.replace(tzinfo=BERLIN) if moment.tzinfo is None else moment.astimezone(BERLIN)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2027-03-28T02:30", "2027-03-28T01:00:00+00:00"),  # does not exist: the change itself
        ("2027-03-28T01:59:59", "2027-03-28T00:59:59+00:00"),
        ("2027-03-28T03:00", "2027-03-28T01:00:00+00:00"),
        ("2027-10-31T02:30", "2027-10-31T00:30:00+00:00"),  # twice: the first
    ],
)
def test_a_start_time_at_a_clock_change_follows_the_rule_of_cron_lines(text: str, wanted: str) -> None:
    assert parse_start(text, NOW, in_berlin).isoformat() == wanted
    minute, hour, day = text[14:16], text[11:13], text[8:10]
    cron = Cron.parse(f"{minute} {hour} {day} {text[5:7]} *")
    first = next(due(cron, BERLIN, datetime(2027, 1, 1, tzinfo=UTC)))
    assert first == datetime.fromisoformat(wanted).replace(second=0)


def test_where_clocks_change_the_systems_own_zone_is_read_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """A local time that does not exist is given the wrong offset by `astimezone`: an hour too early."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        told = parse_start("2027-03-28T02:30", NOW, lambda moment: moment.astimezone())
        asked = JobRequest(at=datetime(2027, 3, 28, 2, 30))  # noqa: DTZ001
        gap = offline_options(asked, SubmitPolicy(clock=ManualClock(NOW))).not_before
    finally:
        monkeypatch.undo()
        time.tzset()
    assert told.isoformat() == "2027-03-28T01:00:00+00:00"
    assert gap == told, "from Python as well"


@given(st.text(alphabet="0123456789-:+TZ tomorwndyuesahfi", max_size=20))
def test_any_text_is_a_start_time_or_is_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_start(text, NOW, local) > NOW
