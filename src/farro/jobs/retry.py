"""Decide whether attempts remain and how long to wait: decorrelated jitter. Randomness is passed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from farro.documents.constraints import Bounds
from farro.lazy_dataclass import dataclass

Uniform = Callable[[float, float], float]  # random.uniform, or a test double


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """The retry policy, as in the config; the defaults are those of SPEC-1 §9."""

    base_s: Annotated[float, Bounds(more_than=0)] = 0.25
    multiplier: Annotated[float, Bounds(at_least=1)] = 1.5
    max_delay_s: Annotated[float, Bounds(more_than=0)] = 10.0
    max_attempts: Annotated[int, Bounds(at_least=1, at_most=100)] = 3  # of a hop


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryAfter:
    delay_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class GiveUp:
    attempts: int


def next_delay(previous_s: float, policy: RetryPolicy, uniform: Uniform) -> float:
    """Draw a delay between the base and the previous delay times the multiplier, capped.

    The jitter is decorrelated: clients that failed together do not come back together.
    """
    return min(policy.max_delay_s, uniform(policy.base_s, max(policy.base_s, previous_s * policy.multiplier)))


def delay_after(attempts: int, policy: RetryPolicy, uniform: Uniform) -> float:
    """Draw the delay after `attempts`, for callers that do not keep the previous delay."""
    delay = policy.base_s
    for _ in range(min(attempts, 64)):  # the cap is reached long before
        delay = next_delay(delay, policy, uniform)
    return delay


def decide(attempts: int, policy: RetryPolicy, uniform: Uniform) -> RetryAfter | GiveUp:
    """Decide after `attempts` of this hop; a graceful release does not count."""
    if attempts >= policy.max_attempts:
        return GiveUp(attempts=attempts)
    return RetryAfter(delay_s=delay_after(attempts, policy, uniform))
