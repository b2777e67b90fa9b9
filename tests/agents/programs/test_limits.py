"""Reset times of usage limits are found in what programs say to people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from farro.agents.programs.limits import reset_time

NOW = datetime(2026, 11, 18, 10, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("said", "resets"),
    [
        # A clock time leaves out the seconds, so the minute after it is meant.
        ("You've hit your limit · resets 1:14pm (UTC)", "2026-11-18T13:15"),
        ("You've hit your weekly limit · resets Nov 21, 3pm (Europe/Berlin)", "2026-11-21T14:01"),
        ("You've hit your limit. It resets Nov 21 at 3pm (UTC).", "2026-11-21T15:01"),
        ("limit reached · resets at 12am (America/Los_Angeles)", "2026-11-19T08:01"),
        ("resets Jan 2, 3am (UTC)", "2027-01-02T03:01"),
        ("resets 9am (UTC)", "2026-11-19T09:01"),
        ("Claude AI usage limit reached|1795007685", "2026-11-18T13:14:45"),
        ("You've hit your usage limit. Upgrade or try again at 1:14 PM.", "2026-11-18T13:15"),
        ("You've hit your usage limit. Try again at Nov 18th, 2026 1:14 PM.", "2026-11-18T13:15"),
        ("Please retry in 36.5s", "2026-11-18T10:00:36.500000"),
        ("Your quota will reset after 17h20m5s.", "2026-11-19T03:20:05"),
        ("Try again in 2 days 3 hours and 4 minutes.", "2026-11-20T13:04"),
        ("Rate limit reached. Please try again in 250ms.", "2026-11-18T10:00:00.250000"),
    ],
)
def test_a_reset_time_is_found(said: str, resets: str) -> None:
    assert reset_time(said, NOW) == datetime.fromisoformat(resets).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "This request would exceed your account's rate limit. Please try again later.",
        "resets 25:99pm",
        "resets Foo 31, 3pm",
        "resets Feb 30, 3pm (UTC)",
        "try again in 99999999999999999999 days",
        "usage limit reached|9999999999999",
    ],
)
def test_no_time_is_found_where_none_is_named(said: str) -> None:
    assert reset_time(said, NOW) is None


def test_a_time_without_a_zone_is_in_the_zone_of_the_program() -> None:
    here = NOW.astimezone(timezone(timedelta(hours=2)))
    assert reset_time("try again at 1:14 PM", here) == datetime(2026, 11, 18, 11, 15, tzinfo=UTC)


def test_an_unknown_zone_counts_as_that_of_the_program() -> None:
    assert reset_time("resets 1pm (Mars/Olympus)", NOW) == datetime(2026, 11, 18, 13, 1, tzinfo=UTC)


def test_a_time_that_has_just_passed_is_not_tomorrow() -> None:
    assert reset_time("resets 9:59am (UTC)", NOW) == NOW
    assert reset_time("resets 9:57am (UTC)", NOW) == datetime(2026, 11, 19, 9, 58, tzinfo=UTC)
