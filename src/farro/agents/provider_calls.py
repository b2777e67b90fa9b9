"""Call providers until one answers: retries, waits and fallbacks, with every call in the ledger before and after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, Protocol

from farro.agents.providers.port import SLICE_S, Answer, Provider, ProviderTrouble, Request, Usage
from farro.config.settings import FallbackSettings, RoleSettings, Settings
from farro.errors import BudgetExceeded, InputError
from farro.host.clock import Clock
from farro.jobs.retry import RetryPolicy, Uniform, next_delay
from farro.lazy_dataclass import dataclass
from farro.store.ledger import CallEnd

LONGEST_WAIT_S = 60.0  # a provider that asks for a longer pause is left to the next attempt of the job


# --- which providers are called ---


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderCandidate:
    """A provider that may be called. The first one is the role's own, the others are its fallbacks."""

    name: str  # of the provider in the config
    provider: Provider
    model: str | None


def providers_of_role(settings: Settings, role: str) -> tuple[FallbackSettings, ...]:
    """List the providers of a role by their names in the config, in the order in which they are called.

    Raises InputError if there is none, or if the config lacks one of them.
    """
    own = settings.roles.get(role, RoleSettings())
    first = settings.provider_of(role)
    if first is None:
        if not settings.providers:
            add = "`farro init --agents claude` (or codex, or gemini) adds one"
            raise InputError(f"no provider can answer {role}: the config has no `providers`; {add}")
        there = ", ".join(settings.providers)
        raise InputError(f"role {role} has no provider; set roles.{role}.provider (there are {there})")
    wanted = (FallbackSettings(provider=first, model=own.model), *own.fallbacks)
    for each in wanted:
        if each.provider not in settings.providers:
            raise InputError(f"role {role} asks provider {each.provider}, which {_not_there(settings, each.provider)}")
    return wanted


def _not_there(settings: Settings, name: str) -> str:
    import difflib  # imported late: only a mistake needs it

    near = difflib.get_close_matches(name, settings.providers, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"`providers` does not have{hint}"


# --- another try, or another provider ---


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryCall:
    """Call the same provider again after a wait."""

    delay_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class NextProvider:
    """Give this provider up."""

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
    """Decide what follows a call without an answer. Pure: randomness is injected as `uniform`.

    `made` of at most `tries` calls were made; `previous_s` is the wait before the last one (the base, for the first).
    SPEC-1 §9: decorrelated jitter, and at least as long as the provider asked for. `left_s` is what remains of the
    time of the whole call; a wait that would use it up is not started.
    """
    if not retryable:
        return NextProvider(reason="another try would not help")
    if made >= tries:
        return NextProvider(reason=f"{made} tries" if made > 1 else "one try")
    delay_s = max(next_delay(previous_s, policy, uniform), retry_after_s or 0.0)
    if delay_s > LONGEST_WAIT_S:
        return NextProvider(reason=f"it asks for a pause of {delay_s:g} s")
    if left_s is not None and delay_s >= left_s:
        return NextProvider(reason="the time of the call is over")
    return RetryCall(delay_s=delay_s)


# --- the calls ---


@dataclass(frozen=True, kw_only=True, slots=True)
class CallTry:
    """The record of one call."""

    provider: str
    model: str | None
    number: int  # of all calls, as in the request's key
    kind: str  # "answered", or the kind of the trouble
    message: str  # empty for an answer
    waited_s: float  # before it

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, kw_only=True, slots=True)
class AnsweredCall:
    """An answer, the provider that gave it, and every call up to it."""

    answer: Answer
    candidate: ProviderCandidate
    tried: tuple[CallTry, ...]


class AllProvidersFailed(ProviderTrouble):
    """No provider answered, or the budget refused a further call.

    Has the kind of the last trouble. Another attempt of the job may help if it may help with one of the troubles, and
    waits as long as the shortest pause that they ask for. If a budget refused the next call, it would refuse that
    attempt, too.
    """

    def __init__(
        self, troubles: Sequence[ProviderTrouble], tried: Sequence[CallTry], refused: BudgetExceeded | None = None
    ) -> None:
        last = troubles[-1]
        passing = [trouble for trouble in troubles if trouble.retryable and refused is None]
        waits = [trouble.retry_after_s for trouble in passing]
        self.tried = tuple(tried)
        super().__init__(
            _summary(troubles, tried) + ("" if refused is None else f". No further try was made: {refused}"),
            kind=last.kind,
            retryable=bool(passing) and not last.violation,
            retry_after_s=None if None in waits else min((wait for wait in waits if wait is not None), default=None),
            usage=last.usage,
            cost_usd=last.cost_usd,
            charged=last.charged,
            violation=last.violation,
        )


class SettleCall(Protocol):
    def __call__(self, call_id: str, *, end: CallEnd, usage: Usage | None, cost_usd: Decimal | None) -> None:
        """As Ledger.settle."""


@dataclass(frozen=True, kw_only=True)
class ProviderCaller:
    """Makes the calls of one request.

    `make_request(candidate, number)` builds the request of each call. `reserve` runs before each call, and `settle`
    gets its id after it; an exception of `reserve` ends everything.
    """

    make_request: Callable[[ProviderCandidate, int], Request]
    reserve: Callable[[ProviderCandidate, Request, int], str]
    settle: SettleCall
    clock: Clock
    uniform: Uniform
    policy: RetryPolicy = RetryPolicy()
    on_try: Callable[[CallTry], None] = lambda _: None

    def call(
        self, candidates: Sequence[ProviderCandidate], *, first_number: int = 1, deadline_s: float | None = None
    ) -> AnsweredCall:
        """Return the first answer; raises AllProvidersFailed, with every call, if there is none.

        Calls are numbered from `first_number` over all candidates. `deadline_s` is a time of `clock.monotonic_s`; no
        call lasts longer. BudgetExceeded is raised before the first call only: a budget that refuses a later call must
        not hide why that call was needed. A call that an exception from outside ends is not settled, because its cost
        is unknown.
        """
        assert candidates, "at least one provider must be called"
        calls = _Calls(self, first_number, deadline_s)
        for candidate in candidates:
            answer = calls.call_until_given_up(candidate)
            if answer is not None:
                return AnsweredCall(answer=answer, candidate=candidate, tried=tuple(calls.tried))
            if deadline_s is not None and self.clock.monotonic_s() >= deadline_s:
                break
        raise AllProvidersFailed(calls.troubles, calls.tried)


class _Calls:
    """The calls made so far for one request."""

    def __init__(self, caller: ProviderCaller, first_number: int, deadline_s: float | None) -> None:
        self._caller = caller
        self._first_number = first_number
        self._deadline_s = deadline_s
        self._last: ProviderTrouble | None = None  # of all calls
        self.tried: list[CallTry] = []
        self.troubles: list[ProviderTrouble] = []  # the last one of each provider that was given up

    def call_until_given_up(self, candidate: ProviderCandidate) -> Answer | None:
        """Call one provider until it answers; None if it was given up."""
        caller = self._caller
        made, wait_s, previous_s = 0, 0.0, caller.policy.base_s
        while True:
            _sleep(wait_s, caller.clock)
            result = self._call(candidate, wait_s, first=made == 0)
            if isinstance(result, Answer):
                return result
            made += 1
            if result.violation:
                raise AllProvidersFailed([*self.troubles, result], self.tried)
            decision = decide_retry(
                made=made,
                tries=candidate.provider.tries,
                previous_s=previous_s,
                retryable=result.retryable,
                retry_after_s=result.retry_after_s,
                left_s=self._left_s(),
                policy=caller.policy,
                uniform=caller.uniform,
            )
            if isinstance(decision, NextProvider):
                self.troubles.append(result)
                return None
            wait_s = decision.delay_s
            previous_s = min(decision.delay_s, caller.policy.max_delay_s)

    def _call(self, candidate: ProviderCandidate, waited_s: float, *, first: bool) -> Answer | ProviderTrouble:
        """Make one call: reserve, ask, settle, record. `first`: the first one of this provider."""
        caller, number = self._caller, self._first_number + len(self.tried)
        request = caller.make_request(candidate, number)
        left_s = self._left_s()
        if left_s is not None:
            request = replace(request, timeout_s=max(min(request.timeout_s, left_s), SLICE_S))
        try:
            call_id = caller.reserve(candidate, request, number)
        except BudgetExceeded as refused:
            if self._last is None:
                raise
            troubles = self.troubles if first else [*self.troubles, self._last]
            raise AllProvidersFailed(troubles, self.tried, refused) from None
        try:
            answer = candidate.provider.answer(request)
        except ProviderTrouble as trouble:
            end: CallEnd = "failed" if trouble.charged else "not_charged"
            caller.settle(call_id, end=end, usage=trouble.usage, cost_usd=trouble.cost_usd)
            self._record(candidate, number, waited_s, trouble)
            self._last = trouble
            return trouble
        caller.settle(call_id, end="answered", usage=answer.usage, cost_usd=answer.cost_usd)
        self._record(candidate, number, waited_s, None)
        return answer

    def _record(
        self, candidate: ProviderCandidate, number: int, waited_s: float, trouble: ProviderTrouble | None
    ) -> None:
        record = CallTry(
            provider=candidate.name,
            model=candidate.model,
            number=number,
            kind="answered" if trouble is None else trouble.kind,
            message="" if trouble is None else str(trouble),
            waited_s=waited_s,
        )
        self.tried.append(record)
        self._caller.on_try(record)

    def _left_s(self) -> float | None:
        return None if self._deadline_s is None else self._deadline_s - self._caller.clock.monotonic_s()


def _sleep(seconds: float, clock: Clock) -> None:
    """Sleep in slices, so that an exception raised in this thread is noticed between two of them."""
    until = clock.monotonic_s() + seconds
    while (left := until - clock.monotonic_s()) > 0:
        clock.sleep(min(SLICE_S, left))


def _summary(troubles: Sequence[ProviderTrouble], tried: Sequence[CallTry]) -> str:
    """Show one trouble as it is, else the last of each provider: a fallback must not hide the first one."""
    each = [str(trouble) for trouble in troubles]
    calls = f" ({len(tried)} calls)" if len(tried) > 1 else ""
    return f"{each[0]}{calls}" if len(each) == 1 else f"no provider answered{calls}: {'; '.join(each)}"
