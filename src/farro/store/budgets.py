"""Sum up the cost of calls, and check whether another call fits into the budgets. Shared by all ledgers."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from farro.errors import BudgetExceeded
from farro.lazy_dataclass import dataclass
from farro.roles.money import usd
from farro.store.ledger import Budgets, CallRecord, Charge

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


def of_job(limit_usd: Decimal, job_id: str) -> Budget:
    return Budget(what=f"the budget of job {job_id}", key="budgets.job_usd", limit_usd=limit_usd, renews=False)


def of_role(limit_usd: Decimal, role: str, day: str) -> Budget:
    what, key = f"the budget of role {role} for {day}", f"roles.{role}.budget_usd"
    return Budget(what=what, key=key, limit_usd=limit_usd, renews=True)


def of_day(limit_usd: Decimal, day: str) -> Budget:
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


def check(charge: Charge, budget: Budget, so_far: Spent) -> None:
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
