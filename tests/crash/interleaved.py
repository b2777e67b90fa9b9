"""Define the scheduler's scenarios (workers, watchdogs, a manager, an operator, submitters) and what must hold in them.

A world is small, so that every schedule with one preemption can be played.

Checked at every change (`World.changed`): each actor writes only where it may (R1), each job has one place, decisions
are only appended, none follows a final one, and no live agent is declared dead. Checked at the end (`World.verdict`),
after healthy processes finished everything: stage.judge, every answer, and children: once, of decided attempts only.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from crash.scheduler import (
    Actor,
    Played,
    Preempting,
    Priorities,
    Random,
    Replayed,
    Run,
    Strategy,
    Turns,
    on_stage,
    stamp,
    theatre,
)
from farro.errors import (
    AgentLost,
    ClaimLost,
    Damaged,
    FarroError,
    IdConflict,
    IllegalTransition,
    StorageTrouble,
    TryAgain,
)
from farro.host import fs
from farro.jobs import ids, places
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Child, ErrorInfo, Failed, Outcome, Released, Succeeded, Unroutable
from farro.jobs.retry import RetryPolicy
from farro.jobs.states import Reason
from farro.jobs.times import timestamp
from farro.store.files import FilesStore, journal_file
from farro.store.port import Agent, Claim, StorePolicy, Submission
from one_job import claim_one, commit_all, commit_one
from stage import EPOCH, History, die, drain, everywhere, judge, open_files, plan, remove, report

FINAL = frozenset({Reason.COMMITTED, Reason.KILLED, Reason.GAVE_UP, Reason.FORCE_COMPLETED})
_LEAVES = (".journal", ".staging", ".ids", ".held", "outbox", "stale", "quarantine")
_ROLE_LEAVES = ("incoming", "in-progress", "completed/succeeded", "completed/failed", "completed/killed")


STRANGER = "hob"


POOL = 5000  # played schedules that are kept for extension


class Violation(AssertionError):
    """A broken guarantee; the message says how to reproduce it."""


class Clock:
    """One clock for the whole world: sleeping advances it and lets the other actors run."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self.passed_s = 0.0
        self.base_s = EPOCH.timestamp()

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.base_s + self.passed_s, UTC)

    def boottime_s(self) -> float:
        return 1000.0 + self.passed_s

    monotonic_s = boottime_s

    def sleep(self, seconds: float) -> None:
        self.passed_s += max(0.0, seconds)
        if self.run is not None:
            self.run.idle()


@dataclass(frozen=True)
class Scenario:
    """`build` queues jobs and adds actors. `roles` keeps the tree small. `hasty`: a watchdog treats every agent as
    hung, so that live agents are fenced, as after SIGSTOP or a long pause."""

    name: str
    build: Callable[[World], None]
    roles: tuple[str, ...] = ("Runner",)
    hasty: bool = False
    durable: bool = False
    sweeping: bool = False  # staging clean-up treats fresh folders as an hour old: submitters may have to retry
    strangers: bool = False  # foreign folders exist, so quarantine is correct
    delay_s: float = 0.0  # between attempts
    small: bool = True  # every schedule with one preemption is affordable
    journal: bool = False  # every process has one; at the end the machine restarts and replays them
    schedules: int = 460  # the least number of distinct schedules to play

    def policy(self) -> StorePolicy:
        return StorePolicy(
            durable=self.durable,
            retry=RetryPolicy(base_s=self.delay_s, max_delay_s=self.delay_s),
            stale_after_s=0.0 if self.hasty else 1e9,
            free_after_s=0.0,
            rescan_s=1.0,
        )


class World:
    """One play of one scenario."""

    def __init__(self, scenario: Scenario, stage: Stage, run: Run) -> None:
        self.scenario = scenario
        self.stage = stage
        self.root = stage.root
        self.run = run
        self.clock = Clock()
        self.history = History()
        self.outcomes: dict[str, Callable[[Claim], Outcome]] = {}  # by job id, else success
        self.offspring: dict[tuple[str, int], int] = {}  # (job, attempt) → number of children in its commit
        self.told: list[tuple[str, Lifecycle]] = []  # (actor, answer): the store must honour it
        self.logged: list[str] = []
        self.where: dict[str, str] = {}
        self.hops: dict[str, list[Any]] = {}
        self.agents: dict[str, Actor] = {}
        self.not_before: dict[str, str | None] = {}  # job → the due time in its last decision
        self.strange: set[str] = set()  # folders that farro did not make
        self.policy = scenario.policy()
        self.accepted: set[int] = set()  # contents of the chosen id that were accepted; those refused: `refused`
        self.refused: set[int] = set()
        self.stores: list[FilesStore] = []
        self._seeds = 0

    # --- building ---

    def process(self, policy: StorePolicy | None = None) -> FilesStore:
        self._seeds += 1
        store = open_files(
            self.root,
            seed=self._seeds,
            clock=self.clock,
            store_policy=policy or self.policy,
            log=self._log,
            journal=self.scenario.journal,
        )
        self.stores.append(store)
        return store

    def _log(self, level: str, message: str, fields: Any) -> None:
        if level in ("critical", "error") and not self._expected(message, fields):
            self.logged.append(f"{level}: {message}: {dict(fields)}")

    def _expected(self, message: str, fields: Any) -> bool:
        """Tell whether a log event is expected: a hasty watchdog logs kills, a sweeper logs live submitters."""
        return "is silent" in message or (self.scenario.sweeping and fields.get("name") == "staging")

    def job(self, job_id: str, outcome: Callable[[Claim], Outcome] | None = None, **prompt: Any) -> str:
        """Queue a job before the play begins."""
        role = prompt.pop("role", self.scenario.roles[0])
        self.process().enqueue(Submission(role=role, prompt=plan(**prompt), job_id=job_id))
        self.history.enqueued.add(job_id)
        stamp(f"{self.root}/agents/{role}/incoming/{job_id}/job.json", len(self.history.enqueued) - 1000)
        if outcome is not None:
            self.outcomes[job_id] = outcome
        return job_id

    def actor(self, name: str, script: Callable[[World, Mind], None]) -> None:
        store = self.process()
        mind = Mind(self, name, store)
        self.run.add(name, store, lambda: script(self, mind))

    # --- at every change ---

    def changed(self, actor: Actor, op: str, args: tuple[Any, ...]) -> None:
        path = args[0]
        if actor.name == STRANGER:
            self.strange.add(path)
        elif op == "move":
            self._moved(actor, path, args[1])
        elif op in ("write", "utime", "fsync", "write_begun", "write_sync", "syncfs"):
            return
        else:
            if op in ("symlink", "link", "replace", "exchange"):
                path = args[1]
            self._mine(actor, op, path)
            if op in ("replace", "exchange") and path.endswith("/job.json"):
                self._rewritten(actor, path)

    def _mine(self, actor: Actor, op: str, path: str) -> None:
        """R1: an actor writes only in its own folder; a fenced holder's writes have no effect (RELIABILITY 14, 16)."""
        parts = path[len(self.root) + 1 :].split("/")
        if parts[0] == "jobs":
            if parts[1] in (".staging", ".journal") or (parts[1] == ".ids" and op == "symlink"):
                return
            home, inside = (parts[2], parts[3:]) if parts[1] == ".held" and len(parts) > 2 else ("", [])
        elif parts[2] == "incoming":
            self.need(parts[-1] == "lock" and len(parts) == 5, actor, f"{op} {path}: edited in a shared folder (R1)")
            return
        else:
            home, inside = (parts[3], parts[4:]) if parts[2] == "in-progress" and len(parts) > 3 else ("", [])
        own = home.startswith(f"{actor.name}.")
        clearing = (op == "unlink" and inside in ([".lock"], [".lease"])) or (op == "rmdir" and not inside)
        self.need(own or (home != "" and clearing), actor, f"{op} {path}: not its own folder (R1)")
        if own and inside and inside[0] in self.where:
            place = "/".join(parts[: parts.index(home) + 1])
            self.need(self.where[inside[0]] == place, actor, f"{op} {path}: the job lies in {self.where[inside[0]]}")

    def _moved(self, actor: Actor, source: str, path: str) -> None:
        start, name = source[len(self.root) + 1 :].rsplit("/", 1)
        end, job_id = path[len(self.root) + 1 :].rsplit("/", 1)
        self.need(path not in self.strange, actor, f"{path} was there, and was replaced (R1)")
        if ids.is_agent(job_id):
            self.agents[job_id] = actor
            return
        if start == "jobs/.staging":
            self.need(
                job_id not in self.where,
                actor,
                f"DUPLICATED: {job_id} enters {end}, it lies in {self.where.get(job_id)}",
            )
        else:
            self.need(
                self.where.get(name) == start, actor, f"moved {name} from {start}, it lay in {self.where.get(name)}"
            )
            mine = [place for place in (start, end) if place.rsplit("/", 1)[1].startswith(f"{actor.name}.")]
            self.need(bool(mine), actor, f"moved {name} from {start} to {end}: neither is its own (R1)")
            shared = end not in mine and end != places.QUARANTINE
            locked = shared and os.path.islink(f"{path}/lock")
            self.need(
                not locked,
                actor,
                f"{job_id} goes to {end} with a lock: no worker can claim it while its owner lives",
            )
        self.where[job_id] = end

    def _rewritten(self, actor: Actor, path: str) -> None:
        """Decisions are only appended: no actor overwrites one that it has not read (RELIABILITY 6, 11)."""
        job_id = path.rsplit("/", 2)[1]
        with open(path, "rb") as file:
            data = json.loads(file.read())
        before, after = self.hops.get(job_id, []), data["hops"]
        self.need(
            after[: len(before)] == before,
            actor,
            f"LOST: a decision about {job_id} was overwritten: {before} by {after}",
        )
        if len(after) > len(before):
            gone_by = [hop["reason"] for hop in before if hop["reason"] in FINAL]
            self.need(
                not gone_by, actor, f"{job_id} was decided for good ({gone_by}), and again: {after[-1]['reason']}"
            )
            self.need(after[-1]["by"].startswith(f"{actor.name}."), actor, f"decided as {after[-1]['by']}")
            if after[-1]["reason"] == Reason.AGENT_DIED and not self.scenario.hasty:
                agent = data["error"]["message"].split()[1]
                holder = self.agents.get(agent)
                alive = holder is not None and not holder.over and agent in holder.store._context.local_agents
                self.need(not alive, actor, f"{agent} is alive, and was declared dead (R3)")
            self.not_before[job_id] = data["not_before"]
        self.hops[job_id] = after

    def need(self, condition: bool, actor: Actor, message: str) -> None:
        if not condition:
            raise Violation(f"{actor.name}: {message}")

    # --- at the end ---

    def verdict(self) -> None:
        if not self.scenario.strangers:
            assert not self.logged, f"UNEXPECTED: {self.logged}"
        self.clock.passed_s += 1e6  # every delayed job is due
        if self.scenario.strangers:
            with contextlib.suppress(Damaged):  # reported, and the job is quarantined
                drain(self.root, self.history, clock=self.clock)
            found = everywhere(self.root).get("one", [])
            assert len(found) == 1, f"LOST or DUPLICATED: {found}"
            return
        if self.scenario.journal:
            for store in self.stores:
                die(store)
        drain(self.root, self.history, clock=self.clock, boot="1" if self.scenario.journal else "0")
        assert not self.scenario.journal or journal_file.names(self.root) == []
        where = self.stage.lying()
        assert not os.listdir(f"{self.root}/jobs/quarantine"), f"UNEXPECTED: quarantined: {where}"
        judge(self.root, self.history)
        final = {}
        for job_id, place in where.items():
            with open(f"{self.root}/{place}/{job_id}/job.json", "rb") as file:
                final[job_id] = Lifecycle.from_json(file.read())
        assert len(self.accepted) <= 1, f"DUPLICATED: one id was accepted with contents {self.accepted}"
        assert not self.accepted & self.refused, f"content {self.accepted} was accepted and refused"
        self._answers_hold(final)
        self._children_once(final)

    def _answers_hold(self, final: dict[str, Lifecycle]) -> None:
        """Check every answer: an acknowledged decision stays in the job's hops, and a final one stays final."""
        for who, answer in self.told:
            found = final[answer.job_id]
            kept = found.hops[: len(answer.hops)]
            assert kept == answer.hops, f"LOST: {who} got the answer {answer.hops}; {answer.job_id} has {found.hops}"
            if answer.terminal:
                assert (found.status, found.hops) == (answer.status, answer.hops), (
                    f"LOST: {who} got {answer.status} for {answer.job_id}; it is {found.status}: {found.hops}"
                )

    def _children_once(self, final: dict[str, Lifecycle]) -> None:
        expected = self.history.enqueued | self.history.tried
        for job_id, lifecycle in list(final.items()):
            for hop in lifecycle.hops:
                if hop.reason in (Reason.COMMITTED, Reason.ROUTED) and not hop.to.endswith("failed"):
                    count = self.offspring.get((job_id, hop.attempt), 0)
                    children = {ids.child_id(job_id, hop.attempt, index) for index in range(count)}
                    assert children <= final.keys(), f"LOST: children of {job_id}, attempt {hop.attempt}"
                    expected |= children
        assert final.keys() <= expected, f"UNEXPECTED: jobs that no actor submitted: {final.keys() - expected}"


class Mind:
    """The context of an actor's script: its store, and methods that report its answers to the world."""

    def __init__(self, world: World, name: str, store: FilesStore) -> None:
        self.world = world
        self.name = name
        self.store = store

    def join(self, role: str | None) -> Agent:
        while True:
            try:
                return self.store.join(self.name, role=role)
            except StorageTrouble:
                assert self.world.scenario.sweeping, "nothing is wrong with this disk"

    def tell(self, answer: Lifecycle) -> Lifecycle:
        self.world.run.told(answer.job_id)
        self.world.told.append((self.name, answer))
        return answer

    def rest(self) -> None:
        self.world.clock.sleep(1.0)


# --- scripts -----------------------------------------------------------------------------------------------------


def worker(role: str | None = None, turns: int = 3, beats: bool = False) -> Callable[[World, Mind], None]:
    """Join, then claim, work and commit so many times; leave."""

    def script(world: World, me: Mind) -> None:
        where = role or world.scenario.roles[0]
        agent = me.join(where)
        for _ in range(turns):
            try:
                claim = claim_one(me.store, agent)
                if claim is None:
                    me.rest()
                    continue
                _work(world, me, claim, beats)
            except AgentLost:
                assert world.scenario.hasty, f"{me.name} is alive, but the store answered that it is dead"
                me.store.leave(agent)
                agent = me.join(where)
        me.store.leave(agent)

    return script


def row_worker(turns: int = 2, reach: int = 3) -> Callable[[World, Mind], None]:
    """As `worker`, but with batches: the last job of each batch is handed back unless it is the only one."""

    def script(world: World, me: Mind) -> None:
        agent = me.join(world.scenario.roles[0])
        for _ in range(turns):
            try:
                claims = me.store.claim(agent, reach)
                if not claims:
                    me.rest()
                    continue
                begun = claims[:-1] or claims
                me.store.hand_back(claims[len(begun) :])
                _work_row(world, me, begun)
            except AgentLost:
                assert world.scenario.hasty, f"{me.name} is alive, but the store answered that it is dead"
                me.store.leave(agent)
                agent = me.join(world.scenario.roles[0])
        me.store.leave(agent)

    return script


def _work_row(world: World, me: Mind, claims: list[Claim]) -> None:
    for claim in claims:
        job = (claim.job_id, claim.attempt)
        assert job not in world.history.executed, f"DUPLICATED: attempt {job} was started twice"
        world.history.executed.append(job)
    with contextlib.suppress(ClaimLost):
        me.store.heartbeat(claims[-1].agent, claims[-1])
    ended = [(claim, world.outcomes.get(claim.job_id, done)(claim)) for claim in claims]
    for claim, told in zip(claims, commit_all(me.store, ended), strict=True):
        if isinstance(told, Lifecycle):
            world.history.ack_commit(claim.job_id, claim.attempt, me.tell(told))
        else:
            world.history.lost.append((claim.job_id, claim.attempt))


def _work(world: World, me: Mind, claim: Claim, beats: bool) -> None:
    job = (claim.job_id, claim.attempt)
    assert job not in world.history.executed, f"DUPLICATED: attempt {job} was started twice"
    world.history.executed.append(job)
    due = world.not_before.get(claim.job_id)
    assert due is None or due <= timestamp(world.clock.now()), f"{claim.job_id} was claimed before it was due ({due})"
    try:
        if beats:
            me.store.heartbeat(claim.agent, claim)
        outcome = world.outcomes.get(claim.job_id, done)(claim)
        if isinstance(outcome, Succeeded):
            world.offspring[job] = len(outcome.children)
        told = me.tell(commit_one(me.store, claim, outcome))
        world.history.ack_commit(*job, told)
    except ClaimLost:
        world.history.lost.append(job)
    except Damaged:
        if not world.scenario.strangers:
            raise


def watchdog(passes: int = 2) -> Callable[[World, Mind], None]:
    def script(world: World, me: Mind) -> None:
        agent = me.join(None)
        for _ in range(passes):
            me.store.recover(agent)
            me.rest()
        me.store.leave(agent)

    return script


def manager(passes: int = 2) -> Callable[[World, Mind], None]:
    def script(world: World, me: Mind) -> None:
        agent = me.join(None)
        for _ in range(passes):
            for job_id in me.store.stale():
                try:
                    told = me.store.resolve_stale(agent, job_id)
                except ClaimLost:
                    assert world.scenario.hasty, f"{me.name} is alive, but lost its claim"
                    continue
                if told is not None:
                    me.tell(told)
            me.rest()
        me.store.leave(agent)

    return script


def operator(verb: str, job_id: str) -> Callable[[World, Mind], None]:
    """Kill, requeue or force-complete a job. Allowed answers: done, refused (wrong state), try again, or lost."""

    def script(world: World, me: Mind) -> None:
        agent = me.join(None)
        try:
            me.tell(getattr(me.store, verb)(agent, job_id))
        except StorageTrouble:
            raise  # nothing is wrong with this disk
        except (IllegalTransition, TryAgain):
            pass
        except (ClaimLost, AgentLost):
            assert world.scenario.hasty, f"{me.name} is alive, but lost its claim"
        me.store.leave(agent)

    return script


def submitter(job_id: str, number: int = 0) -> Callable[[World, Mind], None]:
    def script(world: World, me: Mind) -> None:
        world.history.tried.add(job_id)
        try:
            me.store.enqueue(Submission(role=world.scenario.roles[0], prompt=plan(number), job_id=job_id))
        except StorageTrouble:
            assert world.scenario.sweeping, "nothing is wrong with this disk"
            return
        except IdConflict:
            world.run.told(job_id)
            world.refused.add(number)
            return
        world.run.told(job_id)
        world.history.enqueued.add(job_id)
        world.accepted.add(number)

    return script


def stranger(place: str) -> Callable[[World, Mind], None]:
    """A foreign process, or a torn rename, leaves an empty folder at a job's destination (RELIABILITY 17, 31)."""

    def script(world: World, me: Mind) -> None:
        with contextlib.suppress(FileExistsError):
            fs.mkdir(f"{world.root}/{place}")

    return script


# --- outcomes ----------------------------------------------------------------------------------------------------


def done(claim: Claim) -> Outcome:
    return Succeeded(report=report(claim))


def with_children(claim: Claim) -> Outcome:
    return Succeeded(
        report=report(claim), children=(Child(role="Runner", prompt=plan(7)), Child(role="Runner", prompt=plan(8)))
    )


def failing(claim: Claim) -> Outcome:
    return Failed(error=ErrorInfo(category="step_failed", message="no"), report=report(claim, "failed"))


def flaky(claim: Claim) -> Outcome:
    """Fail the first attempt, retryably."""
    if claim.attempt > 1:
        return done(claim)
    return Failed(error=ErrorInfo(category="timeout", message="slow"), report=report(claim, "failed"), retryable=True)


def released_once(claim: Claim) -> Outcome:
    return done(claim) if claim.attempt > 1 else Released(note="shutdown")


def stuck_once(claim: Claim) -> Outcome:
    if claim.attempt > 1:
        return done(claim)
    return Unroutable(error=ErrorInfo(category="manager_away", message="nobody"), report=report(claim))


# --- playing -----------------------------------------------------------------------------------------------------


class Stage:
    """A root that is emptied between plays: making and removing forty folders each time would double the cost."""

    def __init__(self, root: str, roles: tuple[str, ...]) -> None:
        self.root = root
        self.leaves = [f"{root}/jobs/{name}" for name in _LEAVES]
        self.leaves += [f"{root}/agents/{role}/{name}" for role in roles for name in _ROLE_LEAVES]
        for leaf in self.leaves:
            os.makedirs(leaf)

    def sweep(self) -> None:
        for leaf in self.leaves:
            with os.scandir(leaf) as found:
                entries = list(found)
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    remove(entry.path)
                else:
                    os.unlink(entry.path)

    def lying(self) -> dict[str, str]:
        """Map each job to its place; stage.judge has checked that there is only one. Much cheaper than a tree walk."""
        found = {}
        for leaf in self.leaves[3:]:
            for name in os.listdir(leaf):
                if "." not in name:
                    found[name] = leaf[len(self.root) + 1 :]
                elif leaf.endswith(("in-progress", ".held")):
                    inside = f"{leaf}/{name}"
                    found.update({job: inside[len(self.root) + 1 :] for job in os.listdir(inside) if "." not in job})
        return found


def play(scenario: Scenario, stage: Stage, strategy: Strategy) -> Run:
    """Play one schedule on an empty stage and check it; raise Violation with all that is needed to reproduce it."""
    stage.sweep()
    run = Run(strategy)
    world = World(scenario, stage, run)
    try:
        scenario.build(world)
        world.where = stage.lying()
        run.watcher, world.clock.run = world, run
        with on_stage(run):
            run.play()
        world.clock.run = None
        world.verdict()
    except (AssertionError, FarroError, OSError) as error:
        raise Violation(
            f"{scenario.name}: {type(error).__name__}: {error}\n\n{run.story(stage.root)}\n\n"
            f"again: crash.interleaved.replay({scenario.name!r}, {run.schedule!r}, folder)"
        ) from error
    return run


@dataclass
class Explored:
    """The result of an exploration."""

    played: int = 0
    kills: int = 0
    distinct: set[int] = field(default_factory=set)


def explore(
    scenario: Scenario, folder: str, *, floor: int, sampled: int, seeds: int, systematic: bool = True
) -> Explored:
    """Play schedules until a Violation, or until enough were played.

    1. Every schedule with one preemption, stop or kill (CHESS), from three start orders; `systematic=False`: a sample.
    2. `seeds` schedules each by priorities (PCT) and at random.
    3. `sampled` schedules that add one act to a played one (two acts, sometimes three); then more until `floor`
       distinct ones were played.
    """
    explored = Explored()
    stage = Stage(f"{folder}/{scenario.name.replace(' ', '-')}", scenario.roles)

    def attempt(strategy: Strategy) -> Run:
        run = play(scenario, stage, strategy)
        explored.played += 1
        explored.kills += run.kills
        explored.distinct.add(run.digest(scenario.name))
        return run

    dice = random.Random(scenario.name)  # the same schedules in every run
    base = [attempt(Turns())]
    base += [attempt(Turns(first)) for first in range(1, len(base[0].actors))]
    pool: list[Played] = []
    for first, run in enumerate(base[:3]):
        every = list(Played.of(run, first, ()).further())
        for acts in every if systematic else dice.sample(every, min(len(every), sampled)):
            pool.append(Played.of(attempt(Preempting(first, acts)), first, acts))
    for seed in range(seeds):
        attempt(Priorities(seed, len(base[0].actors), base[0].step))
        attempt(Random(seed))
    while sampled > 0 or len(explored.distinct) < floor:
        sampled -= 1
        one = dice.choice(pool)
        if (acts := one.one_further(dice)) is not None:
            pool.append(Played.of(attempt(Preempting(one.first, acts)), one.first, acts))
            if len(pool) > POOL:
                pool.pop(dice.randrange(len(pool)))
        assert sampled >= -20 * floor, f"{scenario.name} has no {floor} schedules"
    return explored


def replay(scenario: Scenario | str, schedule: str, folder: str) -> Run:
    """Replay one schedule from its printed form."""
    if isinstance(scenario, str):
        scenario = next(known for known in SCENARIOS if known.name == scenario)
    with theatre():
        return play(scenario, Stage(f"{folder}/replay", scenario.roles), Replayed(schedule))


# --- the worlds --------------------------------------------------------------------------------------------------


def _two_workers(world: World) -> None:
    world.job("one")
    world.actor("ann", worker(turns=2))
    world.actor("bob", worker(turns=2))


def _workers_and_watchdog(world: World) -> None:
    world.job("one")
    world.job("two")
    world.actor("ann", worker(turns=2))
    world.actor("bob", worker(turns=2))
    world.actor("dog", watchdog())


def _zombie(world: World) -> None:
    world.job("one")
    world.actor("ann", worker(turns=1, beats=True))
    world.actor("dog", watchdog(passes=1))
    world.actor("man", manager(passes=1))
    world.actor("bob", worker(turns=1))


def _kill(world: World) -> None:
    world.job("one")
    world.actor("ann", worker(turns=1))
    world.actor("opa", operator("kill", "one"))
    world.actor("dog", watchdog(passes=1))


def _kill_and_children(world: World) -> None:
    world.job("one", with_children)
    world.actor("ann", worker(turns=1))
    world.actor("opa", operator("kill", "one"))
    world.actor("dog", watchdog(passes=1))


def _force(world: World) -> None:
    world.job("one", with_children)
    world.actor("ann", worker(turns=1))
    world.actor("opa", operator("force_complete", "one"))
    world.actor("dog", watchdog(passes=1))


def _stale(world: World) -> None:
    """A worker died with a job; a watchdog, a manager and an operator handle it at once (RELIABILITY 29)."""
    world.job("one")
    _left_behind(world)
    world.actor("dog", watchdog(passes=1))
    world.actor("man", manager())
    world.actor("opa", operator("requeue", "one"))
    world.actor("ann", worker(turns=1))


def _stale_kill(world: World) -> None:
    world.job("one")
    _left_behind(world)
    world.actor("dog", watchdog(passes=1))
    world.actor("man", manager(passes=1))
    world.actor("opa", operator("kill", "one"))


def _left_behind(world: World) -> None:
    """Claim a job and let the worker die before the play, so that the play covers only recovery."""
    store = world.process()
    agent = store.join("old", role="Runner")
    claim = claim_one(store, agent)
    assert claim is not None
    world.history.executed.append((claim.job_id, claim.attempt))
    for owner in store._context.local_agents.values():
        owner.lease.drop()


def _two_watchdogs(world: World) -> None:
    world.job("one", with_children)
    world.job("two")
    world.actor("ann", worker(turns=2))
    world.actor("dog", watchdog(passes=1))
    world.actor("cat", watchdog(passes=1))


def _children(world: World) -> None:
    world.job("one", with_children)
    world.actor("ann", worker(turns=1))
    world.actor("dog", watchdog())
    world.actor("bob", worker(turns=2))


def _hasty_children(world: World) -> None:
    world.job("one", with_children)
    world.actor("ann", worker(turns=1))
    world.actor("dog", watchdog(passes=1))
    world.actor("man", manager(passes=1))


def _routed(world: World) -> None:
    world.job("one", routing={"mode": "role", "next": "CodeReviewer"})
    world.actor("ann", worker("Runner", turns=1))
    world.actor("bob", worker("CodeReviewer", turns=2))
    world.actor("dog", watchdog(passes=1))


def _flaky(world: World) -> None:
    world.job("one", flaky)
    world.actor("ann", worker(turns=2))
    world.actor("bob", worker(turns=2))
    world.actor("dog", watchdog(passes=1))


def _released(world: World) -> None:
    world.job("one", released_once)
    world.actor("ann", worker(turns=1))
    world.actor("bob", worker(turns=2))
    world.actor("opa", operator("kill", "one"))


def _stuck(world: World) -> None:
    """A job is marked stale under a live worker: the watchdog and an operator compete for it."""
    world.job("one", stuck_once)
    world.actor("ann", worker(turns=1))
    world.actor("dog", watchdog())
    world.actor("man", manager())
    world.actor("opa", operator("force_complete", "one"))


def _submitters(world: World) -> None:
    """Three processes submit one id while a watchdog sweeps fresh staging folders and a worker claims."""
    world.clock.passed_s = 1e9
    for name in ("sue", "sam"):
        world.actor(name, submitter("chosen"))
    world.actor("dog", watchdog())
    world.actor("ann", worker(turns=2))


def _two_contents(world: World) -> None:
    world.actor("sue", submitter("chosen", 1))
    world.actor("sam", submitter("chosen", 2))
    world.actor("ann", worker(turns=2))


def _two_operators(world: World) -> None:
    world.job("one")
    world.actor("ann", worker(turns=1))
    world.actor("opa", operator("kill", "one"))
    world.actor("oma", operator("force_complete", "one"))


def _delayed(world: World) -> None:
    """The second attempt is due after five seconds; two workers try to claim it earlier."""
    world.job("one", flaky)
    world.actor("ann", worker(turns=2))
    world.actor("bob", worker(turns=3))


def _strange(world: World) -> None:
    world.job("one")
    world.actor("ann", worker(turns=1))
    world.actor(STRANGER, stranger("agents/Runner/completed/succeeded/one"))
    world.actor("dog", watchdog(passes=1))


def _hasty_two(world: World) -> None:
    world.job("one")
    world.actor("ann", worker(turns=1))
    world.actor("dog", watchdog(passes=1))


def _hasty_all(world: World) -> None:
    world.job("one", flaky)
    world.actor("ann", worker(turns=1))
    world.actor("dog", watchdog(passes=1))
    world.actor("cat", watchdog(passes=1))
    world.actor("opa", operator("kill", "one"))


def _rows(world: World) -> None:
    """Three jobs: one worker claims them in batches, another claims the remaining or released ones."""
    for job_id in ("one", "two", "three"):
        world.job(job_id)
    world.actor("ann", row_worker())
    world.actor("bob", worker(turns=2))
    world.actor("dog", watchdog(passes=1))


def _hasty_rows(world: World) -> None:
    world.job("one", flaky)
    world.job("two")
    world.actor("ann", row_worker())
    world.actor("dog", watchdog(passes=1))
    world.actor("opa", operator("kill", "two"))


def _everybody(world: World) -> None:
    world.job("one", with_children)
    world.job("two", flaky)
    world.job("three", routing={"mode": "role", "next": "CodeReviewer"})
    world.actor("ann", worker(turns=3))
    world.actor("bob", worker(turns=3))
    world.actor("rev", worker("CodeReviewer", turns=2))
    world.actor("dog", watchdog())
    world.actor("man", manager())
    world.actor("opa", operator("kill", "two"))
    world.actor("sue", submitter("chosen"))
    world.actor("sam", submitter("chosen"))


BOTH = ("Runner", "CodeReviewer")
SCENARIOS = (
    Scenario("two workers want one job", _two_workers, durable=True),
    Scenario("workers and a watchdog", _workers_and_watchdog, schedules=1050),
    Scenario("a zombie resumes", _zombie, hasty=True, durable=True, schedules=1200),
    Scenario("an operator kills", _kill, durable=True),
    Scenario("an operator kills a parent", _kill_and_children, schedules=850),
    Scenario("an operator forces success", _force, schedules=850),
    Scenario("all meet over a stale job", _stale, schedules=1300),
    Scenario("a stale job is killed", _stale_kill),
    Scenario("two watchdogs", _two_watchdogs, schedules=1400),
    Scenario("children", _children, schedules=1400),
    Scenario("children of a zombie", _hasty_children, hasty=True, schedules=1000),
    Scenario("routed to the next role", _routed, roles=BOTH, schedules=900),
    Scenario("a flaky job", _flaky, schedules=1100),
    Scenario("released, and killed", _released),
    Scenario("stuck under a live worker", _stuck, schedules=1300),
    Scenario("one id, two submitters", _submitters, sweeping=True, schedules=850),
    Scenario("one id, two contents", _two_contents),
    Scenario("two operators", _two_operators),
    Scenario("a delayed job", _delayed, delay_s=5.0),
    Scenario("a stranger's folder", _strange, strangers=True),
    Scenario("a watchdog and a zombie", _hasty_two, hasty=True),
    Scenario("everybody is taken for hung", _hasty_all, hasty=True, schedules=1100),
    Scenario(
        "journals, one id, two submitters",
        _submitters,
        sweeping=True,
        durable=True,
        journal=True,
        small=False,
        schedules=300,
    ),
    Scenario("journals, one id, two contents", _two_contents, durable=True, journal=True, small=False, schedules=300),
    Scenario("rows of small jobs", _rows, small=False, schedules=400),
    Scenario("rows, and a zombie resumes", _hasty_rows, hasty=True, small=False, schedules=400),
    Scenario(
        "journals, rows, and a zombie", _hasty_rows, hasty=True, durable=True, journal=True, small=False, schedules=300
    ),
    Scenario(
        "journals, and a zombie resumes", _zombie, hasty=True, durable=True, journal=True, small=False, schedules=300
    ),
    Scenario("journals, and an operator kills", _kill, durable=True, journal=True, small=False, schedules=300),
    Scenario(
        "journals, and all are taken for hung",
        _hasty_all,
        hasty=True,
        durable=True,
        journal=True,
        small=False,
        schedules=300,
    ),
    Scenario("journals, and everybody", _everybody, roles=BOTH, durable=True, journal=True, small=False, schedules=300),
    Scenario("everybody at once", _everybody, roles=BOTH, small=False, schedules=400),
)
