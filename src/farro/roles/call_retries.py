"""What comes after a call that brought no answer: another try, or another provider. Pure; randomness is handed in.

Making the calls lives in execution.agents.calling; what a trouble is, in ports.provider; the attempts of a job, which
are another thing, in kernel.retry.
"""

from __future__ import annotations

from farro.jobs.retry import RetryPolicy, Uniform, next_delay
from farro.lazy_dataclass import dataclass

LONGEST_WAIT_S = 60.0  # a provider that wants to be left alone for longer is left to the job's next attempt


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryCall:
    """The same provider, after so long."""

    delay_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class NextProvider:
    """This one is given up."""

    reason: str


def after_trouble(
    *,
    made: int,
    tries: int,
    previous_s: float,
    retryable: bool,
    retry_after_s: float | None,
    left_s: float | None,
    policy: RetryPolicy,
    uniform: Uniform,
) -> RetryCall | NextProvider:
    """After `made` tries of at most `tries`, the last of which was waited for `previous_s` (the base, for the first).

    SPEC-1 §9: decorrelated jitter, and at least as long as the provider asked for. `left_s` is what remains of the
    whole call's time; a wait that would use it up is not begun.
    """
    if not retryable:
        return NextProvider(reason="another try would not help")
    if made >= tries:
        return NextProvider(reason=f"{made} tries" if made > 1 else "one try")
    delay_s = max(next_delay(previous_s, policy, uniform), retry_after_s or 0.0)
    if delay_s > LONGEST_WAIT_S:
        return NextProvider(reason=f"it wants to be left alone for {delay_s:g} s")
    if left_s is not None and delay_s >= left_s:
        return NextProvider(reason="the time of the call is over")
    return RetryCall(delay_s=delay_s)
