"""`farro costs`: spending by role, job and day, estimated and unknown costs, and the remaining budgets."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from farro.agents.providers.port import Usage
from farro.host.clock import ManualClock
from farro.store.files.ledger import FilesLedger
from farro.store.ledger import Budgets, Charge
from flows.program import Program, steps

# Noon of the current day, so that the calls count as of today.
NOON = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
TODAY = NOON.date().isoformat()
EARLIER = (NOON - timedelta(days=3)).date().isoformat()


class Calls:
    """Record calls of agents."""

    def __init__(self, root: str) -> None:
        self.clock = ManualClock(NOON)
        self.ledger = FilesLedger(root, self.clock, durable=False)

    def made(
        self,
        job: str,
        cost: str | None,
        *,
        role: str = "Architect",
        model: str | None = "gpt-5",
        most: str | None = "0.50",
        settled: bool = True,
    ) -> None:
        charge = Charge(
            job_id=job,
            attempt=1,
            role=role,
            step="answer",
            number=1,
            provider="openai" if model else "claude",
            model=model,
            request_sha256="0" * 64,
            most_usd=None if most is None else Decimal(most),
        )
        call_id = self.ledger.reserve(charge, Budgets())
        if settled:
            usage = Usage(input_tokens=1000, output_tokens=100)
            self.ledger.settle(call_id, end="answered", usage=usage, cost_usd=None if cost is None else Decimal(cost))


@pytest.fixture
def calls(farro: Program) -> Calls:
    return Calls(str(farro.path))


def configure(farro: Program, **settings: Any) -> None:
    path = farro.path / "agents-config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def test_costs_of_a_fresh_root_are_zero(farro: Program) -> None:
    assert f"no agent calls on {TODAY} (UTC)" in farro.call("costs", code=0).out
    told = farro.call("costs", "--json", code=0).json
    assert (told["total"]["calls"], told["total"]["usd"], told["lines"]) == (0, 0.0, [])


def test_costs_are_summed_by_the_chosen_field(farro: Program, calls: Calls) -> None:
    calls.made("a", "0.0123")
    calls.made("a", "0.02", role="DocWriter", model="gpt-5-mini")
    calls.made("b", "0.1")
    calls.clock.jump(-3 * 86_400)
    calls.made("b", "1")
    by = {
        "role": {"Architect": 0.1123, "DocWriter": 0.02},
        "job": {"a": 0.0323, "b": 0.1},
        "model": {"openai/gpt-5": 0.1123, "openai/gpt-5-mini": 0.02},
        "day": {TODAY: 0.1323},
    }
    for name, wanted in by.items():
        told = farro.call("costs", "--by", name, "--json", code=0).json
        assert {line[name]: line["usd"] for line in told["lines"]} == wanted
        assert told["total"]["usd"] == 0.1323
        assert told["total"]["tokens"]["input_tokens"] == 3000
    for asked in (("--since", "4d"), ("--since", EARLIER)):
        told = farro.call("costs", *asked, "--by", "day", "--json", code=0).json
        assert {line["day"]: line["usd"] for line in told["lines"]} == {EARLIER: 1.0, TODAY: 0.1323}
    assert farro.call("costs", "--day", EARLIER, "--json", code=0).json["total"]["usd"] == 1.0
    page = farro.call("costs", code=0).out.splitlines()
    assert page[0] == f"agent calls on {TODAY} (UTC)"
    assert [line.split() for line in page[1:]] == [
        ["ROLE", "CALLS", "INPUT", "OUTPUT", "USD"],
        ["Architect", "2", "2000", "200", "0.1123"],
        ["DocWriter", "1", "1000", "100", "0.02"],
        ["all", "3", "3000", "300", "0.1323"],
    ]


def test_estimated_and_unknown_costs_are_marked(farro: Program, calls: Calls) -> None:
    calls.made("a", None, settled=False)
    calls.made("a", "0.25")
    calls.made("b", None, role="DocWriter", model=None, most=None)
    told = farro.call("costs", "--json", code=0).json
    architect, writer = told["lines"]
    assert (architect["usd"], architect["estimated_usd"], architect["estimated_calls"]) == (0.75, 0.5, 1)
    assert (writer["usd"], writer["unknown_calls"], writer["estimated_usd"]) == (None, 1, 0.0)
    assert (told["total"]["usd"], told["total"]["unknown_calls"]) == (0.75, 1)
    done = farro.call("costs", code=0)
    rows = [line.split() for line in done.out.splitlines()]
    assert rows[2] == ["Architect", "2", "1000", "100", "~0.75"]
    assert rows[3] == ["DocWriter", "1", "1000", "100", "unknown"]
    assert rows[4] == ["all", "3", "2000", "200", "~0.75", "+", "unknown"]
    assert "1 call counts as the most that it may have cost, 0.50 USD" in done.err
    assert "1 call is in no sum" in done.err
    assert "in providers.claude" in done.err


def test_budgets_show_the_remaining_amount(farro: Program, calls: Calls) -> None:
    configure(
        farro,
        budgets={"day_usd": 5, "job_usd": 0.3},
        roles={"Architect": {"budget_usd": 1.5}, "DocWriter": {}},
        providers={"openai": {"api_key": "${KEY}", "account": "team", "budget_usd": 2}},
    )
    farro.enqueue(steps(["true"]), "--id", "a")
    calls.made("a", "0.25")
    calls.made("b", "0.1", role="DocWriter")
    told = farro.call("costs", "a", "--json", code=0).json["budgets"]
    assert [(one["key"], one["limit_usd"], one["usd"], one["left_usd"]) for one in told] == [
        ("budgets.job_usd", 0.3, 0.25, 0.05),
        ("roles.Architect.budget_usd", 1.5, 0.25, 1.25),
        ("providers.openai.budget_usd", 2.0, 0.35, 1.65),
        ("budgets.day_usd", 5.0, 0.35, 4.65),
    ]
    page = farro.call("costs", code=0).out
    assert [line.split() for line in page.splitlines()[-4:]] == [
        ["BUDGET", "LIMIT", "SPENT", "LEFT", "KEY"],
        ["Architect", "on", TODAY, "1.50", "0.25", "1.25", "roles.Architect.budget_usd"],
        ["account", "team", "on", TODAY, "2.00", "0.35", "1.65", "providers.openai.budget_usd"],
        [TODAY, "5.00", "0.35", "4.65", "budgets.day_usd"],
    ]
    calls.made("c", None, model=None, most=None, role="DocWriter")
    told = farro.call("costs", "--json", code=0).json["budgets"]
    assert [one["left_usd"] for one in told] == [1.25, 1.65, None]


def test_job_cost_spans_days_and_survives_pruning(farro: Program, calls: Calls) -> None:
    farro.enqueue(steps(["true"]), "--id", "mine")
    assert farro.job("mine")["cost"] is None
    calls.made("mine", "0.25")
    calls.clock.jump(-3 * 86_400)
    calls.made("mine", None)
    told = farro.call("costs", "mine", "--json", code=0).json
    assert (told["job_id"], told["first_day"], told["total"]["usd"]) == ("mine", None, 0.75)
    assert [line["model"] for line in told["lines"]] == ["openai/gpt-5"]
    assert farro.job("mine")["cost"]["usd"] == 0.75
    assert "cost      ~0.75 USD, 2 calls" in farro.call("show", "mine", code=0).out
    farro.worked()
    farro.call("prune", "--keep", "0", code=0)
    assert farro.call("costs", "mine", "--json", code=0).json["total"]["usd"] == 0.75
    assert farro.call("costs", "--since", "4d", "--json", code=0).json["total"]["usd"] == 0.75


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("nobody",), "no job nobody"),
        (("--day", "soon"), "not a day such as"),
        (("--since", "soon"), "neither a day such as"),
        (("--since", "1d", "--day", "today"), "exclude each other"),
        (("--by", "colour"), "colour"),
    ],
)
def test_wrong_cost_query_is_refused(farro: Program, args: tuple[str, ...], words: str) -> None:
    done = farro.call("costs", *args)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
