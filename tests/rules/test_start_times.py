"""Durations and start times as people write them."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.kernel.moments import parse_duration
from farro.kernel.start_times import parse_start

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
def test_what_is_no_duration_is_refused(text: str) -> None:
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
    ],
)
def test_a_start_time_is_read(text: str, wanted: str) -> None:
    assert parse_start(text, NOW, local).isoformat() == wanted


@pytest.mark.parametrize("text", ["11:59", "12:00", "2026-11-15T12:00", "2020-01-01T00:00Z"])
def test_a_start_time_in_the_past_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is in the past"):
        parse_start(text, NOW, local)


@pytest.mark.parametrize("text", ["", "soon", "24:00", "12:60", "2026-11-16", "2026-13-01T00:00", "yesterday 09:00"])
def test_what_is_no_start_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time such as"):
        parse_start(text, NOW, local)
