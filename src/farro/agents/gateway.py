"""Asking until somebody answers: tries, waits and fallbacks, with the ledger told of every call before and after it.

Which try comes next is decided in kernel.calls; what is asked, and what is made of the answer, lives beside this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, Protocol

from farro.agents.providers.port import SLICE_S, Answer, Provider, ProviderTrouble, Request, Usage
from farro.config.settings import FallbackSettings, RoleSettings, Settings
from farro.errors import BudgetExceeded, InputError
from farro.host.clock_port import Clock
from farro.jobs.retry import RetryPolicy, Uniform, next_delay
from farro.lazy_dataclass import dataclass
from farro.store.ledger import CallEnd


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderCandidate:
    """Somebody who may be asked; the first of them is the role's own, the others are its fallbacks."""

    name: str  # of the provider, in the config
    provider: Provider
    model: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CallTry:
    """One call, for the record."""

    provider: str
    model: str | None
    number: int  # of all calls, as in the request's key
    kind: str  # "answered", or what the trouble was
    message: str  # empty for an answer
    waited_s: float  # before it

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, kw_only=True, slots=True)
class AnsweredCall:
    answer: Answer
    candidate: ProviderCandidate
    tried: tuple[CallTry, ...]


class AllProvidersFailed(ProviderTrouble):
    """Everyone was asked, or as many as the budget allowed. It is the last trouble; another attempt of the job may help
    where it may help with one of them, and waits as long as the first of these wants. Where a budget refused the next
    try, it would refuse that attempt, too."""

    def __init__(
        self, troubles: Sequence[ProviderTrouble], tried: Sequence[CallTry], refused: BudgetExceeded | None = None
    ) -> None:
        last = troubles[-1]
        passing = [trouble for trouble in troubles if trouble.retryable and refused is None]
        waits = [trouble.retry_after_s for trouble in passing]
        self.tried = tuple(tried)
        super().__init__(
            _told(troubles, tried) + ("" if refused is None else f". No further try was made: {refused}"),
            kind=last.kind,
            retryable=bool(passing) and not last.violation,
            retry_after_s=None if None in waits else min((wait for wait in waits if wait is not None), default=None),
            usage=last.usage,
            cost_usd=last.cost_usd,
            charged=last.charged,
            violation=last.violation,
        )


def providers_of_role(settings: Settings, role: str) -> tuple[FallbackSettings, ...]:
    """Whom a role asks, in order, by their names in the config. InputError: nobody, or somebody who is not there."""
    own = settings.roles.get(role, RoleSettings())
    first = settings.provider_of(role)
    if first is None:
        if not settings.providers:
            add = "`farro init --agents claude` (or codex, or gemini) adds one"
            raise InputError(f"nobody can answer {role}: the config has no `providers`; {add}")
        there = ", ".join(settings.providers)
        raise InputError(f"role {role} has no provider; set roles.{role}.provider (there are {there})")
    wanted = (FallbackSettings(provider=first, model=own.model), *own.fallbacks)
    for each in wanted:
        if each.provider not in settings.providers:
            raise InputError(f"role {role} asks provider {each.provider}, which {_not_there(settings, each.provider)}")
    return wanted


def _not_there(settings: Settings, name: str) -> str:
    import difflib  # here: only a mistake pays for it

    near = difflib.get_close_matches(name, settings.providers, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"`providers` does not have{hint}"


class SettleCall(Protocol):
    def __call__(self, call_id: str, *, end: CallEnd, usage: Usage | None, cost_usd: Decimal | None) -> None:
        """As Ledger.settle."""


def call_providers(
    candidates: Sequence[ProviderCandidate],
    make_request: Callable[[ProviderCandidate, int], Request],
    *,
    reserve: Callable[[ProviderCandidate, Request, int], str],
    settle: SettleCall,
    clock: Clock,
    uniform: Uniform,
    policy: RetryPolicy | None = None,
    on_try: Callable[[CallTry], None] = lambda _: None,
    first_number: int = 1,
    deadline_s: float | None = None,
) -> AnsweredCall:
    """The first answer that somebody gives. NobodyAnswered, with every try, when nobody does.

    `make_request(candidate, number)` makes the request of each call; numbers go on from `first_number` over all
    candidates. `reserve` comes before each call and its id goes to `settle` after it; what `reserve` raises ends it
    all. BudgetExceeded: before the first call; a budget that refuses a later one must not hide why that was to be
    made. A call that is ended by an exception from outside is not settled: nobody knows what it cost.
    `deadline_s` is on `clock.monotonic_s`; no call lasts beyond it.
    """
    assert candidates, "somebody must be asked"
    policy = policy or RetryPolicy()
    tried: list[CallTry] = []
    troubles: list[ProviderTrouble] = []  # the last one of each candidate
    come: ProviderTrouble | None = None  # the last of all

    def left_s() -> float | None:
        return None if deadline_s is None else deadline_s - clock.monotonic_s()

    for candidate in candidates:
        made, wait_s, previous_s = 0, 0.0, policy.base_s
        while True:
            _sleep(wait_s, clock)
            number = first_number + len(tried)
            request = make_request(candidate, number)
            left = left_s()
            if left is not None:
                request = replace(request, timeout_s=max(min(request.timeout_s, left), SLICE_S))
            try:
                call_id = reserve(candidate, request, number)
            except BudgetExceeded as refused:
                if come is not None:
                    raise AllProvidersFailed([*troubles, come] if made else troubles, tried, refused) from None
                raise
            made += 1
            try:
                answer = candidate.provider.answer(request)
            except ProviderTrouble as trouble:
                settle(
                    call_id,
                    end="failed" if trouble.charged else "not_charged",
                    usage=trouble.usage,
                    cost_usd=trouble.cost_usd,
                )
                tried.append(_tried(candidate, number, wait_s, trouble))
                on_try(tried[-1])
                come = trouble
            else:
                settle(call_id, end="answered", usage=answer.usage, cost_usd=answer.cost_usd)
                tried.append(_tried(candidate, number, wait_s, None))
                on_try(tried[-1])
                return AnsweredCall(answer=answer, candidate=candidate, tried=tuple(tried))
            if come.violation:
                raise AllProvidersFailed([*troubles, come], tried)
            decided = decide_retry(
                made=made,
                tries=candidate.provider.tries,
                previous_s=previous_s,
                retryable=come.retryable,
                retry_after_s=come.retry_after_s,
                left_s=left_s(),
                policy=policy,
                uniform=uniform,
            )
            if not isinstance(decided, RetryCall):
                troubles.append(come)
                break
            wait_s = decided.delay_s
            previous_s = min(decided.delay_s, policy.max_delay_s)
        if deadline_s is not None and clock.monotonic_s() >= deadline_s:
            break
    raise AllProvidersFailed(troubles, tried)


def _sleep(seconds: float, clock: Clock) -> None:
    """In slices: an exception for this thread is heard between two of them."""
    until = clock.monotonic_s() + seconds
    while (left := until - clock.monotonic_s()) > 0:
        clock.sleep(min(SLICE_S, left))


def _tried(candidate: ProviderCandidate, number: int, waited_s: float, trouble: ProviderTrouble | None) -> CallTry:
    return CallTry(
        provider=candidate.name,
        model=candidate.model,
        number=number,
        kind="answered" if trouble is None else trouble.kind,
        message="" if trouble is None else str(trouble),
        waited_s=waited_s,
    )


def _told(troubles: Sequence[ProviderTrouble], tried: Sequence[CallTry]) -> str:
    """One trouble as it is; else each provider's last, so that the first is not hidden by its fallback."""
    each = [str(trouble) for trouble in troubles]
    calls = f" ({len(tried)} calls)" if len(tried) > 1 else ""
    return f"{each[0]}{calls}" if len(each) == 1 else f"nobody answered{calls}: {'; '.join(each)}"


LONGEST_WAIT_S = 60.0  # a provider that wants to be left alone for longer is left to the job's next attempt


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryCall:
    """The same provider, after so long."""

    delay_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class NextProvider:
    """This one is given up."""

    reason: str


def decide_retry(
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
