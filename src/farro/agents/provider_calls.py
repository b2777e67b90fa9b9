"""Call providers until one answers: retries, waits and fallbacks, with every call in the ledger before and after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Protocol

from farro.agents.accounts import AccountGate, is_lasting_limit, is_momentary_limit, reset_wait_s
from farro.agents.providers.port import SLICE_S, Answer, Provider, ProviderTrouble, Request, Usage
from farro.config.settings import FallbackSettings, ProviderSettings, RoleSettings, Settings
from farro.documents import did_you_mean
from farro.errors import BudgetExceeded, InputError
from farro.host.clock import Clock
from farro.jobs.outcomes import AccountWait
from farro.jobs.retry import RetryPolicy, Uniform, next_delay
from farro.lazy_dataclass import dataclass, replace
from farro.roles.money import exact
from farro.store.ledger import AccountBudget, Budgets, CallEnd, Prices

_POLICY = RetryPolicy()  # SPEC-1 §9
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
        raise InputError(f"role {role} has no provider; set roles.{role}.provider (configured: {there})")
    wanted = (FallbackSettings(provider=first, model=own.model), *own.fallbacks)
    for each in wanted:
        if each.provider not in settings.providers:
            hint = did_you_mean(each.provider, settings.providers)
            there = f"`providers` does not have{hint and '; '}{hint}"
            raise InputError(f"role {role} asks provider {each.provider}, which {there}")
    return wanted


def open_candidates(
    settings: Settings,
    wanted: Sequence[FallbackSettings],
    open_provider: Callable[[str, ProviderSettings], Provider],
) -> list[ProviderCandidate]:
    """Open the providers that may be called, in order."""
    found = []
    for one in wanted:
        own = settings.providers[one.provider]
        provider = open_provider(one.provider, own)
        found.append(ProviderCandidate(name=one.provider, provider=provider, model=one.model or own.model))
    return found


def account_budget(settings: Settings, account: str) -> AccountBudget | None:
    """Return the budget of an account: the lowest that its providers set. None: they set none."""
    names = [name for name in settings.providers if settings.account_of(name) == account]
    own = [(limit, name) for name in names if (limit := settings.providers[name].budget_usd) is not None]
    if not own:
        return None
    limit, name = min(own)
    key = f"providers.{name}.budget_usd"
    return AccountBudget(account=account, limit_usd=exact(limit), key=key, providers=tuple(names))


def budgets_of(settings: Settings, role_usd: float | None, provider: str) -> Budgets:
    """Return the limits on the cost of a call of that provider, whose role may spend `role_usd` a day."""
    limits = (settings.budgets.job_usd, role_usd, settings.budgets.day_usd)
    job, role, day = (None if limit is None else exact(limit) for limit in limits)
    account = account_budget(settings, settings.account_of(provider))
    return Budgets(job_usd=job, role_usd=role, account=account, day_usd=day)


# --- another try, or another provider ---


def retry_delay_s(
    *,
    made: int,
    tries: int,
    previous_s: float,
    retryable: bool,
    retry_after_s: float | None,
    policy: RetryPolicy,
    uniform: Uniform,
) -> float | None:
    """Return the wait before the same provider is called again; None: give it up. Randomness is injected as `uniform`.

    `made` of at most `tries` calls were made; `previous_s` is the wait before the last one (the base, for the first).
    SPEC-1 §9: decorrelated jitter, and at least as long as the provider asked for.
    """
    if not retryable or made >= tries:
        return None
    delay_s = max(next_delay(previous_s, policy, uniform), retry_after_s or 0.0)
    return delay_s if delay_s <= LONGEST_WAIT_S else None


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
    attempt, too. With `wait`, paused accounts are the reason, and the job waits for them instead.
    """

    def __init__(
        self,
        troubles: Sequence[ProviderTrouble],
        tried: Sequence[CallTry],
        refused: BudgetExceeded | None = None,
        *,
        wait: AccountWait | None = None,
    ) -> None:
        last = troubles[-1]
        passing = [trouble for trouble in troubles if trouble.retryable and refused is None]
        waits = [trouble.retry_after_s for trouble in passing]
        self.tried = tuple(tried)
        self.wait = wait
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


def _settle_nothing(call_id: str, *, end: CallEnd, usage: Usage | None, cost_usd: Decimal | None) -> None: ...


@dataclass(kw_only=True)
class ProviderCaller:
    """Makes the calls of one request, once.

    `make_request(candidate, number)` builds the request of each call. `reserve` runs before each call, and `settle`
    gets its id after it; an exception of `reserve` ends everything. `on_answer` gets each answer, with its cost, before
    it is settled, and returns what the caller gets.
    """

    make_request: Callable[[ProviderCandidate, int], Request]
    reserve: Callable[[ProviderCandidate, Request, int], str] = lambda candidate, request, number: ""
    settle: SettleCall = _settle_nothing
    prices: Prices | None = None  # of calls whose cost the provider does not report
    clock: Clock
    uniform: Uniform
    on_answer: Callable[[ProviderCandidate, Answer], Answer] = lambda candidate, answer: answer
    on_try: Callable[[CallTry], None] = lambda tried: None
    gate: AccountGate | None = None  # None: a person asks, and paused accounts are called, too

    def __post_init__(self) -> None:
        self._tried: list[CallTry] = []
        self._troubles: list[ProviderTrouble] = []  # the last one of each provider that was given up
        self._last: ProviderTrouble | None = None  # of all calls

    def call(self, candidates: Sequence[ProviderCandidate], *, first_number: int = 1) -> AnsweredCall:
        """Return the first answer; raises AllProvidersFailed, with every call, if there is none.

        Calls are numbered from `first_number` over all candidates. BudgetExceeded is raised before the first call only:
        a budget that refuses a later call must not hide why that call was needed. A call that an exception from outside
        ends is not settled, because its cost is unknown.
        """
        assert candidates, "at least one provider must be called"
        for candidate in candidates:
            answer = self._call_until_given_up(candidate, first_number)
            if answer is not None:
                return AnsweredCall(answer=answer, candidate=candidate, tried=tuple(self._tried))
        raise AllProvidersFailed(self._troubles, self._tried, wait=self._wait())

    def _wait(self) -> AccountWait | None:
        return None if self.gate is None else self.gate.wait

    def _call_until_given_up(self, candidate: ProviderCandidate, first_number: int) -> Answer | None:
        """Call one provider until it answers; None if it was given up."""
        made, wait_s, previous_s = 0, 0.0, _POLICY.base_s
        while True:
            _sleep(wait_s, self.clock)
            held = None if self.gate is None else self.gate.refusal(candidate.name)
            if held is not None:
                self._troubles.append(held)
                return None
            result = self._call(candidate, first_number + len(self._tried), wait_s, first=made == 0)
            if isinstance(result, Answer):
                return result
            made += 1
            if result.violation:
                raise AllProvidersFailed([*self._troubles, result], self._tried)
            pause_s = reset_wait_s(result, self.clock.now())
            lasts = self.gate is not None and is_lasting_limit(result, pause_s)
            passes = self.gate is not None and is_momentary_limit(result, pause_s)
            delay_s = retry_delay_s(
                made=made,
                tries=candidate.provider.tries,
                previous_s=previous_s,
                retryable=(result.retryable or passes) and not lasts,
                retry_after_s=pause_s,
                policy=_POLICY,
                uniform=self.uniform,
            )
            if delay_s is None:
                self._troubles.append(result)
                if self.gate is not None:
                    self.gate.note_trouble(candidate.name, result)
                return None
            wait_s, previous_s = delay_s, min(delay_s, _POLICY.max_delay_s)

    def _call(
        self, candidate: ProviderCandidate, number: int, waited_s: float, *, first: bool
    ) -> Answer | ProviderTrouble:
        """Make one call: reserve, ask, settle, record. `first`: the first one of this provider."""
        request = self.make_request(candidate, number)
        try:
            call_id = self.reserve(candidate, request, number)
        except BudgetExceeded as refused:
            if self._last is None and not self._troubles:
                raise
            again = [] if first or self._last is None else [self._last]
            raise AllProvidersFailed([*self._troubles, *again], self._tried, refused, wait=self._wait()) from None
        try:
            answer = self._ask(candidate, request)
        except ProviderTrouble as trouble:
            end: CallEnd = "failed" if trouble.charged else "not_charged"
            self.settle(call_id, end=end, usage=trouble.usage, cost_usd=trouble.cost_usd)
            self._record(candidate, number, waited_s, trouble)
            self._last = trouble
            return trouble
        self.settle(call_id, end="answered", usage=answer.usage, cost_usd=answer.cost_usd)
        self._record(candidate, number, waited_s, None)
        if self.gate is not None:
            self.gate.note_answer(candidate.name)
        return answer

    def _ask(self, candidate: ProviderCandidate, request: Request) -> Answer:
        try:
            answer = candidate.provider.answer(request)
            cost_usd = self._cost_usd(candidate, answer.cost_usd, answer.usage, answer.model)
            return self.on_answer(candidate, replace(answer, cost_usd=cost_usd))
        except ProviderTrouble as trouble:  # a refusal may have used tokens, too
            trouble.cost_usd = self._cost_usd(candidate, trouble.cost_usd, trouble.usage, None)
            raise
        finally:
            if request.partial is not None:
                request.partial.close()

    def _cost_usd(
        self, candidate: ProviderCandidate, reported: Decimal | None, usage: Usage | None, model: str | None
    ) -> Decimal | None:
        """Return the cost as the provider reported it, else computed from its tokens; None if unknown."""
        for name in (model, candidate.model):  # the model that answered may have a name that no price table has
            if reported is None and usage is not None and self.prices is not None:
                reported = self.prices.cost_usd(candidate.name, name, usage)
        return reported

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
        self._tried.append(record)
        self.on_try(record)


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
