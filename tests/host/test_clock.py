"""The clocks and the timestamps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.host.clock import Clock, ManualClock, SystemClock
from farro.jobs.times import parse_timestamp, timestamp


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()])
def test_every_clock_keeps_the_port(clock: Clock) -> None:
    assert clock.now().utcoffset() == timedelta(0)
    boot, mono = clock.boottime_s(), clock.monotonic_s()
    clock.sleep(1 / 1024)  # exact in binary
    clock.sleep(-1)
    assert clock.boottime_s() - boot >= 1 / 1024
    assert clock.monotonic_s() - mono >= 1 / 1024


def test_a_jump_of_the_wall_clock_moves_no_other_clock() -> None:
    clock = ManualClock()
    before = clock.now(), clock.boottime_s(), clock.monotonic_s()
    clock.jump(-3600)
    assert clock.now() == before[0] - timedelta(hours=1)
    assert (clock.boottime_s(), clock.monotonic_s()) == before[1:]


def test_sleep_of_the_machine_stops_only_the_monotonic_clock() -> None:
    clock = ManualClock()
    before = clock.now(), clock.boottime_s(), clock.monotonic_s()
    clock.suspend(60)
    assert clock.now() == before[0] + timedelta(seconds=60)
    assert clock.boottime_s() == before[1] + 60
    assert clock.monotonic_s() == before[2]


def test_time_does_not_run_backwards() -> None:
    with pytest.raises(ValueError, match="backwards"):
        ManualClock().advance(-1)


def test_a_timestamp_is_utc_with_milliseconds_and_z() -> None:
    moment = datetime(2026, 3, 1, 12, 0, 0, 999_999, tzinfo=timezone(timedelta(hours=2)))
    assert timestamp(moment) == "2026-03-01T10:00:00.999Z"


@given(st.datetimes(timezones=st.just(UTC)).filter(lambda moment: 1970 < moment.year < 2200))
def test_a_timestamp_reads_back_to_the_millisecond_and_sorts_as_text(moment: datetime) -> None:
    text = timestamp(moment)
    assert parse_timestamp(text) == moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    assert text <= timestamp(moment + timedelta(seconds=1))


@pytest.mark.parametrize("text", ["", "now", "2026-01-01", "2026-W01-1", "2026-01-01T00:00:00", "2026-13-01T00:00:00Z"])
def test_an_invalid_timestamp_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_timestamp(text)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        timestamp(datetime(2026, 1, 1))  # noqa: DTZ001
