"""When to try again: decorrelated jitter, and the decision whether attempts remain. Pure; randomness is handed in.

Sleeping, and what counts as an attempt, live elsewhere (services; kernel.envelope).
"""

from __future__ import annotations

from collections.abc import Callable

from farro.lazy_dataclass import dataclass

Uniform = Callable[[float, float], float]  # random.uniform, or a test's


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """The pinned policy of SPEC-1 §9."""

    base_s: float = 0.25
    multiplier: float = 1.5
    max_delay_s: float = 10.0
    max_attempts: int = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Again:
    delay_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class GiveUp:
    attempts: int


def next_delay(previous_s: float, policy: RetryPolicy, uniform: Uniform) -> float:
    """Decorrelated jitter: somewhere between the base and the previous delay times the multiplier, capped.

    Each client wanders by itself, so a crowd that failed together does not come back together.
    """
    return min(policy.max_delay_s, uniform(policy.base_s, max(policy.base_s, previous_s * policy.multiplier)))


def delay_after(attempts: int, policy: RetryPolicy, uniform: Uniform) -> float:
    """The delay after so many attempts, walked from the base: for callers that keep no previous delay."""
    delay = policy.base_s
    for _ in range(min(attempts, 64)):  # at the cap long before
        delay = next_delay(delay, policy, uniform)
    return delay


def decide(attempts: int, policy: RetryPolicy, uniform: Uniform) -> Again | GiveUp:
    """After `attempts` of this hop that count (a graceful release counts as none)."""
    if attempts >= policy.max_attempts:
        return GiveUp(attempts=attempts)
    return Again(delay_s=delay_after(attempts, policy, uniform))
