"""The rules of the Store port over any storage that has transactions: a store of this kind writes only its storage.

`TransactionalStore` decides; `StoreState` is what it asks of the storage inside one transaction. The memory store keeps
the state in dictionaries, examples/sqlite_store in a database. Each call of the port is one transaction, and a commit
of several results one for each, so a crash leaves each call done or not begun. The audit log gets the events of a
transaction after it. [farro.testing.store]
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Protocol

from farro import documents
from farro.errors import (
    AgentLost,
    ClaimLost,
    FarroError,
    IdConflict,
    InputError,
    Lost,
    NameTaken,
    UnknownJob,
    UnknownRole,
)
from farro.host.clock import Clock
from farro.jobs import audit_fields, ids, moves, places
from farro.jobs.envelope import Envelope, Lifecycle
from farro.jobs.ids import IdMint
from farro.jobs.moves import Move
from farro.jobs.outcomes import ErrorInfo, Failed, Outcome, Report, Succeeded, Unroutable
from farro.jobs.retry import RetryPolicy, Uniform
from farro.jobs.states import Reason, Status
from farro.lazy_dataclass import dataclass, replace
from farro.log.audit import Audit, Value
from farro.plans import after
from farro.plans.after import DependencyState
from farro.plans.metadata import priority, required_tags
from farro.store.accounts import Accounts
from farro.store.feed import ChangeFeed
from farro.store.leadership import FileLeadership
from farro.store.listed_queries import ListedQueries
from farro.store.operator_verbs import Choose, JobToDecide, OperatorVerbs
from farro.store.port import (
    Agent,
    AgentView,
    AttemptResult,
    Change,
    Changes,
    Claim,
    Commits,
    JobAt,
    JobView,
    NextClaim,
    QueuePause,
    RecoveryAction,
    Removed,
    StorePolicy,
    Submission,
    Submitted,
)
from farro.store.submissions import check, digest, first_lifecycle

_SMALL_BATCH = 4  # this many are claimed at once even if the queue holds few more


@dataclass(kw_only=True, slots=True)
class StoredJob:
    """A job and its place."""

    prompt: Mapping[str, Any]
    digest: str | None  # of the content, for a chosen id
    lifecycle: Lifecycle
    entered: tuple[str, int]  # order in its queue: priority, then number of entry
    waits: bool = False  # outside its queue, for other jobs or a person
    owner: str | None = None  # the agent that holds it
    attempts: int = 0
    before: tuple[Lifecycle, tuple[str, int]] | None = None  # lifecycle and order in its queue, at the last claim


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredAgent:
    """An agent. `beat_s` is on the clock that stops while the machine sleeps (RELIABILITY 18)."""

    agent: Agent
    alive: bool
    beat_s: float
    identity: Mapping[str, Any]


class StoreState(Protocol):
    """The data of a store inside one transaction. A changed StoredJob counts once it was saved."""

    def job(self, job_id: str) -> StoredJob | None: ...

    def jobs(
        self,
        *,
        roles: Collection[str] | None = None,
        statuses: Collection[Status] | None = None,
        waits: bool | None = None,
        owner: str | None = None,
    ) -> Iterable[StoredJob]:
        """Return the jobs that match all that is given, sorted by id."""

    def queue(self, role: str) -> Iterable[StoredJob]:
        """Yield the queued jobs of that role that do not wait, in the order of `entered`."""

    def save(self, job: StoredJob) -> None:
        """Add the job, or replace it."""

    def delete(self, job_id: str) -> None:
        """Remove the job with its names and files."""

    def next_number(self) -> int:
        """Return a number that is greater than all before."""

    def agents(self) -> Mapping[str, StoredAgent]:
        """Return every agent by its id; `alive` is False for one whose process has died."""

    def save_agent(self, agent: StoredAgent) -> None: ...

    def delete_agent(self, agent_id: str) -> None: ...

    def names(self) -> Mapping[str, str]:
        """Return the job id of every name, sorted by name."""

    def set_name(self, name: str, job_id: str) -> None: ...

    def paused(self) -> Mapping[str, QueuePause]: ...

    def set_paused(self, role: str, paused: QueuePause | None) -> None: ...

    def publish(self, change: Change, *, enters: bool) -> None:
        """Report the change to every feed. `enters`: the job entered its role's queue."""

    def publish_gap(self, role: str) -> None:
        """Make the feed of that role report a gap, so that its readers list the whole queue."""


class TransactionalStore(OperatorVerbs, ListedQueries):
    """The Store port over a StoreState. A subclass implements `begin` and `root`, and `folder` if it keeps files."""

    def __init__(
        self,
        *,
        roles: Collection[str],
        policy: StorePolicy,
        clock: Clock,
        random_bits: Callable[[int], int],
        uniform: Uniform,
        audit: Audit,
    ) -> None:
        self._audit = audit
        self._roles = sorted(map(ids.check_role, roles))
        self._policy = policy
        self._clock = clock
        self._random_bits = random_bits
        self._uniform = uniform
        self._mint = IdMint(clock.now, random_bits)
        self.feeds: dict[str | None, ChangeFeed] = {}  # by role, made on first use
        self._cursors: dict[str, int] = {}  # agent → how far it has read the feed of its queue, for waiting
        self._lock = threading.RLock()  # one transaction at a time; guards all of these
        self._state: StoreState | None = None  # of the running transaction
        self._later: list[Callable[[], None]] = []  # what to do when it has succeeded

    # --- what a subclass adds ---

    @abstractmethod
    def begin(self) -> contextlib.AbstractContextManager[StoreState]:
        """Begin a transaction that no other process can see or disturb. An error undoes it."""

    def make_feed(self, role: str | None) -> ChangeFeed:
        """Make the feed of a role, or of all. Give it a ChangeSource where other processes change jobs."""
        return ChangeFeed()

    def identity(self) -> Mapping[str, Any]:
        """Describe this process, for AgentView."""
        return {}

    def hold_lease(self, agent: Agent) -> None:
        """Hold what tells others that the agent's process lives. Called before the agent can be seen."""
        return

    def drop_lease(self, agent: Agent) -> None:
        """Drop it: the agent leaves."""
        return

    def keep_submission(self, state: StoreState, job_id: str, submission: Submission) -> None:
        """Keep the payload and the narrative of a new job."""
        return

    def open_claim(self, state: StoreState, claim: Claim) -> Claim:
        """Return the claim with a folder in which its attempt can work."""
        return claim

    def keep_report(self, state: StoreState, claim: Claim, report: Report, *, good: bool) -> None:
        """Keep the files of an attempt that ended."""
        return

    def keep_answer(self, state: StoreState, job_id: str, attempt: int, text: str) -> None:
        """Keep a person's text as the result of that attempt."""
        return

    def close_claim(self, claim: Claim) -> None:
        """Remove the folder of an attempt whose job was committed, handed back or lost."""
        return

    def end_processes(self, job_id: str, attempt: int, agent: StoredAgent) -> None:
        """End what the attempt of a dead agent left running."""
        return

    # --- transactions ---

    @contextlib.contextmanager
    def transaction(self) -> Iterator[StoreState]:
        """Run in one transaction; inside another one, as a part of it."""
        with self._lock:
            if self._state is not None:
                yield self._state
                return
            self._later = []
            try:
                with self.begin() as state:
                    self._state = state
                    yield state
            finally:
                self._state = None
            for act in self._later:
                act()

    def note(self, event: str, *, actor: str | None = None, **codes: Value) -> None:
        self._audit(event, actor=actor, **codes)

    def _note_later(self, event: str, **codes: Any) -> None:
        self._later.append(lambda: self.note(event, **codes))

    def roles(self) -> list[str]:
        return list(self._roles)

    # --- agents ---

    def join(self, name: str, *, role: str | None, slot: int = 0, tags: Collection[str] = ()) -> Agent:
        if role is not None:
            self._check_role(role)
        agent = Agent(
            id=ids.agent_id(name, slot, self._random_bits), role=role, tags=frozenset(map(ids.check_tag, tags))
        )
        self.hold_lease(agent)
        with self.transaction() as state:
            self._beat(state, agent)
        return agent

    def _beat(self, state: StoreState, agent: Agent) -> None:
        identity = {**self.identity(), "tags": sorted(agent.tags)}
        beat_s = self._clock.monotonic_s()
        state.save_agent(StoredAgent(agent=agent, alive=True, beat_s=beat_s, identity=identity))

    def leave(self, agent: Agent) -> None:
        with self.transaction() as state:
            self._cursors.pop(agent.id, None)
            known = state.agents().get(agent.id)
            if known is not None and any(state.jobs(owner=agent.id)):
                state.save_agent(replace(known, alive=False))
            elif known is not None:
                state.delete_agent(agent.id)
        self.drop_lease(agent)

    def heartbeat(self, agent: Agent, claim: Claim | None = None) -> None:
        with self.transaction() as state:
            if claim is not None:
                self._owned(state, claim)
            self._check_alive(state, agent)
            self._beat(state, agent)

    def agents(self) -> list[AgentView]:
        with self.transaction() as state:
            return [
                AgentView(
                    id=one.agent.id,
                    role=one.agent.role,
                    alive=one.alive,
                    jobs=tuple(job.lifecycle.job_id for job in state.jobs(owner=one.agent.id)),
                    identity=one.identity,
                )
                for one in state.agents().values()
            ]

    # --- submitting ---

    def enqueue(self, submission: Submission) -> str:
        return self.enqueue_many([submission])[0].id

    def enqueue_many(self, submissions: Sequence[Submission]) -> list[Submitted]:
        for submission in submissions:
            self._check_role(submission.role)
            check(submission, self._policy.max_prompt_bytes)
        with self.transaction() as state:
            wanted: dict[str, str | None] = {}
            for submission in submissions:  # all are checked before one is queued
                if submission.job_id is None:
                    continue
                known, content = state.job(submission.job_id), digest(submission)
                if wanted.setdefault(submission.job_id, content if known is None else known.digest) != content:
                    raise IdConflict(
                        f"{submission.job_id} was submitted before with other content; the first job is untouched"
                    )
            earlier: set[str] = set()
            for submission in submissions:
                self._blocks(state, submission, earlier)
                earlier.update({submission.job_id} if submission.job_id else ())
            return [self._enqueue(state, submission) for submission in submissions]

    def enqueue_claimed(self, agent: Agent, submission: Submission) -> Claim | None:
        assert agent.role == submission.role, "an agent works its own role"
        if after.dependencies(submission.prompt).all:
            raise InputError("a job that runs after others cannot start at once; enqueue it")
        with self.transaction() as state:
            self._check_alive(state, agent)
            (made,) = self.enqueue_many([submission])
            return None if made.existed else self._claimed(state, self._job(state, made.id), agent, self._clock.now())

    def enqueue_named(self, name: str, submission: Submission, *, instead_of: str | None = None) -> str:
        with self.transaction() as state:
            present = self.named(name)
            if present != instead_of:
                raise NameTaken(name, present)
            job_id = self.enqueue(submission)
            state.set_name(name, job_id)
            return job_id

    def _blocks(self, state: StoreState, submission: Submission, earlier: Collection[str] = ()) -> list[str]:
        """Return the ids that it has to wait for. Raises if it could never run."""
        named = after.dependencies(submission.prompt)
        if not named.all or (submission.job_id is not None and state.job(submission.job_id) is not None):
            return []
        return after.blocking(named, lambda job_id: _end_of(state, job_id), earlier=earlier, own=submission.job_id)

    def _enqueue(self, state: StoreState, submission: Submission) -> Submitted:
        if submission.job_id is not None and state.job(submission.job_id) is not None:
            return Submitted(id=submission.job_id, existed=True)
        blocks = self._blocks(state, submission)
        job_id = submission.job_id or self._mint.mint()
        lifecycle = first_lifecycle(submission, job_id, self._clock.now(), waits=bool(blocks))
        job = StoredJob(
            prompt=json.loads(documents.canonical(submission.prompt)),
            digest=None if submission.job_id is None else digest(submission),
            lifecycle=lifecycle,
            entered=("", 0),
            waits=bool(blocks),
        )
        self._put(state, job, lifecycle)
        self.keep_submission(state, lifecycle.job_id, submission)
        return Submitted(id=lifecycle.job_id, existed=False)

    # --- claiming and committing ---

    def claim(self, agent: Agent, limit: int, wait_s: float = 0) -> list[Claim]:
        assert agent.role is not None, "an agent without a role holds jobs, it does not claim them"
        feed = self._feed(agent.role)
        cursor = self._cursors.setdefault(agent.id, feed.cursor)
        claims = self._claim(agent, limit)
        if claims or wait_s <= 0:
            return claims
        due = self.next_due(agent.role)
        if due is not None:
            wait_s = min(wait_s, max(0.0, (due - self._clock.now()).total_seconds()))
        self._cursors[agent.id] = feed.since(cursor, wait_s).cursor
        return self._claim(agent, limit)

    def _claim(self, agent: Agent, limit: int) -> list[Claim]:
        assert agent.role is not None
        with self.transaction() as state:
            self._check_alive(state, agent)
            if agent.role in state.paused():
                return []
            now = self._clock.now()
            fitting: list[StoredJob] = []
            for job in state.queue(agent.role):
                due = job.lifecycle.not_before
                if required_tags(job.prompt) <= agent.tags and (due is None or datetime.fromisoformat(due) <= now):
                    fitting.append(job)
                    if len(fitting) >= 2 * max(limit, _SMALL_BATCH):
                        break
            chosen = fitting[: min(limit, max(_SMALL_BATCH, len(fitting) // 2))]
            started = next((at for at, job in enumerate(chosen) if job.attempts > 0), len(chosen))
            return [self._claimed(state, job, agent, now) for job in chosen[: max(started, 1)]]

    def _claimed(self, state: StoreState, job: StoredJob, agent: Agent, now: datetime) -> Claim:
        attempt, correlation = job.attempts + 1, f"{self._random_bits(128):032x}"
        lifecycle = moves.claimed(
            job.lifecycle,
            agent=agent.id,
            attempt=attempt,
            correlation_id=correlation,
            now=now,
            policy_version=self._policy.policy_version(job.lifecycle.role),
        )
        job.before = job.lifecycle, job.entered
        job.attempts, job.owner = attempt, agent.id
        self._put(state, job, lifecycle)
        prompt = copy.deepcopy(job.prompt)  # a worker's changes to its copy are never written back
        claim = Claim(agent=agent, envelope=Envelope(prompt=prompt, lifecycle=lifecycle), attempt=attempt, folder="")
        return self.open_claim(state, claim)

    def next_due(self, role: str) -> datetime | None:
        """Return when the next delayed job of this queue becomes due. None while the queue is paused."""
        with self.transaction() as state:
            if role in state.paused():
                return None
            dues = [job.lifecycle.not_before for job in state.queue(role)]
        now = self._clock.now()
        moments = [datetime.fromisoformat(due) for due in dues if due is not None]
        return min((moment for moment in moments if moment > now), default=None)

    def commit(self, results: Sequence[AttemptResult], then_claim: NextClaim | None = None) -> Commits:
        answers: list[Lifecycle | FarroError] = []
        for result in results:
            try:
                answers.append(self._commit(*result))
            except FarroError as error:
                answers.append(error)
            self.close_claim(result[0])
        claims: list[Claim] = []
        if then_claim is not None:
            with contextlib.suppress(FarroError):  # the next claim reports it
                claims = self.claim(*then_claim)
        return Commits(answers, claims)

    def hand_back(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            with contextlib.suppress(Lost), self.transaction() as state:
                job = self._owned(state, claim)
                assert job.before is not None
                job.lifecycle, job.entered = job.before
                job.attempts, job.owner = job.attempts - 1, None
                state.save(job)
                self._note_later(**audit_fields.handed_back(claim.envelope.lifecycle))  # type: ignore[arg-type]
                self._publish(state, job)
            self.close_claim(claim)

    def _commit(self, claim: Claim, outcome: Outcome, move: Move | None) -> Lifecycle:
        if move is not None:
            self._check_role(move.role)
        with self.transaction() as state:
            job = self._owned(state, claim)
            children = outcome.children if isinstance(outcome, Succeeded) else ()
            for child in children:
                self._check_role(child.role)
            move = move or moves.after(job.lifecycle, outcome, self._policy.retry, self._uniform, attempt=claim.attempt)
            digest = None
            if isinstance(outcome, Succeeded | Failed | Unroutable):
                body = json.dumps(outcome.report.result, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
                digest = hashlib.sha256(body + b"\n").hexdigest()
                self.keep_report(state, claim, outcome.report, good=isinstance(outcome, Succeeded))
            lifecycle = self._decide(state, job, move, claim.agent.id, digest)
            for index, child in enumerate(children):
                child_id = ids.child_id(claim.job_id, claim.attempt, index)
                self._enqueue(state, Submission(role=child.role, prompt=child.prompt, job_id=child_id))
            if children:
                self._note_later("dispatched", actor=claim.agent.id, job_id=claim.job_id, children=len(children))
            return lifecycle

    def _owned(self, state: StoreState, claim: Claim) -> StoredJob:
        job = state.job(claim.job_id)
        known = state.agents().get(claim.agent.id)
        if job is not None and job.owner == claim.agent.id and (known is None or not known.alive):
            raise AgentLost(f"{claim.agent.id} left or was declared dead; {claim.job_id} is no longer its own")
        if (
            job is None
            or job.owner != claim.agent.id
            or job.attempts != claim.attempt
            or job.lifecycle.status is Status.STALE
        ):
            raise ClaimLost(f"{claim.job_id} no longer belongs to {claim.agent.id}: it was recovered or killed")
        return job

    # --- operators and the manager ---

    def retry_rules(self) -> tuple[RetryPolicy, Uniform]:
        return self._policy.retry, self._uniform

    def decide_job(self, agent: Agent, job_id: str, choose: Choose, *, text: str | None = None) -> Lifecycle | None:
        ids.check_job_id(job_id)
        with self.transaction() as state:
            self._check_alive(state, agent)
            job = state.job(job_id)
            move = None if job is None else choose(JobToDecide(job.lifecycle, job.attempts, job.owner is not None))
            if job is None or move is None:
                return None
            if move.role != job.lifecycle.role:  # one that is gone can be kept, not taken
                self._check_role(move.role)
            if text is not None:
                job.attempts += 1
                self.keep_answer(state, job_id, job.attempts, text)
            return self._decide(state, job, move, agent.id)

    def open_failures(self) -> list[str]:
        with self.transaction() as state:
            failed = [job.lifecycle for job in state.jobs(statuses=[Status.FAILED])]
        return [life.job_id for life in failed if not life.terminal]

    def _put(self, state: StoreState, job: StoredJob, lifecycle: Lifecycle) -> None:
        """Set the job's new state, audit it and publish the change."""
        job.lifecycle = lifecycle
        job.waits &= lifecycle.status is Status.QUEUED
        job.entered = (priority(job.prompt), state.next_number())
        state.save(job)
        self._note_later(**audit_fields.codes(lifecycle))  # type: ignore[arg-type]
        self._publish(state, job)

    def _publish(self, state: StoreState, job: StoredJob) -> None:
        life = job.lifecycle
        change = Change(job_id=life.job_id, role=life.role, status=life.status)
        state.publish(change, enters=life.status is Status.QUEUED and not job.waits)

    def _decide(
        self, state: StoreState, job: StoredJob, move: Move, by: str, result_sha256: str | None = None
    ) -> Lifecycle:
        now = self._clock.now()
        lifecycle = moves.decided(
            job.lifecycle, move, by=by, attempt=job.attempts, now=now, result_sha256=result_sha256
        )
        if move.reason is not Reason.ROUTING_EXHAUSTED:
            job.owner = None
        job.waits = move.waits
        self._put(state, job, lifecycle)
        if lifecycle.terminal:
            self._unblock(state, by)
        return lifecycle

    def _unblock(self, state: StoreState, by: str) -> None:
        """Unblock or kill the jobs that wait for an ended job, then those that wait for them, until nothing changes."""
        changed = True
        while changed:
            changed = False
            for job in [job for job in state.jobs(waits=True) if not moves.waits_for_person(job.lifecycle)]:
                named = after.dependencies(job.prompt)
                verdict = after.judge(named, lambda job_id: _end_of(state, job_id))
                now = self._clock.now()
                if verdict.hopeless:
                    move = moves.dependency_failed(job.lifecycle.role, verdict.hopeless)
                    self._put(state, job, moves.decided(job.lifecycle, move, by=by, attempt=job.attempts, now=now))
                elif verdict.ready:
                    job.waits = False
                    note = f"after {', '.join(named.all)}"
                    self._put(state, job, moves.unblocked(job.lifecycle, by=by, now=now, note=note))
                changed |= bool(verdict.ready or verdict.hopeless)

    def _job(self, state: StoreState, job_id: str) -> StoredJob:
        job = state.job(ids.check_job_id(job_id))
        if job is None:
            raise UnknownJob(f"no job {job_id}")
        return job

    def _check_alive(self, state: StoreState, agent: Agent) -> None:
        known = state.agents().get(agent.id)
        if known is None or not known.alive:
            raise AgentLost(f"{agent.id} left or was declared dead; the slot joins again under a new name")

    # --- recovery and removal ---

    def recover(self, agent: Agent) -> list[RecoveryAction]:
        done: list[RecoveryAction] = []
        with self.transaction() as state:
            self._check_alive(state, agent)
            now_s = self._clock.monotonic_s()
            for other in list(state.agents().values()):
                name = other.agent.id
                if other.alive and now_s - other.beat_s >= self._policy.stale_after_s and name != agent.id:
                    other = replace(other, alive=False)
                    state.save_agent(other)
                    done.append(RecoveryAction(job_id=None, agent=name, what="silent_killed"))
                for job in list(state.jobs(owner=name)):
                    done += self._recover_job(state, job, other, agent)
                if not other.alive:
                    state.delete_agent(name)
                    done.append(RecoveryAction(job_id=None, agent=name, what="agent_removed"))
        for item in done:
            if item.what != "stale":  # a transition, which is audited where it happens
                self.note("recovered", actor=agent.id, job_id=item.job_id, what=item.what, agent=item.agent)
        return done

    def _recover_job(self, state: StoreState, job: StoredJob, owner: StoredAgent, agent: Agent) -> list[RecoveryAction]:
        job_id, name = job.lifecycle.job_id, owner.agent.id
        if job.lifecycle.status is Status.STALE:  # marked stale in place: carried out
            job.owner = None
            state.save(job)
            return [RecoveryAction(job_id=job_id, agent=name, what="rolled_forward")]
        if owner.alive:
            return []
        self.end_processes(job_id, job.attempts, owner)
        error = ErrorInfo(category="agent_died", message=f"agent {name} died during attempt {job.attempts}")
        move = Move(reason=Reason.AGENT_DIED, status=Status.STALE, role=job.lifecycle.role, error=error)
        self._decide(state, job, move, agent.id)
        return [RecoveryAction(job_id=job_id, agent=name, what="stale")]

    def stale(self) -> list[str]:
        with self.transaction() as state:
            return [job.lifecycle.job_id for job in state.jobs(statuses=[Status.STALE]) if job.owner is None]

    def remove(
        self,
        jobs: Sequence[JobAt],
        *,
        by: str,
        leftovers: bool = True,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Removed:
        removed = 0
        for done, wanted in enumerate(jobs, start=1):
            with self.transaction() as state:
                job = state.job(wanted.job_id)
                if job is not None and job.lifecycle.terminal:
                    state.delete(wanted.job_id)
                    removed += 1
            progress(done, len(jobs))
        return Removed(jobs=removed)

    # --- pausing and waiting ---

    def changes(self, cursor: int | None, *, role: str | None = None, timeout_s: float = 0) -> Changes:
        return self._feed(role).since(cursor, timeout_s)

    def wake(self, role: str | None) -> None:
        self._feed(role).wake()

    def _feed(self, role: str | None) -> ChangeFeed:
        if role is not None:
            self._check_role(role)
        feed = self.feeds.get(role)
        if feed is None:
            with self._lock:
                feed = self.feeds.setdefault(role, self.make_feed(role))
        return feed

    def pause(self, role: str, paused: QueuePause) -> bool:
        self._check_role(role)
        with self.transaction() as state:
            if role in state.paused():
                return False
            state.set_paused(role, paused)
            return True

    def resume(self, role: str) -> bool:
        self._check_role(role)
        with self.transaction() as state:
            was = role in state.paused()
            if was:
                state.set_paused(role, None)
                state.publish_gap(role)
        return was

    def paused(self) -> Mapping[str, QueuePause]:
        with self.transaction() as state:
            return dict(state.paused())

    # --- queries ---

    def entry_order(self, jobs: Sequence[JobView]) -> Mapping[str, int]:
        with self.transaction() as state:
            found = {job.job_id: state.job(job.job_id) for job in jobs}
        return {job_id: 0 if job is None else job.entered[1] for job_id, job in found.items()}

    def leadership(self) -> FileLeadership:
        return FileLeadership(root=self.root, clock=self._clock)

    def accounts(self) -> Accounts:
        from farro.store.files.accounts import FilesAccounts

        return FilesAccounts(self.root, self._clock, uniform=self._uniform, durable=self._policy.durable)

    def find(self, job_id: str, *, place: str | None = None) -> JobView | None:
        ids.check_job_id(job_id)
        with self.transaction() as state:
            job = state.job(job_id)
            return None if job is None else _view(job)

    def folder(self, view: JobView) -> str:
        return f"{view.place}/{view.job_id}"  # does not exist: this store keeps no files

    def prompts(self, jobs: Sequence[JobAt]) -> Mapping[str, Mapping[str, Any]]:
        with self.transaction() as state:
            found = {wanted.job_id: state.job(wanted.job_id) for wanted in jobs}
        return {job_id: job.prompt for job_id, job in found.items() if job is not None}

    def named(self, name: str) -> str | None:
        ids.check_job_name(name)
        with self.transaction() as state:
            return state.names().get(name)

    def names(self) -> Mapping[str, str]:
        with self.transaction() as state:
            return dict(state.names())

    def list(
        self,
        *,
        roles: Collection[str] | None = None,
        statuses: Collection[Status] | None = None,
        limit: int | None = None,
    ) -> list[JobView]:
        with self.transaction() as state:
            return [_view(job) for job in islice(state.jobs(roles=roles, statuses=statuses), limit)]

    def count(self, *, roles: Collection[str] | None = None) -> Mapping[Status, int]:
        """Count by place, as the file store does: a job that was marked stale in place counts as in progress until it
        is collected."""
        answer = dict.fromkeys(Status, 0)
        with self.transaction() as state:
            for job in state.jobs(roles=roles):
                answer[Status.IN_PROGRESS if job.owner else job.lifecycle.status] += 1
        return answer

    def load(self, role: str | None) -> int:
        counts = self.count(roles=None if role is None else [role])
        return counts[Status.QUEUED] + counts[Status.IN_PROGRESS]

    def pending(self, role: str) -> int:
        with self.transaction() as state:
            counts = self.count(roles=[role])
            stuck = sum(_stuck(state, job.lifecycle.job_id) for job in state.jobs(roles=[role], waits=True))
            stuck += sum(1 for job in state.jobs(roles=[role], statuses=[Status.STALE]) if job.owner)
        return counts[Status.QUEUED] + counts[Status.IN_PROGRESS] - stuck

    def close(self) -> None:
        for feed in list(self.feeds.values()):
            feed.close()

    def _check_role(self, role: str) -> None:
        if ids.check_role(role) not in self._roles:
            raise UnknownRole(f"no role {role}; known: {', '.join(self._roles)}")


def _view(job: StoredJob) -> JobView:
    now = job.lifecycle
    if job.waits:
        named = () if moves.waits_for_person(now) else after.dependencies(job.prompt).all
        return JobView(lifecycle=now, place=places.WAITING, waits_for=named)
    place = f"{places.in_progress(now.role)}/{job.owner}" if job.owner else places.destination(now.role, now.status)
    return JobView(lifecycle=now, place=place)


def _stuck(state: StoreState, job_id: str) -> bool:
    """Return whether a job that it waits for, directly or not, needs a decision before it can go on."""
    todo, seen = [job_id], set()
    while todo:
        job = state.job(todo.pop())
        if job is None:
            continue
        if job.waits and moves.waits_for_person(job.lifecycle):
            return True
        if job.waits:
            todo += [name for name in after.dependencies(job.prompt).all if name not in seen]
            seen.update(todo)
        elif job.lifecycle.status is Status.STALE or (
            job.lifecycle.status is Status.FAILED and not job.lifecycle.terminal
        ):
            return True
    return False


def _end_of(state: StoreState, job_id: str) -> DependencyState:
    job = state.job(job_id)
    if job is None:
        return DependencyState.GONE
    if not job.lifecycle.terminal:
        return DependencyState.OPEN
    return DependencyState.SUCCEEDED if job.lifecycle.status is Status.SUCCEEDED else DependencyState.FAILED
