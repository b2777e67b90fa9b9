"""Kill a worker at every mutating call of an agent's attempt: the job completes, nothing is lost or paid twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

import stage
from crash.seams import Counting, KillAt, Seam, placed
from crash.tally import add_figure
from farro.agents.agent_step import Agents
from farro.agents.providers.port import Answer, Request, Usage
from farro.agents.providers.prices import GenaiPrices
from farro.config.settings import PriceSettings, ProviderSettings, Settings
from farro.execution.runners.inline import InlineRunner
from farro.execution.stop import Stop
from farro.execution.tools import Tools
from farro.host.clock import SystemClock
from farro.jobs.retry import RetryPolicy
from farro.sandbox.redaction import Redactor
from farro.store.files import FilesStore
from farro.store.files.ledger import FilesLedger
from farro.store.ledger import CallRecord
from farro.store.port import Submission
from farro.worker.perform import Performer
from farro.worker.snapshot import Snapshots
from one_job import claim_one, commit_one
from stage import Crash

ROLE = "CodeReviewer"
PROMPT = {
    "role": ROLE,
    "rubric": "Say it.",
    "allowed_paths": ["src/"],
    "success": "It was said.",
    "routing": {"mode": "manager"},
}
COST = Decimal("0.15")
SETTINGS = Settings(
    providers={"paid": ProviderSettings(model="m", prices={"m": PriceSettings(input_usd=10, output_usd=10)})}
)


class Paid:
    """Port: Provider. Each answer has a cost."""

    tries = 1

    def __init__(self) -> None:
        self.answers = 0

    def answer(self, request: Request) -> Answer:
        self.answers += 1
        return Answer(
            text='{"verdict": "approve"}', model="m", usage=Usage(input_tokens=9, output_tokens=1), cost_usd=COST
        )

    def close(self) -> None: ...


def opened(root: str, seed: int) -> FilesStore:
    enough = RetryPolicy(base_s=0.0, max_delay_s=0.0, max_attempts=9)
    return stage.open_files(root, seed=seed, store_policy=stage.policy(retry=enough))


def begin(root: str) -> str:
    stage.make(root)
    store = opened(root, 1)
    job_id = store.enqueue(Submission(role=ROLE, prompt=PROMPT))
    store.close()
    return job_id


def attempt(root: str, paid: Paid, seed: int, seam: Seam) -> None:
    """Recover dead agents; let a worker claim the job undisturbed, run and commit it under `seam`, and die."""
    keeping = opened(root, seed)
    keeper = keeping.join("keeper", role=None)
    keeping.recover(keeper)
    for stale in keeping.stale():
        keeping.resolve_stale(keeper, stale)
    keeping.close()
    store, clock = opened(root, seed + 1), SystemClock()
    claim = claim_one(store, store.join("w", role=ROLE))
    if claim is not None:
        agents = Agents(
            settings_of=lambda folder: SETTINGS,
            provider=lambda name, described: paid,
            ledger=FilesLedger(root, clock),
            prices=GenaiPrices,
            redactor=lambda settings: Redactor({}),
            clock=clock,
            uniform=lambda low, high: low,
        )
        runner = InlineRunner(tools=Tools(), clock=clock, agents=agents)
        performer = Performer(
            root=root, base_env={}, runner=runner, clock=clock, snapshots=Snapshots(root=root, clock=clock)
        )
        stop = Stop(clock)
        try:
            with placed(seam):
                commit_one(store, claim, performer.perform(claim, lambda: None, stop))
        except Crash:
            pass
        finally:
            stop.close()
    stage.die(store)


def calls(root: str, job_id: str) -> list[CallRecord]:
    return list(FilesLedger(root, SystemClock()).of_job(job_id))


def judge(root: str, paid: Paid, job_id: str, how: str) -> None:
    (place,) = stage.everywhere(root)[job_id]
    assert place == "agents/Manager/incoming", f"{how}: {place}"
    attempts = sorted(Path(root, place, job_id, "attempts").iterdir())
    assert json.loads((attempts[-1] / "result.json").read_text())["success"], how
    known = calls(root, job_id)
    settled = [call for call in known if call.end == "answered"]
    assert all(call.cost_usd == COST for call in settled), how
    assert len(settled) <= paid.answers, f"{how}: {len(settled)} paid for, {paid.answers} had"
    # Every answer counts: with its cost, or, if its process died before recording the cost, with the highest possible.
    assert len(known) >= paid.answers, f"{how}: {paid.answers} answers, {len(known)} in the ledger"
    kept = [path for one in attempts for path in one.glob("steps/1/calls/*.json")]
    if kept:  # once the answer was on disk, no attempt asked again
        first = min(int(path.parts[-5]) for path in kept)
        made = [call for call in known if call.charge.attempt > first]
        assert made == [], f"{how}: asked again though attempt {first} had the answer"


def kills(upto: int) -> Iterator[KillAt]:
    for n in range(1, upto + 1):
        for after in (False, True):
            yield KillAt(n, after=after)


def test_a_worker_killed_at_every_call_of_an_agents_attempt_loses_and_doubles_no_cost(shm: Path) -> None:
    root = str(shm / "whole")
    job_id, paid, counted = begin(root), Paid(), Counting()
    attempt(root, paid, 10, counted)
    judge(root, paid, job_id, "in peace")
    assert paid.answers == 1
    asked_twice = 0
    for seam in kills(counted.count):
        root = str(shm / f"{seam.n}-{seam.after}")
        job_id, paid = begin(root), Paid()
        attempt(root, paid, 10, seam)
        for again in range(4):
            attempt(root, paid, 20 + 10 * again, Counting())
        judge(root, paid, job_id, f"{seam!r}")
        asked_twice += paid.answers > 1
    assert asked_twice > 0  # after a crash before the answer was stored the next attempt asks again
    add_figure("kill points, an agent's attempt", 2 * counted.count, "points")


@pytest.mark.parametrize("safeguard", ["keep", "settle"])
def test_the_check_of_paid_answers_notices_a_loss(shm: Path, monkeypatch: pytest.MonkeyPatch, safeguard: str) -> None:
    """Prove that the checks can fail: without reuse of stored answers an answer is paid twice, and a ledger without
    calls shows no cost."""
    from farro.agents import call_records as kept

    if safeguard == "keep":
        monkeypatch.setattr(kept, "answers_of_earlier_attempts", lambda earlier, step: {})
        monkeypatch.setattr("farro.agents.agent_step.answers_of_earlier_attempts", lambda earlier, step: {})
    else:
        monkeypatch.setattr(FilesLedger, "reserve", lambda self, charge, budgets: "2026-01-01/none")
        monkeypatch.setattr(FilesLedger, "settle", lambda self, call_id, **told: None)
    noticed = 0
    for n in range(1, 200):
        root = str(shm / str(n))
        job_id, paid = begin(root), Paid()
        seam = KillAt(n, after=True)
        attempt(root, paid, 10, seam)
        for again in range(4):
            attempt(root, paid, 20 + 10 * again, Counting())
        try:
            judge(root, paid, job_id, f"{seam!r}")
        except AssertionError:
            noticed += 1
            break
    assert noticed
