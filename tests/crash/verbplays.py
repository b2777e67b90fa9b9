"""Define a scenario for each command of the store: the preparation, the act of one process, and what follows.

The suites that play them (test_kill_points, test_errno) decide which process is killed, and when.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import stage
from crash.seams import Counting, KillAt, placed
from farro.errors import ClaimLost, FarroError, NameTaken, TryAgain
from farro.host.leases import Lease
from farro.jobs import ids
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Child, ErrorInfo, Failed, Outcome, Released, Succeeded, Unroutable
from farro.jobs.retry import RetryPolicy
from farro.jobs.states import Reason, Status
from farro.store.files import FilesStore, journal_file
from farro.store.port import Agent, Claim, StorePolicy
from one_job import claim_one, commit_all, commit_one, route_one
from stage import Crash, History
from support import torture

ERROR = ErrorInfo(category="step_failed", message="no")
CHILDREN = 2
# A kill after a call leaves the same bytes as a kill before the next call, which is also played. But after a call that
# publishes a change, other processes may see it before the next call is made.
PUBLISHING = frozenset({"move", "replace", "exchange", "link", "symlink", "write_sync"})


@dataclass
class World:
    """One root, its processes, and the answers that they got."""

    root: str
    durable: bool
    max_attempts: int = 3
    journal: bool = False  # every process has one, from its first call on
    boot: str = "0"
    clock: stage.QuickClock = field(default_factory=stage.QuickClock)  # shared by all processes, as on a machine
    history: History = field(default_factory=History)
    decided: dict[str, Status] = field(default_factory=dict)  # acknowledged to an operator: the store must keep it
    processes: list[FilesStore] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    agents: dict[str, Agent] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    leases: list[tuple[FilesStore, Lease]] = field(default_factory=list)  # including agents killed while leaving

    def policy(self) -> StorePolicy:
        retry = RetryPolicy(base_s=0.0, max_delay_s=0.0, max_attempts=self.max_attempts)
        return stage.policy(durable=self.durable, retry=retry)

    def process(self) -> FilesStore:
        """Start a new process."""
        seed = len(self.processes) + 1
        store = stage.open_files(
            self.root,
            seed=seed,
            clock=self.clock,
            store_policy=self.policy(),
            journal=self.journal,
            boot=self.boot,
        )
        self.processes.append(store)
        return store

    @property
    def actor(self) -> FilesStore:
        """Return the process under test: the last one that was prepared."""
        return self.processes[-1]

    def enqueue(self, **more: Any) -> str:
        job_id = self.processes[0].enqueue(stage.submission(len(self.jobs), **more))
        self.history.enqueued.add(job_id)
        self.jobs.append(job_id)
        return job_id

    def join(self, role: str | None = "Runner", name: str = "w") -> Agent:
        agent = self.agents[name] = self.actor.join(name, role=role)
        self.leases.append((self.actor, self.actor._context.local_agents[agent.id].lease))
        return agent

    def claim(self, name: str = "w") -> Claim:
        claim = claim_one(self.actor, self.agents[name])
        assert claim is not None
        self.history.executed.append((claim.job_id, claim.attempt))
        self.claims.append(claim)
        return claim

    def commit(self, claim: Claim, outcome: Outcome, store: FilesStore | None = None) -> None:
        try:
            told = commit_one(store or self.actor, claim, outcome)
        except ClaimLost:
            self.history.lost.append((claim.job_id, claim.attempt))
        else:
            self.history.ack_commit(claim.job_id, claim.attempt, told)

    def told(self, lifecycle: Lifecycle | None) -> None:
        """Record the answer to a command of an operator or of the manager."""
        if lifecycle is not None and lifecycle.terminal:
            self.decided[lifecycle.job_id] = lifecycle.status

    def die(self, store: FilesStore) -> None:
        stage.die(store)
        for owner, lease in self.leases:
            if owner is store:
                lease.drop()
        self.leases = [held for held in self.leases if held[0] is not store]

    def everybody_dies(self) -> None:
        for store in self.processes:
            self.die(store)

    def restart(self) -> None:
        """Restart the machine; everything written is still on its disk."""
        self.everybody_dies()
        self.boot = "1"

    def lifecycle(self, job_id: str) -> Lifecycle:
        (place,) = stage.everywhere(self.root)[job_id]
        return Lifecycle.from_json(stage.read(f"{self.root}/{place}/{job_id}/job.json"))


Step = Callable[[World], None]


def nothing(world: World) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Scenario:
    name: str
    prepare: Step
    act: Step  # run by `world.actor`, and killed
    afterwards: Step = nothing  # what live processes do before the drain
    check: Step = nothing  # after drain and judge
    max_attempts: int = 3

    def __str__(self) -> str:
        return self.name


# --- enqueue -----------------------------------------------------------------------------------------------------


def _submitter(world: World) -> None:
    world.process()


def _submitter_in_a_stream(world: World) -> None:
    """Prepare a submitter with a journal, which may write its next record while it makes the folder."""
    world.process()
    world.enqueue()


def _enqueue_minted(world: World) -> None:
    more = stage.Submission(
        role="Runner", prompt=stage.plan(1), payload={"a.txt": b"a", "b.bin": b"\0" * 100}, narrative="Do it.\n"
    )
    world.history.enqueued.add(world.actor.enqueue(more))


def _enqueue_chosen(world: World) -> None:
    world.history.tried.add("chosen")
    world.history.enqueued.add(world.actor.enqueue(stage.submission(1, job_id="chosen")))


def _submit_again(world: World) -> None:
    """Submit again after a lost answer: the answer must be the same id, and there must be one job."""
    world.process()
    _enqueue_chosen(world)
    assert list(stage.everywhere(world.root)) == ["chosen"]
    _enqueue_chosen(world)


def _one_chosen_job(world: World) -> None:
    assert list(stage.everywhere(world.root)) == ["chosen"]
    accepted = [hop for hop in world.lifecycle("chosen").hops if hop.reason is Reason.COMMITTED]
    assert len(accepted) == 1
    world.process()
    assert world.actor.enqueue(stage.submission(1, job_id="chosen")) == "chosen"  # also after it finished
    assert list(stage.everywhere(world.root)) == ["chosen"]


def _enqueue_three(world: World) -> None:
    many = [stage.submission(1), stage.submission(2, job_id="chosen"), stage.submission(3, role="CodeReviewer")]
    world.history.enqueued.update(job.id for job in world.actor.enqueue_many(many))


def _three_again(world: World) -> None:
    world.process()
    told = world.actor.enqueue_many([stage.submission(2, job_id="chosen"), stage.submission(4, job_id="other")])
    assert [job.id for job in told] == ["chosen", "other"]
    world.history.enqueued.update(job.id for job in told)


def _enqueue_named(world: World) -> None:
    world.history.enqueued.add(world.actor.enqueue_named("nightly", stage.submission(1)))


def _want_the_name(world: World) -> None:
    """Submit under the same name from another process: the name is taken by an existing job, or free."""
    with contextlib.suppress(NameTaken):
        world.history.enqueued.add(world.process().enqueue_named("nightly", stage.submission(2)))


def _one_named_job(world: World) -> None:
    (job_id,) = stage.everywhere(world.root)
    assert _names(world) == {"nightly": job_id}


def _named(world: World) -> None:
    job_id = world.process().enqueue_named("nightly", stage.submission(1))
    world.history.enqueued.add(job_id)
    world.jobs.append(job_id)
    world.process()


def _pass_the_name_on(world: World) -> None:
    again = stage.Submission(role="Runner", prompt=stage.plan(2), retry_of=world.jobs[0])
    world.history.enqueued.add(world.actor.enqueue_named("nightly", again, instead_of=world.jobs[0]))


def _the_name_is_the_last_jobs(world: World) -> None:
    found = set(stage.everywhere(world.root))
    new = found - {world.jobs[0]}
    assert len(new) <= 1
    assert _names(world) == {"nightly": new.pop() if new else world.jobs[0]}


def _names(world: World) -> dict[str, str]:
    store = stage.open_files(world.root, seed=777, store_policy=world.policy(), boot=world.boot)
    found = dict(store.names())
    stage.die(store)
    return found


def _at_most(count: int) -> Step:
    def check(world: World) -> None:
        assert len(stage.everywhere(world.root)) <= count

    return check


# --- agents ------------------------------------------------------------------------------------------------------


def _join(world: World) -> None:
    world.join()


def _joined(world: World) -> None:
    world.process()
    world.join()


def _leave(world: World) -> None:
    world.actor.leave(world.agents["w"])


def _no_agent_is_left(world: World) -> None:
    for role in stage.ROLES:
        assert os.listdir(f"{world.root}/agents/{role}/in-progress") == []
    assert os.listdir(f"{world.root}/jobs/.held") == []


# --- claim and commit --------------------------------------------------------------------------------------------


def _queued(world: World, **more: Any) -> None:
    world.process()
    world.enqueue(**more)
    world.process()
    world.join()


def _queued_after_a_retry(world: World) -> None:
    """Queue a job that already has a hop, which the next claim must not lose."""
    _queued(world)
    claim = world.claim()
    world.commit(claim, Failed(error=ERROR, report=stage.report(claim), retryable=True))


def _queued_under_a_dead_lock(world: World) -> None:
    _queued(world)
    with placed(KillAt(1, after=True, only=frozenset({"link"}))):
        _crashes(lambda: world.claim())
    world.die(world.actor)
    world.process()
    world.join(name="second")
    world.agents["w"] = world.agents["second"]


def _crashes(play: Callable[[], object]) -> None:
    try:
        play()
    except Crash:
        return
    raise AssertionError("no process died")


def _claim(world: World) -> None:
    world.claim()


def _claimed(world: World, **more: Any) -> None:
    _queued(world, **more)
    world.claim()


def _claimed_with_routing(world: World) -> None:
    _claimed(world, routing={"next": "CodeReviewer"})


def _commits(make: Callable[[Claim], Outcome]) -> Step:
    def act(world: World) -> None:
        world.commit(world.claims[-1], make(world.claims[-1]))

    return act


def success(claim: Claim) -> Outcome:
    return Succeeded(report=stage.report(claim))


def failure(claim: Claim) -> Outcome:
    return Failed(error=ERROR, report=stage.report(claim, "failed"))


def _passing_failure(claim: Claim) -> Outcome:
    return Failed(error=ERROR, report=stage.report(claim, "failed"), retryable=True)


def with_children(claim: Claim) -> Outcome:
    children = tuple(Child(role="CodeReviewer", prompt=stage.plan(n)) for n in range(CHILDREN))
    return Succeeded(report=stage.report(claim), children=children)


def _unroutable(claim: Claim) -> Outcome:
    return Unroutable(error=ERROR, report=stage.report(claim))


def _released(claim: Claim) -> Outcome:
    return Released(note="shutdown")


def _route(world: World) -> None:
    claim = world.claims[-1]
    told = route_one(world.actor, claim, success(claim), "CodeReviewer", note="by hand")
    world.history.ack_commit(claim.job_id, claim.attempt, told)


def _passed_the_reviewer(world: World) -> None:
    lifecycle = world.lifecycle(world.jobs[0])
    assert [hop.role for hop in lifecycle.hops if hop.reason is Reason.COMMITTED] == [lifecycle.role]
    assert lifecycle.role == "CodeReviewer"
    assert sum(hop.reason is Reason.ROUTED for hop in lifecycle.hops) == 1


def _children_of_the_accepted_attempt(world: World) -> None:
    """Check that the children of a committed attempt are delivered once, and others never (row 30)."""
    (parent,) = world.jobs
    lifecycle = world.lifecycle(parent)
    (accepted,) = [hop for hop in lifecycle.hops if hop.reason is Reason.COMMITTED]
    first = accepted.attempt == 1  # later attempts, made by the drain, have no children
    wanted = {ids.child_id(parent, 1, index) for index in range(CHILDREN)} if first else set()
    assert set(stage.everywhere(world.root)) - {parent} == wanted


# --- rows of small jobs ------------------------------------------------------------------------------------------


def _queued_row(world: World) -> None:
    world.process()
    for _ in range(3):
        world.enqueue()
    world.process()
    world.join()


def _claim_row(world: World) -> None:
    claims = world.actor.claim(world.agents["w"], 3)
    world.history.executed += [(claim.job_id, claim.attempt) for claim in claims]
    world.claims += claims


def _claimed_row(world: World) -> None:
    _queued_row(world)
    _claim_row(world)
    assert len(world.claims) == 3


def _row_not_begun(world: World) -> None:
    _claimed_row(world)
    world.history.executed.clear()


def _commit_row(world: World) -> None:
    ended = [(claim, make(claim)) for claim, make in zip(world.claims, (success, failure, success), strict=True)]
    answers = commit_all(world.actor, ended)
    for claim, told in zip(world.claims, answers, strict=True):
        if isinstance(told, Lifecycle):
            world.history.ack_commit(claim.job_id, claim.attempt, told)
    for told in answers:
        if isinstance(told, FarroError):
            raise told


def _hand_row_back(world: World) -> None:
    world.actor.hand_back(world.claims)


def _write_row_down(world: World) -> None:
    for claim in world.claims:
        world.actor.heartbeat(claim.agent, claim)


def _as_never_claimed(world: World) -> None:
    """Check that a released attempt is not counted."""
    for job_id in world.jobs:
        (accepted,) = [hop for hop in world.lifecycle(job_id).hops if hop.reason is Reason.COMMITTED]
        assert accepted.attempt <= 2


# --- stale, operators, manager -----------------------------------------------------------------------------------


def _stale(world: World, **more: Any) -> None:
    """Prepare a stale job whose agent died, and a healthy process with an operator."""
    _claimed(world, **more)
    world.die(world.actor)
    world.process()
    world.join(role=None, name="keeper")
    world.actor.recover(world.agents["keeper"])
    assert world.actor.stale() == world.jobs
    _operator(world)


def _operator(world: World) -> None:
    world.process()
    world.join(role=None, name="operator")


def _queued_and_operator(world: World) -> None:
    world.process()
    world.enqueue()
    _operator(world)


def _claimed_and_operator(world: World) -> None:
    """Prepare a claimed job with a live worker, and an operator."""
    _claimed(world)
    _operator(world)


def _failed_and_operator(world: World) -> None:
    """Prepare a failed job that the manager has not finalized, and an operator."""
    _claimed(world, routing={"mode": "manager"})
    world.commit(world.claims[-1], failure(world.claims[-1]))
    world.history.committed.clear()  # a failure that is not final may still change
    _operator(world)


def _worker_commits(world: World) -> None:
    if world.boot != "0":
        return  # the worker ended with the machine
    world.commit(world.claims[0], success(world.claims[0]), world.processes[1])


def _kill(world: World) -> None:
    world.told(world.actor.kill(world.agents["operator"], world.jobs[0], note="enough"))


def _kill_again(world: World) -> None:
    """Kill again: an unfinalized failure stays in place, so the operator repeats its command, also after a success."""
    _operator(world)
    try:
        _kill(world)
    except TryAgain:  # the dead operator still holds it
        _watchdog(world)
        _recover(world)
        _operator(world)
        _kill(world)


def _requeue(world: World) -> None:
    world.told(world.actor.requeue(world.agents["operator"], world.jobs[0]))


def _force_complete(world: World) -> None:
    world.told(world.actor.force_complete(world.agents["operator"], world.jobs[0], note="fine as it is"))


def _settle(world: World) -> None:
    for job_id in world.actor.stale():
        world.told(world.actor.resolve_stale(world.agents["operator"], job_id))


def _gave_up_with_the_reason(world: World) -> None:
    lifecycle = world.lifecycle(world.jobs[0])
    assert lifecycle.status is Status.KILLED
    assert lifecycle.error is not None
    assert lifecycle.error["category"] == "attempts_exhausted"
    assert "died" in lifecycle.error["message"]


# --- recovery ----------------------------------------------------------------------------------------------------


def _watchdog(world: World) -> None:
    world.process()
    world.join(role=None, name="keeper")


def _dead_undecided(world: World) -> None:
    _claimed(world)
    world.die(world.actor)
    _watchdog(world)


def _dies_in(world: World, op: str, nth: int, play: Step, *, after: bool = False) -> None:
    with placed(KillAt(nth, after=after, only=frozenset({op}))):
        _crashes(lambda: play(world))
    world.die(world.actor)


def _dead_decided(world: World) -> None:
    _claimed(world)
    _dies_in(world, "move", 1, _commits(success))
    _watchdog(world)


def _dead_dispatcher(world: World) -> None:
    """Kill a worker after its commit, with the job in jobs/outbox, before it delivers the children."""
    _claimed(world)
    _dies_in(world, "move", 1, _commits(with_children), after=True)
    assert stage.everywhere(world.root)[world.jobs[0]] == ["jobs/outbox"]
    _watchdog(world)


def _dead_while_dispatching(world: World) -> None:
    """Kill a worker after it took the job from jobs/outbox and delivered one child of two."""
    _claimed(world)
    _dies_in(world, "move", 3, _commits(with_children), after=True)
    _watchdog(world)


def _dead_before_the_decision_with_children_sealed(world: World) -> None:
    """Kill a worker after it wrote results and children, before the decision: these children must never appear."""
    _claimed(world)
    _dies_in(world, "exchange", 1, _commits(with_children))
    _watchdog(world)


def _dead_operator(world: World) -> None:
    _stale(world)
    _dies_in(world, "move", 1, _kill, after=True)
    _watchdog(world)


def _dead_operator_with_a_fresh_job(world: World) -> None:
    _queued_and_operator(world)
    _dies_in(world, "move", 1, _kill, after=True)
    _watchdog(world)


def _marked_stale(world: World) -> None:
    """Mark a job stale in place, with a live worker."""
    _claimed(world)
    _commits(_unroutable)(world)
    _watchdog(world)


def _recover(world: World) -> None:
    world.actor.recover(world.agents["keeper"])


def _debris(world: World) -> None:
    """Leave in staging, two hours ago, the folders of three crashed submitters and of a crashed join."""
    world.process()
    _dies_in(world, "move", 1, _enqueue_minted)
    world.process()
    _dies_in(world, "move", 1, _enqueue_chosen)
    world.process()
    _dies_in(world, "symlink", 1, lambda world: world.actor.enqueue(stage.submission(1, job_id="other")))
    world.process()
    _dies_in(world, "move", 1, _join)
    old_s = stage.EPOCH.timestamp() - 7200
    for name in os.listdir(f"{world.root}/jobs/.staging"):
        os.utime(f"{world.root}/jobs/.staging/{name}", (old_s, old_s))
    _watchdog(world)


def _only_the_registered_one_came_out(world: World) -> None:
    """Sweep once more at a later time: the drain's sweep is one clock tick too early for recently touched folders."""
    store = stage.open_files(world.root, seed=77_777, clock=_later(), boot=world.boot)
    keeper = store.join("late", role=None)
    store.recover(keeper)
    store.close()
    stage.drain(world.root, world.history, seed=88_888, boot=world.boot)
    assert os.listdir(f"{world.root}/jobs/.staging") == []
    came = sorted(stage.everywhere(world.root))
    assert came[0] == "chosen"
    # A job that was in a journal when the machine restarted may appear too: its submitter got no answer.
    assert len(came) <= 1 + (world.journal and world.boot != "0")


def _later() -> stage.QuickClock:
    clock = stage.QuickClock()
    clock.offset_s = 400 * 86400.0
    return clock


ALL = (
    Scenario("enqueue", _submitter, _enqueue_minted, check=_at_most(1)),
    Scenario("enqueue_one_more", _submitter_in_a_stream, _enqueue_minted, check=_at_most(2)),
    Scenario("enqueue_a_chosen_id", _submitter, _enqueue_chosen, _submit_again, _one_chosen_job),
    Scenario("enqueue_many", _submitter, _enqueue_three, _three_again, _at_most(4)),
    Scenario("enqueue_named", _submitter, _enqueue_named, _want_the_name, _one_named_job),
    Scenario("pass_a_name_on", _named, _pass_the_name_on, check=_the_name_is_the_last_jobs),
    Scenario("join", _submitter, _join, check=_no_agent_is_left),
    Scenario("leave", _joined, _leave, check=_no_agent_is_left),
    Scenario("claim", _queued, _claim, check=_no_agent_is_left),
    Scenario("claim_after_a_retry", _queued_after_a_retry, _claim),
    Scenario("claim_under_a_dead_lock", _queued_under_a_dead_lock, _claim),
    Scenario("claim_a_row", _queued_row, _claim_row, check=_no_agent_is_left),
    Scenario("commit_a_row", _claimed_row, _commit_row, check=_no_agent_is_left),
    Scenario("hand_a_row_back", _row_not_begun, _hand_row_back, check=_as_never_claimed),
    Scenario("write_a_row_down", _claimed_row, _write_row_down, check=_no_agent_is_left),
    Scenario("commit_success", _claimed, _commits(success)),
    Scenario("commit_failure", _claimed, _commits(failure)),
    Scenario("commit_for_another_try", _claimed, _commits(_passing_failure)),
    Scenario("commit_with_routing", _claimed_with_routing, _commits(success), check=_passed_the_reviewer),
    Scenario("commit_with_children", _claimed, _commits(with_children), check=_children_of_the_accepted_attempt),
    Scenario("commit_unroutable", _claimed, _commits(_unroutable)),
    Scenario("route", _claimed, _route),
    Scenario("release", _claimed, _commits(_released)),
    Scenario("requeue", _stale, _requeue),
    Scenario("kill_queued", _queued_and_operator, _kill),
    Scenario("kill_in_progress", _claimed_and_operator, _kill, _worker_commits),
    Scenario("kill_stale", _stale, _kill),
    Scenario("kill_failed", _failed_and_operator, _kill, _kill_again),
    Scenario("force_complete_in_progress", _claimed_and_operator, _force_complete, _worker_commits),
    Scenario("force_complete_stale", _stale, _force_complete),
    Scenario("settle_stale_again", _stale, _settle),
    Scenario("settle_stale_give_up", _stale, _settle, check=_gave_up_with_the_reason, max_attempts=1),
    Scenario("recover_undecided", _dead_undecided, _recover, check=_no_agent_is_left),
    Scenario("recover_decided", _dead_decided, _recover, check=_no_agent_is_left),
    Scenario("recover_from_the_outbox", _dead_dispatcher, _recover, check=_children_of_the_accepted_attempt),
    Scenario("recover_half_dispatched", _dead_while_dispatching, _recover, check=_children_of_the_accepted_attempt),
    Scenario(
        "recover_sealed_but_undecided",
        _dead_before_the_decision_with_children_sealed,
        _recover,
        check=_children_of_the_accepted_attempt,
    ),
    Scenario("recover_a_dead_operator", _dead_operator, _recover, check=_no_agent_is_left),
    Scenario("recover_a_dead_operators_fresh_job", _dead_operator_with_a_fresh_job, _recover, check=_no_agent_is_left),
    Scenario("recover_marked_stale", _marked_stale, _recover),
    Scenario("recover_sweeps_staging", _debris, _recover, check=_only_the_registered_one_came_out),
)
BY_NAME = {scenario.name: scenario for scenario in ALL}


# --- playing -----------------------------------------------------------------------------------------------------


def begin(root: str, scenario: Scenario, *, durable: bool, journal: bool = False) -> World:
    """Make a fresh root and prepare the scenario."""
    world = World(root=stage.make(root), durable=durable, max_attempts=scenario.max_attempts, journal=journal)
    scenario.prepare(world)
    return world


def end(world: World, scenario: Scenario, *, seed: int = 10_000, alive: bool = False) -> None:
    """End a play: live processes continue, healthy ones drain the queue, the root is checked and removed.

    `alive`: no process dies, so the drain must work without the leases that only a death would release.
    """
    scenario.afterwards(world)
    if not alive:
        world.everybody_dies()
    stage.drain(world.root, world.history, seed=seed, clock=world.clock, store_policy=world.policy(), boot=world.boot)
    judge(world)
    if alive:
        for store in world.processes:
            store.close()
    left = journal_file.names(world.root)
    assert left == [] or f"{world.boot}{journal_file.FAILED}" in left, f"UNEXPECTED: {left} in jobs/.journal"
    scenario.check(world)
    world.everybody_dies()
    stage.remove(world.root)


def judge(world: World) -> None:
    if world.decided:
        # An operator's answer outlasts a worker's answer about an attempt that was not final.
        assert all(world.lifecycle(job_id).status is status for job_id, status in world.decided.items())
    stage.judge(world.root, world.history)


def killed(world: World, scenario: Scenario, seam: KillAt) -> bool:
    """Play the act under `seam`; return whether it was killed."""
    try:
        with placed(seam):
            scenario.act(world)
    except Crash:
        pass
    world.die(world.actor)
    return seam.dead


def points(root: str, scenario: Scenario, *, durable: bool, journal: bool = False) -> list[KillAt]:
    """Return every kill point of the act: before each call, after each that publishes something, in each write."""
    world = begin(root, scenario, durable=durable, journal=journal)
    with placed(Counting()) as counting:
        scenario.act(world)
    world.die(world.actor)
    end(world, scenario)
    found = []
    for n, op in enumerate(counting.ops, 1):
        ways = [KillAt(n)]
        if op in PUBLISHING or n == counting.count or torture():
            ways.append(KillAt(n, after=True))
        if op in ("write", "write_begun", "write_sync"):
            ways.append(KillAt(n, torn=True))
        for seam in ways:
            seam.op = op  # known in advance
        found += ways
    return found


def play_every_point(
    home: str,
    name: str,
    *,
    durable: bool,
    journal: bool = False,
    restarts: bool = False,
    ops: set[str] | None = None,
) -> int:
    """Play the scenario with a kill at every point; return their number, and add the killed calls to `ops`.
    `restarts`: the machine restarts after each kill."""
    scenario = BY_NAME[name]
    found = points(f"{home}/whole", scenario, durable=durable, journal=journal)
    for index, seam in enumerate(found):
        world = begin(f"{home}/{index}", scenario, durable=durable, journal=journal)
        assert killed(world, scenario, seam), f"call {seam.n} was not reached: the play is not deterministic"
        try:
            if restarts:
                world.restart()
            end(world, scenario)
        except Exception as error:
            raise AssertionError(f"{name}, {seam!r}: {type(error).__name__}: {error}") from error
    if ops is not None:
        ops.update(str(seam.op) for seam in found)
    return len(found)


def clone(source: str, target: str) -> None:
    """Copy a tree with its symlinks, hard links (a mirror is one) and times. No process may use it."""
    seen: dict[int, str] = {}

    def copy(here: str, there: str) -> None:
        os.mkdir(there)
        with os.scandir(here) as entries:
            for entry in entries:
                path = f"{there}/{entry.name}"
                if entry.is_symlink():
                    os.symlink(os.readlink(entry.path), path)
                elif entry.is_dir():
                    copy(entry.path, path)
                elif (inode := entry.inode()) in seen:
                    os.link(seen[inode], path)
                else:
                    with open(entry.path, "rb", buffering=0) as old, open(path, "xb", buffering=0) as new:
                        while piece := old.read(1 << 20):
                            new.write(piece)
                    times = entry.stat()
                    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
                    seen[inode] = path
        times = os.stat(here)
        os.utime(there, ns=(times.st_atime_ns, times.st_mtime_ns))

    copy(source, target)
