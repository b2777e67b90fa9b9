"""Compare random histories of every store with a small model: the place, the owner and the order of each job.

The model is written from the design, not from the code: it shares no rule with jobs/. Each example has about fifteen
steps. After every step the store must agree with the model about every job; after every second step and at the end
also in lists and counts.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from contracts.adapters import make_adapter
from crash.tally import add_figure
from farro.errors import IdConflict, IllegalTransition, Lost
from farro.jobs.ids import child_id
from farro.jobs.outcomes import Child, ErrorInfo, Failed, Outcome, Released, Succeeded, Unroutable
from farro.jobs.retry import RetryPolicy
from farro.jobs.states import Status
from farro.store.port import Agent, Claim, Submission
from one_job import claim_one, commit_one, route_one
from servers import RedisServer
from stage import plan, report
from support import torture

EXAMPLES = 50_000 * torture() or 472  # for each of ten parts, and a third of it for two more: 5,000 in all
STEPS = 15
LIMIT = 2  # attempts a hop
DELAY_S = 1.0
SLOTS = (("Runner", ()), ("Runner", ("gpu",)), ("CodeReviewer", ()), ("Manager", ("gpu",)))
NO = ErrorInfo(category="step_failed", message="no")
WEIGHTED = (
    *["enqueue", "enqueue_chosen"] * 2,
    *["claim", "commit"] * 6,
    *["end_agent", "resolve_stale", "time_passes"] * 3,
    *["operate", "commit_what_was_lost"] * 2,
    *["recover", "heartbeat"],
)


@dataclass(kw_only=True)
class Job:
    """The model's state of a job."""

    id: str
    role: str
    content: tuple[Any, ...]
    routing: str | None
    gpu: bool
    urgent: bool
    due: datetime | None
    entered: int
    status: str = "queued"
    owner: str | None = None
    attempt: int = 0
    attempts_here: int = 0  # of this hop, releases not counted
    requeues_here: int = 0
    requeues: int = 0
    routed: bool = False
    unroutable: bool = False  # its last attempt succeeded, and no next role took it
    final: bool = False


class StoreMachine(RuleBasedStateMachine):
    kind = "memory"
    folder = ""
    server: RedisServer | None = None

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp(dir=self.folder) if self.kind != "memory" else ""
        self.adapter = make_adapter(
            self.kind,
            self.root,
            self.server,
            retry=RetryPolicy(base_s=DELAY_S, max_attempts=LIMIT),
            stale_after_s=1e9,
        )
        self.store = self.adapter.store
        self.boss = self.store.join("boss", role=None)
        self.slots: list[Agent | None] = [None] * len(SLOTS)
        self.dead: set[str] = set()
        self.jobs: dict[str, Job] = {}
        self.claims: list[Claim] = []
        self.over: set[tuple[str, int]] = set()  # claims that were committed
        self.entries = 0
        self.looks = 0

    def teardown(self) -> None:
        try:
            if sys.exc_info()[1] is None:  # otherwise an error was found already
                self.lists_say_what_the_model_says()
        finally:
            self.adapter.close()
        if self.root:
            shutil.rmtree(self.root)

    # --- the model ---

    def enter(self, job: Job, *, delay_s: float | None = None) -> None:
        self.entries += 1
        job.status, job.owner, job.entered, job.unroutable = "queued", None, self.entries, False
        job.due = None if delay_s is None else self.adapter.clock.now() + timedelta(seconds=delay_s)

    def end(self, job: Job, status: str, *, final: bool = True) -> None:
        job.status, job.owner, job.final, job.due = status, None, final, None

    def route(self, job: Job, role: str) -> None:
        job.role, job.routed, job.attempts_here, job.requeues_here = role, True, 0, 0
        self.enter(job)

    def fits(self, job: Job, agent: Agent) -> bool:
        due = job.due is None or job.due <= self.adapter.clock.now()
        return job.status == "queued" and job.role == agent.role and due and (not job.gpu or "gpu" in agent.tags)

    def is_current(self, claim: Claim) -> bool:
        job = self.jobs[claim.job_id]
        mine = job.owner == claim.agent.id and claim.agent.id not in self.dead
        return mine and job.attempt == claim.attempt and (job.id, claim.attempt) not in self.over

    def next_role(self, job: Job) -> str | None:
        if job.routing == "manager":
            return None if job.role == "Manager" else "Manager"
        return "CodeReviewer" if job.routing == "role" and not job.routed and job.role != "CodeReviewer" else None

    def agent(self, slot: int) -> Agent:
        agent = self.slots[slot]
        if agent is None:
            role, tags = SLOTS[slot]
            agent = self.slots[slot] = self.store.join("worker", role=role, slot=slot, tags=tags)
        return agent

    def pick(self, number: int) -> Job:
        return list(self.jobs.values())[number % len(self.jobs)]

    def open_claims(self) -> list[Claim]:
        return [claim for claim in self.claims if self.is_current(claim)]

    def lost_claims(self) -> list[Claim]:
        return [claim for claim in self.claims if not self.is_current(claim)]

    # --- rules ---

    # One rule, weighted by hand: Hypothesis disables separate rules at random for a whole history (swarm testing), and
    # a history without claims tests nothing.
    @initialize(jobs=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=3))
    def begin(self, jobs: list[tuple[int, int]]) -> None:
        for number, way in jobs:
            self.enqueue(number, way)
        self.claim(0, 1)

    @rule(what=st.sampled_from(WEIGHTED), number=st.integers(0, 7), way=st.integers(0, 7))
    def step(self, what: str, number: int, way: int) -> None:
        getattr(self, what)(number, way)

    # --- submitting ---

    def enqueue(self, number: int, way: int) -> None:
        role = "CodeReviewer" if number == 0 else "Runner"
        routing = (None, "role", "manager")[way % 3]
        delay_s = 5.0 if way > 5 else None
        self.submit(None, role, routing, gpu=number in (1, 2), delay_s=delay_s, urgent=number in (2, 5))

    def enqueue_chosen(self, number: int, way: int) -> None:
        job_id, role, routing = "ba"[number % 2], "Runner", (None, "role", "manager")[way % 3]
        known = self.jobs.get(job_id)
        if known is None or known.content == (role, routing, False):
            self.submit(job_id, role, routing, gpu=False, delay_s=None)
        else:
            with pytest.raises(IdConflict):
                self.submit(job_id, role, routing, gpu=False, delay_s=None)

    def submit(
        self,
        job_id: str | None,
        role: str,
        routing: str | None,
        *,
        gpu: bool,
        delay_s: float | None,
        urgent: bool = False,
    ) -> None:
        more: dict[str, Any] = {} if routing is None else {"routing": {"mode": routing, "next": "CodeReviewer"}}
        if gpu or urgent:
            more["metadata"] = {**({"tags": ["gpu"]} if gpu else {}), **({"priority": "P1"} if urgent else {})}
        due = None if delay_s is None else self.adapter.clock.now() + timedelta(seconds=delay_s)
        made = self.store.enqueue(Submission(role=role, prompt=plan(**more), job_id=job_id, not_before=due))
        assert job_id in (None, made)
        if made in self.jobs:
            return
        job = Job(
            id=made,
            role=role,
            content=(role, routing, gpu),
            routing=routing,
            gpu=gpu,
            urgent=urgent,
            due=due,
            entered=0,
        )
        self.jobs[made] = job
        self.enter(job, delay_s=delay_s)

    # --- working ---

    def claim(self, number: int, way: int) -> None:
        slot = number % len(SLOTS)
        if way > 4:
            self.adapter.clock.advance(DELAY_S)
        if way:  # mostly a role with queued jobs
            busy = [
                slot
                for slot in range(len(SLOTS))
                if any(self.fits(job, self.agent(slot)) for job in self.jobs.values())
            ]
            slot = busy[number % len(busy)] if busy else slot
        agent = self.agent(slot)
        fitting = [job for job in self.jobs.values() if self.fits(job, agent)]
        wanted = min(fitting, key=lambda job: (not job.urgent, job.entered), default=None)
        claim = claim_one(self.store, agent)
        assert (claim and claim.job_id) == (wanted and wanted.id)
        if claim is None or wanted is None:
            return
        wanted.status, wanted.owner, wanted.due = "in_progress", agent.id, None
        wanted.attempt += 1
        wanted.attempts_here += 1
        assert claim.attempt == wanted.attempt
        self.claims.append(claim)

    def commit(self, number: int, way: int) -> None:
        claims = self.open_claims()
        if not claims:
            return self.claim(number, 1)
        what = ("success", "child", "failure", "retry", "retry", "release", "unroutable", "route")[way]
        claim = claims[number % len(claims)]
        job = self.jobs[claim.job_id]
        told = self.tell(claim, what)
        self.over.add((job.id, claim.attempt))
        if what == "release":
            job.attempts_here -= 1
            self.enter(job)
        elif what == "unroutable":
            job.status, job.unroutable = "stale", True  # marked in place
        elif what == "route":
            self.route(job, "CodeReviewer")
        elif what == "retry" and job.attempts_here < LIMIT:
            self.enter(job, delay_s=DELAY_S)
        elif what in ("failure", "retry"):
            self.end(job, "failed", final=job.routing != "manager" or job.role == "Manager")
        else:
            onward = self.next_role(job)
            if onward is None:
                self.end(job, "succeeded")
            else:
                self.route(job, onward)
        if what == "child":
            made = child_id(claim.job_id, claim.attempt, 0)
            assert made not in self.jobs
            child = Job(id=made, role="Runner", content=(), routing=None, gpu=False, urgent=False, due=None, entered=0)
            self.jobs[made] = child
            self.enter(child)
        assert told.status == job.status
        return None

    def tell(self, claim: Claim, what: str) -> Any:
        outcomes: dict[str, Callable[[], Outcome]] = {
            "success": lambda: Succeeded(report=report(claim)),
            "child": lambda: Succeeded(report=report(claim), children=(Child(role="Runner", prompt=plan()),)),
            "failure": lambda: Failed(error=NO, report=report(claim)),
            "retry": lambda: Failed(error=NO, report=report(claim), retryable=True),
            "release": lambda: Released(note="shutdown"),
            "unroutable": lambda: Unroutable(error=NO, report=report(claim)),
        }
        if what == "route":
            return route_one(self.store, claim, outcomes["success"](), "CodeReviewer")
        return commit_one(self.store, claim, outcomes[what]())

    def commit_what_was_lost(self, number: int, way: int) -> None:
        claims = self.lost_claims()
        if not claims:
            return self.commit(number, way)
        what = ("success", "child", "failure", "retry", "release", "unroutable", "route")[way % 7]
        with pytest.raises(Lost):
            self.tell(claims[number % len(claims)], what)
        return None

    def heartbeat(self, number: int, way: int) -> None:
        for claim in self.open_claims():
            self.store.heartbeat(claim.agent, claim)
        for claim in self.lost_claims():
            with pytest.raises(Lost):
                self.store.heartbeat(claim.agent, claim)

    # --- death and recovery ---

    def end_agent(self, number: int, way: int) -> None:
        living = [slot for slot, agent in enumerate(self.slots) if agent is not None]
        owners = {job.owner for job in self.jobs.values()}
        busy = [slot for slot in living if getattr(self.slots[slot], "id", None) in owners]
        if not living:
            return self.claim(number, way)
        slot = (busy or living)[number % len(busy or living)]
        agent = self.slots[slot]
        assert agent is not None
        if way < 2:
            self.store.leave(agent)
        else:
            self.adapter.die(agent)
        self.slots[slot] = None
        self.dead.add(agent.id)
        return None

    def recover(self, number: int, way: int) -> None:
        self.store.recover(self.boss)
        for job in self.jobs.values():
            if job.status == "stale":
                job.owner = None  # marked jobs are collected
            elif job.owner in self.dead:
                job.status, job.owner = "stale", None

    def resolve_stale(self, number: int, way: int) -> None:
        if way:
            self.recover(number, way)
        waiting = [job for job in self.jobs.values() if job.status == "stale"]
        job = waiting[number % len(waiting)] if waiting else self.pick(number)
        told = self.store.resolve_stale(self.boss, job.id)
        if job.status != "stale" or job.owner is not None:
            assert told is None
            return
        attempts = max(job.attempts_here, job.requeues_here)
        # Where the manager was away, the work itself did not fail.
        failed = not (job.unroutable or (job.role == "Manager" and job.routing == "manager"))
        if failed and attempts >= LIMIT:
            self.end(job, "killed")
        else:
            self.requeued(job, None if failed and attempts <= 1 else DELAY_S)

    def requeued(self, job: Job, delay_s: float | None) -> None:
        job.requeues += 1
        job.requeues_here += 1
        self.enter(job, delay_s=delay_s)

    # --- operators ---

    def operate(self, number: int, way: int) -> None:
        verb = ("requeue", "requeue", "kill", "force_complete")[way % 4]
        job = self.pick(number)
        open_failure = job.status == "failed" and not job.final
        if verb == "kill":
            told = self.store.kill(self.boss, job.id)
            if job.status in ("queued", "in_progress", "stale") or open_failure:
                self.end(job, "killed")
            assert told.status == job.status, "a finished job returns its state"
        elif verb == "requeue":
            if job.status == "stale" or open_failure:
                self.store.requeue(self.boss, job.id)
                self.requeued(job, None)
            else:
                with pytest.raises(IllegalTransition):
                    self.store.requeue(self.boss, job.id)
        elif job.status in ("in_progress", "stale") or open_failure:
            self.store.force_complete(self.boss, job.id)
            self.end(job, "succeeded")
        else:
            with pytest.raises(IllegalTransition):
                self.store.force_complete(self.boss, job.id)

    def time_passes(self, number: int, way: int) -> None:
        self.adapter.clock.advance((0.5, 1.0, 5.0, 40.0)[way % 4])

    # --- looking ---

    @invariant()
    def the_store_says_what_the_model_says(self) -> None:
        for job in self.jobs.values():
            seen = self.store.find(job.id)
            assert seen is not None, f"{job.id} is nowhere"
            now = seen.lifecycle
            assert (str(now.status), now.attempt, now.role, now.retry_count) == (
                job.status,
                job.attempt,
                job.role,
                job.requeues,
            ), job
            assert now.terminal == (job.status in ("succeeded", "killed") or job.final), job
            assert seen.place.endswith(str(job.owner)) == (job.owner is not None), (seen.place, job)
        self.looks += 1
        if self.looks % 2 or torture():
            self.lists_say_what_the_model_says()

    def lists_say_what_the_model_says(self) -> None:
        listed = sorted((seen.job_id, str(seen.status)) for seen in self.store.list())
        assert listed == sorted((job.id, job.status) for job in self.jobs.values())
        counts = dict.fromkeys(Status, 0)
        for job in self.jobs.values():
            counts[Status.IN_PROGRESS if job.owner else Status(job.status)] += 1
        assert self.store.count() == counts
        assert self.store.stale() == sorted(
            job.id for job in self.jobs.values() if job.status == "stale" and job.owner is None
        )
        living = {agent.id for agent in self.slots if agent is not None} | {self.boss.id}
        assert {view.id for view in self.store.agents() if view.alive} == living


def play(kind: str, folder: str, part: int, examples: int, server: RedisServer | None = None) -> None:
    about = {"kind": kind, "folder": folder, "server": server}
    machine = type(f"{kind.title()}Part{part}", (StoreMachine,), about)
    if not torture():  # the long form tries new histories each time
        machine = hypothesis.seed(part)(machine)
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=hypothesis.settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            suppress_health_check=list(hypothesis.HealthCheck),
        ),
    )


@pytest.mark.parametrize("part", range(4))
def test_the_memory_store_agrees_with_the_model(shm: Path, part: int) -> None:
    play("memory", str(shm), part, EXAMPLES)
    add_figure("stateful examples", EXAMPLES, "examples")


@pytest.mark.parametrize("part", range(4, 10))
def test_the_files_store_agrees_with_the_model(shm: Path, part: int) -> None:
    play(("power", "process", "journal")[part % 3], str(shm), part, EXAMPLES)
    add_figure("stateful examples", EXAMPLES, "examples")


@pytest.mark.parametrize("part", range(10, 12))
def test_the_redis_store_agrees_with_the_model(shm: Path, part: int, redis_server: RedisServer) -> None:
    examples = EXAMPLES // 3  # every call is a round trip
    play("redis", str(shm), part, examples, redis_server)
    add_figure("stateful examples", examples, "examples")
