"""Durations as a person writes them. Timestamps are tested with the envelope that carries them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.jobs.times import MAX_DURATION_S, UNITS, duration_fault, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("10m", 600),
        ("2h", 7200),
        ("1d", 86_400),
        ("1w", 604_800),
        ("1h30m", 5400),
        ("0.5s", 0.5),
        ("0.25", 0.25),
        ("1.5h", 5400),
        ("1h0.5m", 3630),
        ("1w2d3h4m5s", 604_800 + 2 * 86_400 + 3 * 3600 + 4 * 60 + 5),
        (" 7D ", 7 * 86_400),
        ("0", 0),
        ("36525d", MAX_DURATION_S),
    ],
)
def test_a_duration_is_read_as_a_person_means_it(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' is not a duration such as 90s, 10m, 2h, 1d, 1w or 1h30m"),
        ("soon", "'soon' is not a duration"),
        ("10min", "the units are w, d, h, m and s"),
        ("1,5h", "the decimal mark is a point: 1.5h"),
        (".5h", "is not a duration such as"),
        ("1.h", "is not a duration such as"),
        ("1.5.5h", "is not a duration such as"),
        ("1e3s", "the units are w, d, h, m and s"),
        ("-5m", "cannot be negative"),
        ("30m1h", "each unit once, the larger first"),
        ("1h1h", "each unit once, the larger first"),
        ("h", "is not a duration such as"),
        ("1h30", "is not a duration such as"),
        ("٣", "is not a duration such as"),
        ("36526d", "longer than a hundred years"),
        ("9" * 5000, "is not a duration such as"),
    ],
)
def test_an_invalid_duration_is_refused_with_a_valid_example(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=r"duration|hundred years") as refused:
        parse_duration(text)
    assert says in str(refused.value)


@given(st.lists(st.integers(0, 99), min_size=5, max_size=5))
def test_parts_add_up(counts: list[int]) -> None:
    text = "".join(f"{count}{unit}" for count, unit in zip(counts, UNITS, strict=True))
    assert parse_duration(text) == sum(count * UNITS[unit] for count, unit in zip(counts, UNITS, strict=True))


@given(st.text(max_size=30))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    fault = duration_fault(text)
    if fault is None:
        assert 0 <= parse_duration(text) <= MAX_DURATION_S
    else:
        with pytest.raises(ValueError, match="duration"):
            parse_duration(text)
