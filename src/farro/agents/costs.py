"""Sum what agents' calls cost, by job, role, model or day, and compute what the budgets have left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Literal

from farro.agents.providers.port import Usage
from farro.config.settings import Settings
from farro.errors import InputError, UnknownJob
from farro.jobs.times import duration_fault, parse_duration
from farro.lazy_dataclass import dataclass
from farro.queue import find_job
from farro.roles.money import exact
from farro.store.ledger import CallRecord, Ledger, Spent, spent
from farro.store.port import Store

GroupBy = Literal["job", "role", "model", "day"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CostSum:
    """The sum of some calls."""

    name: str
    spent: Spent
    tokens: Usage | None  # None: no call reported tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetStatus:
    """A budget and what it has left; None if a call of unknown cost counts against it."""

    name: str
    key: str  # in the config
    limit_usd: Decimal
    spent: Spent

    @property
    def left_usd(self) -> Decimal | None:
        return None if self.spent.unknown else max(Decimal(0), self.limit_usd - self.spent.usd)


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """The costs of some days, with the budgets of the last one."""

    job_id: str | None
    first_day: str | None  # None: from the first call on
    last_day: str
    by: GroupBy
    lines: tuple[CostSum, ...]
    total: CostSum
    budgets: tuple[BudgetStatus, ...]
    unpriced: tuple[str, ...]  # providers with calls of unknown cost


@dataclass(frozen=True, kw_only=True, slots=True)
class DayRange:
    """A range of UTC days, both ends included; None means no lower bound."""

    first: str | None
    last: str


def parse_day_range(*, day: str | None, since: str | None, whole: bool, now: datetime) -> DayRange:
    """Parse the days of a query. Without `day` and `since` it means today, or every day if `whole`."""
    today = now.astimezone(UTC).date()
    if day is not None and since is not None:
        raise InputError("--day and --since exclude each other")
    if day is not None:
        wanted = _day(day, today)
        return DayRange(first=wanted, last=wanted)
    if since is not None:
        return DayRange(first=_begin(since, today, now), last=today.isoformat())
    return DayRange(first=None if whole else today.isoformat(), last=today.isoformat())


def _day(text: str, today: date) -> str:
    named = {"today": today, "yesterday": today - timedelta(days=1)}
    try:
        return (named.get(text.lower()) or date.fromisoformat(text)).isoformat()
    except ValueError:
        raise InputError(f"{text!r} is not a day such as {today.isoformat()}, today or yesterday (UTC)") from None


def _begin(text: str, today: date, now: datetime) -> str:
    if duration_fault(text) is None and not text.isdigit():
        return (now.astimezone(UTC) - timedelta(seconds=parse_duration(text))).date().isoformat()
    try:
        return _day(text, today)
    except InputError:
        raise InputError(f"{text!r} is neither a day such as {today.isoformat()} nor a duration such as 7d") from None


def sum_costs(
    ledger: Ledger, store: Store, settings: Settings, *, job: str | None, wanted: DayRange, by: GroupBy
) -> Costs:
    """Sum the costs of those days, of one job or of all, and read the budgets of the last day."""
    job_id, calls = _calls(ledger, store, job, wanted)
    chosen = sorted(_grouped(calls, by).items())
    budgets = _budgets(ledger, settings, wanted.last, job_id)
    unknown = {call.charge.provider for call in calls if call.counts_usd is None}
    return Costs(
        job_id=job_id,
        first_day=wanted.first,
        last_day=wanted.last,
        by=by,
        lines=tuple(_line(name, some) for name, some in chosen),
        total=_line("", calls),
        budgets=budgets,
        unpriced=tuple(sorted(unknown)),
    )


def _calls(ledger: Ledger, store: Store, job: str | None, wanted: DayRange) -> tuple[str | None, Sequence[CallRecord]]:
    if job is None:
        return None, [call for day in _within(ledger.days(), wanted) for call in ledger.of_day(day)]
    try:
        job_id = find_job.resolve(store, job)
        return job_id, [call for call in ledger.of_job(job_id) if _within([call.at[:10]], wanted)]
    except UnknownJob:  # it may have been pruned: the ledger still has its calls
        calls = [call for day in _within(ledger.days(), wanted) for call in ledger.of_day(day)]
        own = [call for call in calls if call.charge.job_id == job]
        if not own:
            raise
        return job, own


def _within(found: Iterable[str], wanted: DayRange) -> list[str]:
    return [day for day in found if (wanted.first or "") <= day <= wanted.last]


def _grouped(calls: Iterable[CallRecord], by: GroupBy) -> Mapping[str, list[CallRecord]]:
    grouped: dict[str, list[CallRecord]] = {}
    for call in calls:
        charge = call.charge
        if by == "model":
            name = charge.provider if charge.model is None else f"{charge.provider}/{charge.model}"
        else:
            name = {"job": charge.job_id, "role": charge.role, "day": call.at[:10]}[by]
        grouped.setdefault(name, []).append(call)
    return grouped


def _line(name: str, calls: Sequence[CallRecord]) -> CostSum:
    said = [call.usage for call in calls if call.usage is not None]
    counts = {one.name: sum(getattr(usage, one.name) for usage in said) for one in fields(Usage)}
    return CostSum(name=name, spent=spent(calls), tokens=Usage(**counts) if said else None)


def _budgets(ledger: Ledger, settings: Settings, day: str, job_id: str | None) -> tuple[BudgetStatus, ...]:
    from farro.agents.provider_calls import account_budget  # here: `farro show` reads costs, too, and no budgets

    found: list[BudgetStatus] = []
    limits = settings.budgets
    if job_id is not None and limits.job_usd is not None:
        calls: Sequence[CallRecord] = ledger.of_job(job_id)
        found.append(
            BudgetStatus(
                name=f"job {job_id}", key="budgets.job_usd", limit_usd=exact(limits.job_usd), spent=spent(calls)
            )
        )
    roles = {role: own.budget_usd for role, own in settings.roles.items() if own.budget_usd is not None}
    accounts = dict.fromkeys(settings.account_of(name) for name in settings.providers)
    spending = [one for account in accounts if (one := account_budget(settings, account)) is not None]
    if not roles and not spending and limits.day_usd is None:
        return tuple(found)
    calls = ledger.of_day(day)
    for role, limit in sorted(roles.items()):
        key = f"roles.{role}.budget_usd"
        so_far = spent(call for call in calls if call.charge.role == role)
        found.append(BudgetStatus(name=f"{role} on {day}", key=key, limit_usd=exact(limit), spent=so_far))
    for one in spending:
        so_far = spent(call for call in calls if one.counts(call.charge.provider))
        name = f"account {one.account} on {day}"
        found.append(BudgetStatus(name=name, key=one.key, limit_usd=one.limit_usd, spent=so_far))
    if limits.day_usd is not None:
        found.append(BudgetStatus(name=day, key="budgets.day_usd", limit_usd=exact(limits.day_usd), spent=spent(calls)))
    return tuple(found)


def cost_of_job(ledger: Ledger, job_id: str) -> Spent | None:
    """Return the cost of a job's calls; None if it made none."""
    calls = ledger.of_job(job_id)
    return spent(calls) if calls else None
