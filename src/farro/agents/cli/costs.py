"""`farro costs`: what agents' calls cost, and what the budgets have left."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import click

from farro.agents import costs as spending
from farro.agents.costs import BudgetStatus, Costs, CostSum, GroupBy
from farro.cli.options import application, common, open_root
from farro.cli.terminal import answer, note, say, show_table
from farro.host.clock import SystemClock
from farro.roles.money import usd
from farro.store.ledger import Spent

UNKNOWN = "unknown"


@click.command()
@click.argument("job", required=False)
@click.option("--day", metavar="DAY", help="Only this UTC day: 2026-11-16, today or yesterday.")
@click.option(
    "--since", metavar="DAY|DURATION", help="From this UTC day on, or the last 7d; else today, or all of JOB."
)
@click.option("--by", type=click.Choice(["job", "role", "model", "day"]), help="A line for each; else role, or model.")
@common
def costs(
    job: str | None, day: str | None, since: str | None, by: GroupBy | None, root: str | None, as_json: bool
) -> None:
    """Show what agents' calls cost in US dollars, today or for one JOB, and what is left of the budgets.

    A call that was not settled counts as the most that it may have cost, and is marked as estimated (~). A cost that
    nobody knows is said to be unknown: it is in no sum.
    """
    clock = SystemClock()
    wanted = spending.parse_day_range(day=day, since=since, whole=job is not None, now=clock.now())
    store, settings = open_root(root)
    ledger = application().ledger(store.root, settings, clock)
    by = by or ("role" if job is None else "model")
    report = spending.sum_costs(ledger, store, settings, job=job, wanted=wanted, by=by)
    if as_json:
        answer(_data(report))
    else:
        _page(report)


def _data(report: Costs) -> dict[str, Any]:
    return {
        "job_id": report.job_id,
        "first_day": report.first_day,
        "last_day": report.last_day,
        "by": report.by,
        "lines": [{report.by: line.name, **_sums(line)} for line in report.lines],
        "total": _sums(report.total),
        "budgets": [_budget(left) for left in report.budgets],
    }


def _sums(line: CostSum) -> dict[str, Any]:
    return {
        **spent_data(line.spent),
        "tokens": None if line.tokens is None else line.tokens.to_json(),
    }


def spent_data(spent: Spent) -> dict[str, Any]:
    """Return the sums as JSON data. `usd` is null if no cost is known: never zero."""
    unknown = spent.calls > 0 and spent.unknown == spent.calls
    return {
        "calls": spent.calls,
        "usd": None if unknown else number(spent.usd),
        "estimated_calls": spent.estimated,
        "estimated_usd": number(spent.estimated_usd),
        "unknown_calls": spent.unknown,
    }


def _budget(left: BudgetStatus) -> dict[str, Any]:
    remains = left.left_usd
    return {
        "budget": left.name,
        "key": left.key,
        "limit_usd": number(left.limit_usd),
        **spent_data(left.spent),
        "left_usd": None if remains is None else number(remains),
    }


def number(amount: Decimal) -> float:
    """Return a JSON number, rounded to twelve decimals."""
    return round(float(amount), 12)


def _page(report: Costs) -> None:
    of = f" of {report.job_id}" if report.job_id else ""
    if report.first_day == report.last_day:
        when = f"on {report.last_day}"
    else:
        when = (
            f"up to {report.last_day}" if report.first_day is None else f"from {report.first_day} to {report.last_day}"
        )
    if not report.lines:
        say(f"no agent calls{of} {when} (UTC)")
    else:
        say(f"agent calls{of} {when} (UTC)")
        rows = [(report.by.upper(), "CALLS", "INPUT", "OUTPUT", "USD")]
        rows += [_row(line.name, line) for line in report.lines]
        if len(report.lines) > 1:
            rows.append(_row("all", report.total))
        show_table(rows, right=range(1, 5))
    if report.budgets:
        say()
        rows = [("BUDGET", "LIMIT", "SPENT", "LEFT", "KEY")]
        for left in report.budgets:
            remains = left.left_usd
            cells = (usd(left.limit_usd), spent_text(left.spent), UNKNOWN if remains is None else usd(remains))
            rows.append((left.name, *cells, left.key))
        show_table(rows, right=(1, 2, 3))
    _remarks(report)


def _row(name: str, line: CostSum) -> tuple[str, str, str, str, str]:
    tokens = line.tokens
    counts = ("-", "-") if tokens is None else (str(tokens.input_tokens), str(tokens.output_tokens))
    return name, str(line.spent.calls), *counts, spent_text(line.spent)


def spent_text(spent: Spent) -> str:
    """Format a sum: 0.05; ~0.05 if part of it is estimated; unknown; or the known part and that there is more."""
    if spent.calls and spent.unknown == spent.calls:
        return UNKNOWN
    known = f"{'~' if spent.estimated else ''}{usd(spent.usd)}"
    return f"{known} + {UNKNOWN}" if spent.unknown else known


def cost_text(spent: Spent) -> str:
    """Format a sum with its unit and the number of calls."""
    amount = spent_text(spent)
    unit = " USD" if amount[-1].isdigit() else ""
    return f"{amount}{unit}, {spent.calls} {'call' if spent.calls == 1 else 'calls'}"


def _remarks(report: Costs) -> None:
    total = report.total.spent
    if total.estimated:
        one = total.estimated == 1
        calls = "1 call counts as the most that it" if one else f"{total.estimated} calls count as the most that they"
        why = (
            "it was not settled, or its cost was not reported" if one else "not settled, or their cost was not reported"
        )
        note(f"~ {calls} may have cost, {usd(total.estimated_usd)} USD: {why}")
    if total.unknown:
        calls = "1 call is" if total.unknown == 1 else f"{total.unknown} calls are"
        names = " and ".join(f"providers.{name}" for name in report.unpriced)
        note(f"{calls} in no sum: the price is unknown. Name `prices`, or the most of a call as `call_usd`, in {names}")
