"""Kill workers and watchdogs at every mutating call of a four-role task with paid answers: it completes at its cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import stage
from crash.seams import Counting, KillAt, Open, Seam, placed
from crash.tally import add_figure
from crash.test_agents import COST, SETTINGS, Paid, calls
from crash.test_manager import PROMPT, ROLES, TASK, Seeds, judge, look, manage, say
from farro.agents.agent_step import Agents
from farro.agents.providers.port import Answer, Request, Usage
from farro.agents.providers.prices import GenaiPrices
from farro.doctor.root import make_root
from farro.execution.runners.inline import InlineRunner
from farro.execution.stop import Stop
from farro.execution.tools import Tools
from farro.host.clock import SystemClock
from farro.jobs.envelope import Lifecycle
from farro.jobs.moves import waits_for_person
from farro.jobs.outcomes import Succeeded
from farro.jobs.retry import RetryPolicy
from farro.jobs.states import Status
from farro.sandbox.redaction import Redactor
from farro.store.files import FilesStore
from farro.store.files.ledger import FilesLedger
from farro.store.port import Submission
from farro.worker.perform import Performer
from farro.worker.snapshot import Snapshots
from one_job import claim_one, commit_one
from stage import Crash

DRAFT = {"role": "DocWriter", "rubric": "More.", "allowed_paths": ["src/"], "success": "Done."}
ANSWERS = {
    "Architect": {"analysis": "So.", "prompts": [DRAFT, DRAFT]},
    "SeniorEngineer": {"summary": "done"},
    "DocWriter": {"summary": "told"},
}
HOPS = 6  # hops with a paid answer
Kill = Callable[[], Seam]


class Paying(Paid):
    """A provider with an answer for each role; the reviewer asks for a change once."""

    def answer(self, request: Request) -> Answer:
        self.answers += 1
        told: object = ANSWERS.get(request.role)
        if request.role == "CodeReviewer":
            again = any("louder" in message.text for message in request.messages)
            told = {"verdict": "approve" if again else "changes_requested", "findings": [{"message": "louder"}]}
        usage = Usage(input_tokens=9, output_tokens=1)
        return Answer(text=json.dumps(told), model="m", usage=usage, cost_usd=COST)


def opened(root: str, seed: int) -> FilesStore:
    enough = RetryPolicy(base_s=0.0, max_delay_s=0.0, max_attempts=9)
    return stage.open_files(root, seed=seed, store_policy=stage.policy(retry=enough))


def work(root: str, seed: int, role: str, paid: Paying, seam: Seam) -> None:
    """Run one turn of a worker process, which is killed during it or dies afterwards."""
    store, clock = opened(root, seed), SystemClock()
    agent = store.join("w", role=role)
    claim = claim_one(store, agent)
    while claim is not None and claim.job_id != "one":  # a child, which this test does not run
        commit_one(store, claim, Succeeded(report=stage.report(claim)))
        claim = claim_one(store, agent)
    if claim is not None:
        agents = Agents(
            settings_of=lambda folder: SETTINGS,
            provider=lambda name, described: paid,
            ledger=FilesLedger(root, clock, durable=False),
            prices=GenaiPrices,
            redactor=lambda settings: Redactor({}),
            clock=clock,
            uniform=lambda low, high: low,
        )
        performer = Performer(
            root=root,
            base_env={},
            runner=InlineRunner(tools=Tools(), clock=clock, agents=agents),
            clock=clock,
            durable=False,
            snapshots=Snapshots(root=root, clock=clock, durable=False),
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


def recover(root: str, seed: int, seam: Seam) -> Lifecycle:
    """Run a watchdog's pass under `seam`, then an undisturbed one, which also requeues stale jobs."""
    dying = opened(root, seed)
    try:
        with placed(seam):
            dying.recover(dying.join("dog", role=None))
    except Crash:
        pass
    stage.die(dying)
    store = opened(root, seed + 50_000)
    keeper = store.join("dog", role=None)
    store.recover(keeper)
    for stale in store.stale():
        store.resolve_stale(keeper, stale)
    life = look(store)
    store.close()
    return life


def live(root: str, paid: Paying, worker: Kill, dog: Kill) -> Lifecycle:
    """Play the whole task: each attempt of a role and each pass of a watchdog is killed once."""
    Path(root).mkdir()
    make_root(root, ROLES)
    Path(root, "tasks").mkdir(exist_ok=True)
    Path(root, "tasks/greet.json").write_text(json.dumps(TASK))
    store = opened(root, 1)
    store.enqueue(Submission(role="Architect", prompt=PROMPT, job_id="one"))
    store.close()
    seeds, killed = Seeds(), set[int]()
    for _ in range(80):
        life = recover(root, seeds(), dog())
        if life.terminal:
            return life
        if waits_for_person(life):
            say(root, seeds(), Open(), None)
        elif life.role == "Manager":
            manage(root, seeds(), Open())
        elif life.status is Status.QUEUED:
            fresh = life.hop_start not in killed
            killed.add(life.hop_start)
            work(root, seeds(), life.role, paid, worker() if fresh else Open())
    raise AssertionError(f"not at its end: {stage.tree(root)}")


def judge_cost(root: str, paid: Paying, how: str) -> None:
    known = calls(root, "one")
    settled = [call for call in known if call.end == "answered"]
    assert all(call.cost_usd == COST for call in settled), how
    assert HOPS <= paid.answers <= 2 * HOPS, f"{how}: {paid.answers} answers for {HOPS} hops"
    assert len(settled) <= paid.answers <= len(known), f"{how}: {len(settled)} <= {paid.answers} <= {len(known)}"
    paid_for = {(call.charge.role, call.charge.request_sha256) for call in settled}
    assert len(paid_for) == HOPS, f"{how}: {sorted(paid_for)}"


@pytest.mark.parametrize("who", ["worker", "watchdog"])
def test_a_process_killed_at_every_call_of_the_four_role_task_completes_it_at_its_cost(shm: Path, who: str) -> None:
    counted: list[Counting] = []

    def counting() -> Seam:
        counted.append(Counting())
        return counted[-1]

    peace, paid = str(shm / "peace"), Paying()
    worker, dog = (counting, Open) if who == "worker" else (Open, counting)
    judge(peace, live(peace, paid, worker, dog), "in peace")
    judge_cost(peace, paid, "in peace")
    assert paid.answers == HOPS
    longest = max(seam.count for seam in counted)
    for n in range(1, longest + 1):
        for after in (False, True):
            root, paid = str(shm / f"{n}-{after}"), Paying()

            def kill(n: int = n, after: bool = after) -> Seam:
                return KillAt(n, after=after)

            life = live(root, paid, kill if who == "worker" else Open, kill if who == "watchdog" else Open)
            how = f"{who} killed {'after' if after else 'before'} call {n}"
            judge(root, life, how)
            judge_cost(root, paid, how)
    add_figure(f"kill points, a {who} in the four-role task", 2 * longest * HOPS, "points")
