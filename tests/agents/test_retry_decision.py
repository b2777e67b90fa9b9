"""Check what follows a call that brought no answer."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.agents.provider_calls import LONGEST_WAIT_S, retry_delay_s
from farro.jobs.retry import RetryPolicy

PINNED = RetryPolicy()


def after(**told: Any) -> float | None:
    defaults: dict[str, Any] = {
        "made": 1,
        "tries": 4,
        "previous_s": PINNED.base_s,
        "retryable": True,
        "retry_after_s": None,
        "policy": PINNED,
        "uniform": lambda low, high: high,
    }
    return retry_delay_s(**{**defaults, **told})


def test_a_temporary_trouble_is_retried_after_the_specified_backoff() -> None:
    assert after() == 0.375
    assert after(previous_s=0.375) == 0.5625
    assert after(previous_s=100.0) == 10.0


def test_a_permanent_trouble_is_not_retried() -> None:
    assert after(retryable=False) is None


@pytest.mark.parametrize("tries", [1, 2, 4])
def test_a_provider_gets_as_many_tries_as_it_allows(tries: int) -> None:
    decided = [after(made=made, tries=tries) for made in range(1, tries + 1)]
    assert [one is not None for one in decided] == [True] * (tries - 1) + [False]


def test_a_retry_waits_as_long_as_the_provider_asks() -> None:
    assert after(retry_after_s=7.0) == 7.0
    assert after(retry_after_s=0.0) == 0.375


def test_a_provider_that_asks_for_more_than_a_minute_is_given_up_at_once() -> None:
    assert after(retry_after_s=LONGEST_WAIT_S) == LONGEST_WAIT_S
    assert after(retry_after_s=LONGEST_WAIT_S + 1) is None


@given(
    made=st.integers(1, 6),
    tries=st.integers(1, 5),
    previous_s=st.floats(0.25, 10.0),
    retryable=st.booleans(),
    retry_after_s=st.none() | st.floats(0, 1e6),
    seed=st.integers(),
)
def test_a_retry_is_never_too_early_too_late_or_one_too_many(seed: int, **told: Any) -> None:
    decided = after(**told, uniform=random.Random(seed).uniform)
    if decided is not None:
        assert told["retryable"]
        assert told["made"] < told["tries"]
        assert max(PINNED.base_s, told["retry_after_s"] or 0.0) <= decided <= LONGEST_WAIT_S
