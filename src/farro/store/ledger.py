"""The Ledger port: the cost of agents' calls to models. tests/contracts/test_ledger.py tests the guarantees.

- `reserve` returns after the call is on the disk with its highest possible cost: from then on it counts, whatever
  becomes of this process. A call with an unknown price counts as unknown, never as free.
- `settle` replaces that by the actual cost, once, from any process and however late; it counts for the day on which the
  call was reserved. A call that was never settled, or whose actual cost is unknown, counts with its highest possible
  cost and is shown as estimated.
- Many processes may reserve at once: two that check a budget at the same time never exceed it together.
- The time that a reserve takes does not grow with the history, only with the calls of the day.
- A call that cannot be read counts as unknown. While a budget includes unknown calls, further calls are refused.
- Pruning a job removes nothing from its days.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Annotated, Literal, Protocol

from farro.documents.constraints import Bounds
from farro.errors import BudgetExceeded
from farro.lazy_dataclass import dataclass
from farro.roles.money import usd

Tokens = Annotated[int, Bounds(at_least=0)]
UNREADABLE = "unreadable"  # stands for the provider of a call whose record is damaged
CallEnd = Literal["answered", "failed", "not_charged"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Tokens of one call, as the provider counts them. `input_tokens` includes tokens read from or put into a cache."""

    input_tokens: Tokens
    output_tokens: Tokens
    cache_read_tokens: Tokens = 0
    cache_write_tokens: Tokens = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
        )

    def to_json(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


NO_TOKENS = Usage(input_tokens=0, output_tokens=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Charge:
    """A call that is about to be made."""

    job_id: str
    attempt: int
    role: str
    step: str
    number: int  # of the call within its step's attempt, from 1
    provider: str
    model: str | None
    request_sha256: str
    most_usd: Decimal | None  # highest possible cost; None: unknown
    lower: str = "lower max_output_tokens"  # advice for reducing the cost, for the refusal; not stored


@dataclass(frozen=True, kw_only=True, slots=True)
class CallRecord:
    """One call in the ledger."""

    id: str
    at: str
    charge: Charge
    end: CallEnd | None  # None: not settled
    usage: Usage | None
    cost_usd: Decimal | None  # None while unsettled, or unknown

    @property
    def counts_usd(self) -> Decimal | None:
        """Return the amount that counts against budgets: the actual cost, else the highest possible. None: unknown."""
        if self.end == "not_charged":
            return Decimal(0)
        return self.charge.most_usd if self.end is None or self.cost_usd is None else self.cost_usd

    @property
    def estimated(self) -> bool:
        """Return whether it counts with its highest possible cost: it was not settled, or its actual cost is
        unknown."""
        return self.end is None or (self.end != "not_charged" and self.cost_usd is None)


@dataclass(frozen=True, kw_only=True, slots=True)
class AccountBudget:
    """What an account may spend in a UTC day, with all providers that use it."""

    account: str
    limit_usd: Decimal
    key: str  # the setting that defines it
    providers: tuple[str, ...]

    def counts(self, provider: str) -> bool:
        """Return whether a call of that provider counts. One that cannot be read may be of any."""
        return provider in self.providers or provider == UNREADABLE


@dataclass(frozen=True, kw_only=True, slots=True)
class Budgets:
    """Spending limits in US dollars; None: no limit. All but `job_usd` are per UTC day."""

    job_usd: Decimal | None = None
    role_usd: Decimal | None = None
    account: AccountBudget | None = None
    day_usd: Decimal | None = None


class Ledger(Protocol):
    def reserve(self, charge: Charge, budgets: Budgets) -> str:
        """Record a call before it is made, and return its id. BudgetExceeded: it might exceed a budget, or a budget is
        set and the call's cost is unknown; then nothing was written."""

    def settle(self, call_id: str, *, end: CallEnd, usage: Usage | None, cost_usd: Decimal | None) -> None:
        """Record how the call ended and what it cost. Settling again changes nothing. Damaged: no such call was
        reserved."""

    def of_job(self, job_id: str) -> Sequence[CallRecord]:
        """Return every call of that job, in order."""

    def of_day(self, day: str) -> Sequence[CallRecord]:
        """Return every call that was reserved on that UTC day, YYYY-MM-DD, in order."""

    def days(self) -> Sequence[str]:
        """Return the UTC days that have calls, the oldest first."""


class Prices(Protocol):
    def cost_usd(self, provider: str, model: str | None, usage: Usage) -> Decimal | None:
        """Return the cost of these tokens; None: unknown."""

    def most_usd(
        self, provider: str, model: str | None, *, prompt_bytes: int, max_output_tokens: int
    ) -> Decimal | None:
        """Return the highest possible cost of such a call; None: unknown."""


# --- budgets: shared by all ledgers ---


NOTHING = Decimal(0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """A sum of calls. `usd` is the known amount; `estimated_usd` is the part of it that is a highest possible cost."""

    calls: int = 0
    usd: Decimal = NOTHING
    estimated_usd: Decimal = NOTHING
    estimated: int = 0  # calls
    unknown: int = 0  # calls of unknown cost: they are not in `usd`
    first_unknown: str | None = None  # id of one of them

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            calls=self.calls + other.calls,
            usd=self.usd + other.usd,
            estimated_usd=self.estimated_usd + other.estimated_usd,
            estimated=self.estimated + other.estimated,
            unknown=self.unknown + other.unknown,
            first_unknown=self.first_unknown or other.first_unknown,
        )


def spent(calls: Iterable[CallRecord]) -> Spent:
    count = estimated = unknown = 0
    known = guessed = NOTHING
    first = None
    for call in calls:
        count += 1
        amount = call.counts_usd
        if amount is None:
            unknown += 1
            first = first or call.id
            continue
        known += amount
        if call.estimated:
            estimated += 1
            guessed += amount
    return Spent(
        calls=count,
        usd=known,
        estimated_usd=guessed,
        estimated=estimated,
        unknown=unknown,
        first_unknown=first,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """One spending limit, with its name for error messages."""

    what: str  # "the budget of job x"
    key: str  # the setting that defines it
    limit_usd: Decimal
    renews: bool  # at the next UTC day


def budget_of_job(limit_usd: Decimal, job_id: str) -> Budget:
    return Budget(what=f"the budget of job {job_id}", key="budgets.job_usd", limit_usd=limit_usd, renews=False)


def budget_of_role(limit_usd: Decimal, role: str, day: str) -> Budget:
    what, key = f"the budget of role {role} for {day}", f"roles.{role}.budget_usd"
    return Budget(what=what, key=key, limit_usd=limit_usd, renews=True)


def budget_of_account(limit: AccountBudget, day: str) -> Budget:
    what = f"the budget of account {limit.account} for {day}"
    return Budget(what=what, key=limit.key, limit_usd=limit.limit_usd, renews=True)


def budget_of_day(limit_usd: Decimal, day: str) -> Budget:
    return Budget(what=f"the budget of {day}", key="budgets.day_usd", limit_usd=limit_usd, renews=True)


def check_price(charge: Charge, budgets: Budgets) -> None:
    """Raise BudgetExceeded if a budget is set and the call's cost is unknown."""
    if charge.most_usd is not None or budgets == Budgets():
        return
    price = (
        f"a price for {charge.model} under `providers.{charge.provider}.prices`, or "
        if charge.model is not None
        else ""
    )
    raise BudgetExceeded(
        f"the cost of a call to {_called(charge)} is unknown, and a budget is set; the call was not made. "
        f"Set {price}the most that one call may cost as `providers.{charge.provider}.call_usd`"
    )


def check_budget(charge: Charge, budget: Budget, so_far: Spent) -> None:
    """Raise BudgetExceeded if the call might cost more than the budget has left."""
    assert charge.most_usd is not None, "check_price comes first"
    if so_far.unknown:
        calls = f"{so_far.unknown} calls" if so_far.unknown > 1 else "a call"
        wait = "Wait for the next UTC day, or take the limit away" if budget.renews else "Take the limit away"
        raise BudgetExceeded(
            f"it is unknown what is left of {budget.what}: {calls} in it cost an unknown amount, such as "
            f"{so_far.first_unknown} in the ledger. The call to {_called(charge)} was not made. "
            f"{wait} ({budget.key}); `farro costs --by model` shows which they are"
        )
    left = budget.limit_usd - so_far.usd
    if charge.most_usd <= left:
        return
    guessed = f" ({usd(so_far.estimated_usd)} of it estimated)" if so_far.estimated_usd else ""
    wait = ", or wait for the next UTC day" if budget.renews else ""
    raise BudgetExceeded(
        f"the call to {_called(charge)} may cost up to {usd(charge.most_usd)} USD, and {budget.what} has "
        f"{usd(max(left, NOTHING))} USD left: {usd(so_far.usd)} of {usd(budget.limit_usd)} are spent{guessed}. It was "
        f"not made. Raise {budget.key}, or {charge.lower}{wait}; `farro costs` shows where it went"
    )


def _called(charge: Charge) -> str:
    return charge.provider if charge.model is None else f"{charge.provider} ({charge.model})"
