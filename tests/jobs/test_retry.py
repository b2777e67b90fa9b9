"""Retry decisions: decorrelated jitter, pure, within its bounds; and giving up at the limit."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.jobs.retry import GiveUp, RetryAfter, RetryPolicy, decide, delay_after, next_delay


def highest(low: float, high: float) -> float:
    return high


def lowest(low: float, high: float) -> float:
    return low


policies = st.builds(
    RetryPolicy,
    base_s=st.floats(0.001, 5),
    multiplier=st.floats(1, 4),
    max_delay_s=st.floats(5, 100),
    max_attempts=st.integers(1, 20),
)


def test_the_defaults_are_the_pinned_policy() -> None:
    assert RetryPolicy() == RetryPolicy(base_s=0.25, multiplier=1.5, max_delay_s=10.0, max_attempts=3)


def test_the_longest_delays_of_the_pinned_policy() -> None:
    delays = [delay_after(n, RetryPolicy(), highest) for n in range(1, 12)]
    assert delays[:4] == [0.375, 0.5625, 0.84375, 1.265625]
    assert delays[-3:] == [9.61083984375, 10.0, 10.0]


@given(policies, st.integers(1, 200), st.integers(0, 10_000))
def test_a_delay_lies_between_the_base_and_the_cap(policy: RetryPolicy, attempts: int, seed: int) -> None:
    dice = random.Random(seed)
    assert policy.base_s <= delay_after(attempts, policy, dice.uniform) <= policy.max_delay_s


@given(policies, st.floats(0, 200), st.integers(0, 10_000))
def test_the_next_delay_is_at_most_the_multiple_of_the_last(policy: RetryPolicy, previous_s: float, seed: int) -> None:
    delay = next_delay(previous_s, policy, random.Random(seed).uniform)
    assert policy.base_s <= delay <= min(policy.max_delay_s, max(policy.base_s, previous_s * policy.multiplier))


@given(policies, st.integers(1, 60))
def test_the_longest_delay_never_shrinks_with_the_attempts(policy: RetryPolicy, attempts: int) -> None:
    assert delay_after(attempts, policy, highest) <= delay_after(attempts + 1, policy, highest)


@given(policies, st.integers(1, 60))
def test_the_shortest_delay_is_the_base(policy: RetryPolicy, attempts: int) -> None:
    assert delay_after(attempts, policy, lowest) == policy.base_s


@given(policies, st.integers(0, 30), st.integers(0, 10_000))
def test_the_same_dice_give_the_same_decision(policy: RetryPolicy, attempts: int, seed: int) -> None:
    decisions = [decide(attempts, policy, random.Random(seed).uniform) for _ in range(2)]
    assert decisions[0] == decisions[1]


@given(policies, st.integers(0, 30))
def test_it_gives_up_exactly_at_the_limit(policy: RetryPolicy, attempts: int) -> None:
    decision = decide(attempts, policy, lowest)
    if attempts >= policy.max_attempts:
        assert decision == GiveUp(attempts=attempts)
    else:
        assert isinstance(decision, RetryAfter)


def test_jobs_that_failed_together_are_not_retried_together() -> None:
    dice = random.Random(7)
    delays = {round(delay_after(2, RetryPolicy(), dice.uniform), 6) for _ in range(200)}
    assert len(delays) > 150


def test_only_the_given_randomness_is_used() -> None:
    asked: list[tuple[float, float]] = []

    def record(low: float, high: float) -> float:
        asked.append((low, high))
        return high

    delay_after(3, RetryPolicy(), record)
    assert asked == [(0.25, 0.375), (0.25, 0.5625), (0.25, 0.84375)]


@pytest.mark.parametrize("attempts", [64, 65, 10**9])
def test_the_cost_of_a_decision_does_not_grow_with_the_attempts(attempts: int) -> None:
    calls = 0

    def count(low: float, high: float) -> float:
        nonlocal calls
        calls += 1
        return high

    assert delay_after(attempts, RetryPolicy(), count) == 10.0
    assert calls == 64
