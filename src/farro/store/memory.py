"""The memory store: the Store port in dictionaries, for tests and experiments. Nothing outlives the process.

It applies the same rules as the other stores and passes the same contract suite; it has no crashes to survive.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from farro import documents
from farro.errors import (
    AgentLost,
    ClaimLost,
    FarroError,
    IdConflict,
    IllegalTransition,
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
from farro.jobs.outcomes import ErrorInfo, Failed, Outcome, Succeeded, Unroutable
from farro.jobs.retry import Uniform
from farro.jobs.states import Reason, Status
from farro.lazy_dataclass import dataclass, field
from farro.log.audit import Audit, Value, no_audit
from farro.plans import after
from farro.plans.after import DependencyState
from farro.plans.metadata import priority, required_tags
from farro.store.feed import ChangeFeed
from farro.store.listed_queries import ListedQueries
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
    PersonAnswer,
    QueuePause,
    RecoveryAction,
    Removed,
    StorePolicy,
    Submission,
    Submitted,
)

_SMALL_BATCH = 4  # this many are claimed at once even if the queue holds few more


@dataclass(kw_only=True, slots=True)
class MemoryJob:
    """A job and its place in the dictionary store."""

    prompt: Mapping[str, Any]
    digest: str | None  # of the content, for a chosen id
    lifecycle: Lifecycle
    entered: tuple[str, int]  # order in its queue: priority, then number of entry
    waits: bool = False  # outside its queue, for other jobs or a person
    before: tuple[Lifecycle, tuple[str, int]] | None = None  # lifecycle and order in its queue, at the last claim
    owner: str | None = None
    attempts: int = 0
    results: dict[int, Mapping[str, Any]] = field(default_factory=dict)


class MemoryStore(ListedQueries):
    """The Store port over dictionaries; `_lock` guards all of them."""

    def __init__(
        self,
        *,
        roles: Collection[str],
        policy: StorePolicy,
        clock: Clock,
        random_bits: Callable[[int], int],
        uniform: Uniform,
        audit: Audit = no_audit,
    ) -> None:
        self._audit = audit
        self._roles = sorted(map(ids.check_role, roles))
        self._policy = policy
        self._clock = clock
        self._random_bits = random_bits
        self._uniform = uniform
        self._mint = IdMint(clock.now, random_bits)
        self._jobs: dict[str, MemoryJob] = {}
        self._names: dict[str, str] = {}  # name → the id of its present job
        self._agents: dict[str, tuple[Agent, bool]] = {}  # agent, alive
        self._cursors: dict[str, int] = {}  # agent → how far it has read the feed of its queue, for waiting
        self._beats: dict[str, float] = {}  # on the clock that stops while the machine sleeps (RELIABILITY 18)
        self._entries = 0
        self._paused: dict[str, QueuePause] = {}
        self._feeds: dict[str | None, ChangeFeed] = {None: ChangeFeed(), **{role: ChangeFeed() for role in self._roles}}
        self._lock = threading.RLock()

    @property
    def root(self) -> str:
        return ""  # there is no folder

    def note(self, event: str, *, actor: str | None = None, **codes: Value) -> None:
        self._audit(event, actor=actor, **codes)

    def roles(self) -> list[str]:
        return list(self._roles)

    # --- agents ---

    def join(self, name: str, *, role: str | None, slot: int = 0, tags: Collection[str] = ()) -> Agent:
        if role is not None:
            self._check_role(role)
        agent = Agent(
            id=ids.agent_id(name, slot, self._random_bits), role=role, tags=frozenset(map(ids.check_tag, tags))
        )
        with self._lock:
            self._agents[agent.id] = (agent, True)
            self._beats[agent.id] = self._clock.monotonic_s()
        return agent

    def leave(self, agent: Agent) -> None:
        with self._lock:
            if agent.id in self._agents:
                self._agents[agent.id] = (agent, False)
                self._cursors.pop(agent.id, None)
                if not self._held_by(agent.id):
                    del self._agents[agent.id]

    def heartbeat(self, agent: Agent, claim: Claim | None = None) -> None:
        with self._lock:
            if claim is not None:
                self._owned(claim)
            self._check_alive(agent)
            self._beats[agent.id] = self._clock.monotonic_s()

    def agents(self) -> list[AgentView]:
        with self._lock:
            return [
                AgentView(
                    id=agent.id, role=agent.role, alive=alive, jobs=tuple(sorted(self._held_by(agent.id))), identity={}
                )
                for agent, alive in self._agents.values()
            ]

    def _held_by(self, agent_id: str) -> list[str]:
        return [job_id for job_id, job in self._jobs.items() if job.owner == agent_id]

    # --- submitting ---

    def enqueue(self, submission: Submission) -> str:
        return self.enqueue_many([submission])[0].id

    def enqueue_many(self, submissions: Sequence[Submission]) -> list[Submitted]:
        for submission in submissions:
            self._check_role(submission.role)
            if submission.job_id is not None:
                ids.check_job_id(submission.job_id)
            if len(documents.canonical(submission.prompt)) >= self._policy.max_prompt_bytes:
                raise InputError(f"the prompt is too long; at most {self._policy.max_prompt_bytes} bytes are allowed")
        with self._lock:
            wanted: dict[str, str | None] = {}
            for submission in submissions:  # all are checked before one is queued
                job_id, digest = submission.job_id or "", _digest(submission)
                first = self._jobs[job_id].digest if job_id in self._jobs else digest
                if job_id and wanted.setdefault(job_id, first) != digest:
                    raise IdConflict(f"{job_id} was submitted before with other content; the first job is untouched")
            earlier: set[str] = set()
            for submission in submissions:
                self._blocks(submission, earlier)
                earlier.update({submission.job_id} if submission.job_id else ())
            made = []
            for submission in submissions:
                existed = submission.job_id in self._jobs
                made.append(Submitted(id=self._enqueue(submission), existed=existed))
            return made

    def enqueue_claimed(self, agent: Agent, submission: Submission) -> Claim | None:
        assert agent.role == submission.role, "an agent works its own role"
        if after.dependencies(submission.prompt).all:
            raise InputError("a job that runs after others cannot start at once; enqueue it")
        with self._lock:
            self._check_alive(agent)
            known = submission.job_id in self._jobs
            job = self._jobs[self.enqueue(submission)]
            return None if known else self._claimed(job, agent, self._clock.now())

    def enqueue_named(self, name: str, submission: Submission, *, instead_of: str | None = None) -> str:
        with self._lock:
            present = self.named(name)
            if present != instead_of:
                raise NameTaken(name, present)
            self._names[name] = self.enqueue(submission)
            return self._names[name]

    def _blocks(self, submission: Submission, earlier: Collection[str] = ()) -> list[str]:
        """Return the ids that it has to wait for. Raises if it could never run."""
        if submission.job_id in self._jobs:
            return []
        named = after.dependencies(submission.prompt)
        return after.blocking(named, self._end_of, earlier=earlier, own=submission.job_id)

    def _enqueue(self, submission: Submission) -> str:
        if submission.job_id in self._jobs:
            return submission.job_id
        routing = submission.prompt.get("routing")
        lifecycle = moves.enqueued(
            job_id=submission.job_id or self._mint.mint(),
            role=submission.role,
            now=self._clock.now(),
            not_before=submission.not_before,
            routing=routing if isinstance(routing, dict) else None,
            retry_of=submission.retry_of,
            waits=bool(blocks := self._blocks(submission)),
        )
        prompt = json.loads(documents.canonical(submission.prompt))
        digest = None if submission.job_id is None else _digest(submission)
        self._jobs[lifecycle.job_id] = MemoryJob(prompt=prompt, digest=digest, lifecycle=lifecycle, entered=("", 0))
        self._jobs[lifecycle.job_id].waits = bool(blocks)
        self._put(self._jobs[lifecycle.job_id], lifecycle)
        return lifecycle.job_id

    # --- claiming and committing ---

    def claim(self, agent: Agent, limit: int, wait_s: float = 0) -> list[Claim]:
        assert agent.role is not None, "an agent without a role holds jobs, it does not claim them"
        feed = self._feeds[agent.role]
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
        with self._lock:
            self._check_alive(agent)
            if agent.role in self._paused:
                return []
            now = self._clock.now()
            fitting = sorted(
                (job for job in self._jobs.values() if self._fits(job, agent, now)), key=lambda job: job.entered
            )
            chosen = fitting[: min(limit, max(_SMALL_BATCH, len(fitting) // 2))]
            started = next((at for at, job in enumerate(chosen) if job.attempts > 0), len(chosen))
            return [self._claimed(job, agent, now) for job in chosen[: max(started, 1)]]

    def _fits(self, job: MemoryJob, agent: Agent, now: datetime) -> bool:
        if job.lifecycle.status is not Status.QUEUED or job.lifecycle.role != agent.role or job.waits:
            return False
        due = job.lifecycle.not_before
        return required_tags(job.prompt) <= agent.tags and (due is None or datetime.fromisoformat(due) <= now)

    def _claimed(self, job: MemoryJob, agent: Agent, now: datetime) -> Claim:
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
        self._put(job, lifecycle)
        prompt = copy.deepcopy(job.prompt)  # a worker's changes to its copy are never written back
        return Claim(agent=agent, envelope=Envelope(prompt=prompt, lifecycle=lifecycle), attempt=attempt, folder="")

    def next_due(self, role: str) -> datetime | None:
        with self._lock:
            if role in self._paused:
                return None
            now = self._clock.now()
            dues = [
                datetime.fromisoformat(job.lifecycle.not_before)
                for job in self._jobs.values()
                if job.lifecycle.role == role and job.lifecycle.status is Status.QUEUED and job.lifecycle.not_before
            ]
        return min((due for due in dues if due > now), default=None)

    def commit(self, results: Sequence[AttemptResult], then_claim: NextClaim | None = None) -> Commits:
        answers: list[Lifecycle | FarroError] = []
        for result in results:
            try:
                answers.append(self._commit(*result))
            except FarroError as error:
                answers.append(error)
        claims: list[Claim] = []
        if then_claim is not None:
            with contextlib.suppress(FarroError):  # the next claim reports it
                claims = self.claim(*then_claim)
        return Commits(answers, claims)

    def hand_back(self, claims: Sequence[Claim]) -> None:
        with self._lock:
            for claim in claims:
                with contextlib.suppress(Lost):
                    job = self._owned(claim)
                    assert job.before is not None
                    job.lifecycle, job.entered = job.before
                    job.attempts, job.owner = job.attempts - 1, None
                    self.note(**audit_fields.handed_back(claim.envelope.lifecycle))  # type: ignore[arg-type]
                    self._publish(job)

    def _commit(self, claim: Claim, outcome: Outcome, move: Move | None) -> Lifecycle:
        if move is not None:
            self._check_role(move.role)
        with self._lock:
            job = self._owned(claim)
            children = outcome.children if isinstance(outcome, Succeeded) else ()
            for child in children:
                self._check_role(child.role)
            move = move or moves.after(job.lifecycle, outcome, self._policy.retry, self._uniform, attempt=claim.attempt)
            digest = None
            if isinstance(outcome, Succeeded | Failed | Unroutable):
                body = json.dumps(outcome.report.result, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
                digest = hashlib.sha256(body + b"\n").hexdigest()
                job.results[claim.attempt] = outcome.report.result
            lifecycle = self._decide(job, move, claim.agent.id, digest)
            for index, child in enumerate(children):
                child_id = ids.child_id(claim.job_id, claim.attempt, index)
                self._enqueue(Submission(role=child.role, prompt=child.prompt, job_id=child_id))
            if children:
                self.note("dispatched", actor=claim.agent.id, job_id=claim.job_id, children=len(children))
            return lifecycle

    def _owned(self, claim: Claim) -> MemoryJob:
        job = self._jobs[claim.job_id]
        if not self._agents.get(claim.agent.id, (claim.agent, False))[1] and job.owner == claim.agent.id:
            raise AgentLost(f"{claim.agent.id} left or was declared dead; {claim.job_id} is no longer its own")
        marked = job.lifecycle.status is Status.STALE
        if job.owner != claim.agent.id or job.attempts != claim.attempt or marked:
            raise ClaimLost(f"{claim.job_id}: taken from {claim.agent.id} (recovered or killed)")
        return job

    # --- operators and the manager ---

    def requeue(self, agent: Agent, job_id: str, *, note: str | None = None, delay_s: float | None = None) -> Lifecycle:
        move = Move(reason=Reason.REQUEUED, status=Status.QUEUED, role="", delay_s=delay_s, note=note)
        return self._change(agent, job_id, move)

    def kill(self, agent: Agent, job_id: str, *, note: str | None = None, reason: Reason = Reason.KILLED) -> Lifecycle:
        error = ErrorInfo(category="killed", message=note or "killed by an operator")
        with self._lock:
            self._check_alive(agent)
            try:
                return self._change(
                    agent, job_id, Move(reason=reason, status=Status.KILLED, role="", error=error, note=note)
                )
            except IllegalTransition:
                if not self._job(job_id).lifecycle.terminal:
                    raise
                return self._job(job_id).lifecycle

    def force_complete(self, agent: Agent, job_id: str, *, note: str | None = None) -> Lifecycle:
        return self._change(
            agent, job_id, Move(reason=Reason.FORCE_COMPLETED, status=Status.SUCCEEDED, role="", note=note)
        )

    def resolve_stale(self, agent: Agent, job_id: str) -> Lifecycle | None:
        with self._lock:
            self._check_alive(agent)
            job = self._jobs.get(job_id)
            if job is None or job.lifecycle.status is not Status.STALE or job.owner is not None:
                return None
            move = moves.resolve_stale(job.lifecycle, self._policy.retry, self._uniform, highest=job.attempts)
            return self._decide(job, move, agent.id)

    def _change(self, agent: Agent, job_id: str, move: Move) -> Lifecycle:
        with self._lock:
            self._check_alive(agent)
            job = self._job(job_id)
            now = job.lifecycle
            now.check_transition(move.status, move.reason)
            job.owner = None
            return self._decide(job, replace(move, role=now.role), agent.id)

    def answer(self, agent: Agent, job_id: str, answered: PersonAnswer) -> Lifecycle:
        with self._lock:
            self._check_alive(agent)
            job = self._job(job_id)
            if job.lifecycle.status is not Status.QUEUED or not moves.waits_for_person(job.lifecycle):
                raise IllegalTransition(f"{job_id} does not wait for a person; nothing was changed")
            if answered.text is not None:
                job.attempts += 1
                job.results[job.attempts] = {"success": True, "edited_by": agent.id}
            move = Move(reason=Reason.ANSWERED, status=Status.QUEUED, role="Manager", note=answered.note)
            return self._decide(job, replace(move, route=answered.route), agent.id)

    def reroute(
        self, agent: Agent, job_id: str, role: str, *, note: str | None = None, route: Mapping[str, Any] | None = None
    ) -> Lifecycle:
        self._check_role(role)
        with self._lock:
            self._check_alive(agent)
            job = self._job(job_id)
            now = job.lifecycle
            now.check_transition(Status.QUEUED, Reason.REROUTED)
            if job.waits and not moves.waits_for_person(now):
                raise IllegalTransition(f"{job_id} runs after other jobs, and they have not ended; nothing was changed")
            job.owner = None
            move = Move(reason=Reason.REROUTED, status=Status.QUEUED, role=role, note=note, route=route)
            return self._decide(job, move, agent.id)

    def finalize(
        self, agent: Agent, job_id: str, *, note: str | None = None, route: Mapping[str, Any] | None = None
    ) -> Lifecycle | None:
        with self._lock:
            self._check_alive(agent)
            job = self._jobs.get(job_id)
            if job is None or job.lifecycle.status is not Status.FAILED or job.lifecycle.terminal:
                return None
            move = Move(reason=Reason.FINALIZED, status=Status.FAILED, role=job.lifecycle.role, note=note, route=route)
            return self._decide(job, move, agent.id)

    def open_failures(self) -> list[str]:
        with self._lock:
            failed = [job.lifecycle for job in self._jobs.values() if job.lifecycle.status is Status.FAILED]
        return sorted(life.job_id for life in failed if not life.terminal)

    def _put(self, job: MemoryJob, lifecycle: Lifecycle) -> None:
        """Set the job's new state, audit it and publish the change."""
        job.lifecycle = lifecycle
        job.waits &= lifecycle.status is Status.QUEUED
        self._entries += 1
        job.entered = (priority(job.prompt), self._entries)
        self.note(**audit_fields.codes(lifecycle))  # type: ignore[arg-type]
        self._publish(job)

    def _publish(self, job: MemoryJob) -> None:
        lifecycle = job.lifecycle
        change = Change(job_id=lifecycle.job_id, role=lifecycle.role, status=lifecycle.status)
        self._feeds[None].publish([change])
        if lifecycle.status is Status.QUEUED and not job.waits:
            self._feeds[lifecycle.role].publish([change])

    def _decide(self, job: MemoryJob, move: Move, by: str, result_sha256: str | None = None) -> Lifecycle:
        now = self._clock.now()
        lifecycle = moves.decided(
            job.lifecycle, move, by=by, attempt=job.attempts, now=now, result_sha256=result_sha256
        )
        if move.reason is not Reason.ROUTING_EXHAUSTED:
            job.owner = None
        job.waits = move.waits
        self._put(job, lifecycle)
        if lifecycle.terminal:
            self._unblock(by)
        return lifecycle

    def _unblock(self, by: str) -> None:
        """Unblock or kill the jobs that wait for an ended job, then those that wait for them, until nothing changes."""
        changed = True
        while changed:
            changed = False
            for job in [job for job in self._jobs.values() if job.waits and not moves.waits_for_person(job.lifecycle)]:
                named = after.dependencies(job.prompt)
                verdict = after.judge(named, self._end_of)
                now = self._clock.now()
                if verdict.hopeless:
                    move = moves.dependency_failed(job.lifecycle.role, verdict.hopeless)
                    self._put(job, moves.decided(job.lifecycle, move, by=by, attempt=job.attempts, now=now))
                elif verdict.ready:
                    job.waits = False
                    note = f"after {', '.join(named.all)}"
                    self._put(job, moves.unblocked(job.lifecycle, by=by, now=now, note=note))
                changed |= bool(verdict.ready or verdict.hopeless)

    def _job(self, job_id: str) -> MemoryJob:
        job = self._jobs.get(ids.check_job_id(job_id))
        if job is None:
            raise UnknownJob(f"no job {job_id}")
        return job

    def _check_alive(self, agent: Agent) -> None:
        if not self._agents.get(agent.id, (agent, False))[1]:
            raise AgentLost(f"{agent.id} left or was declared dead; the slot joins again under a new name")

    # --- recovery ---

    def recover(self, agent: Agent) -> list[RecoveryAction]:
        done: list[RecoveryAction] = []
        with self._lock:
            self._check_alive(agent)
            now_s = self._clock.monotonic_s()
            for other, alive in list(self._agents.values()):
                if alive and now_s - self._beats[other.id] >= self._policy.stale_after_s and other.id != agent.id:
                    self._agents[other.id], alive = (other, False), False
                    done.append(RecoveryAction(job_id=None, agent=other.id, what="silent_killed"))
                for job_id in self._held_by(other.id):
                    done += self._recover_job(self._jobs[job_id], job_id, other.id, alive, agent)
                if not alive:
                    del self._agents[other.id]
                    done.append(RecoveryAction(job_id=None, agent=other.id, what="agent_removed"))
        for item in done:
            if item.what != "stale":  # a transition, which is audited where it happens
                self.note("recovered", actor=agent.id, job_id=item.job_id, what=item.what, agent=item.agent)
        return done

    def _recover_job(self, job: MemoryJob, job_id: str, owner: str, alive: bool, agent: Agent) -> list[RecoveryAction]:
        if job.lifecycle.status is Status.STALE:  # marked stale in place: carried out
            job.owner = None
            return [RecoveryAction(job_id=job_id, agent=owner, what="rolled_forward")]
        if not alive:
            error = ErrorInfo(category="agent_died", message=f"agent {owner} died during attempt {job.attempts}")
            move = Move(reason=Reason.AGENT_DIED, status=Status.STALE, role=job.lifecycle.role, error=error)
            self._decide(job, move, agent.id)
            return [RecoveryAction(job_id=job_id, agent=owner, what="stale")]
        return []

    def watch_deaths(self, *, stale: bool = False) -> None:
        return None

    def stale(self) -> list[str]:
        with self._lock:
            stale = [job for job in self._jobs.values() if job.lifecycle.status is Status.STALE and job.owner is None]
        return sorted(job.lifecycle.job_id for job in stale)

    def remove(
        self,
        jobs: Sequence[JobAt],
        *,
        by: str,
        leftovers: bool = True,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Removed:
        with self._lock:
            final = {job.job_id for job in jobs if job.job_id in self._jobs}
            final = {job_id for job_id in final if self._jobs[job_id].lifecycle.terminal}
            for job_id in final:
                del self._jobs[job_id]
            self._names = {name: job_id for name, job_id in self._names.items() if job_id not in final}
        progress(len(jobs), len(jobs))
        return Removed(jobs=len(final))

    # --- queries ---

    def changes(self, cursor: int | None, *, role: str | None = None, timeout_s: float = 0) -> Changes:
        return self._feed(role).since(cursor, timeout_s)

    def wake(self, role: str | None) -> None:
        self._feed(role).wake()

    def _feed(self, role: str | None) -> ChangeFeed:
        if role is not None:
            self._check_role(role)
        return self._feeds[role]

    def pause(self, role: str, paused: QueuePause) -> bool:
        self._check_role(role)
        with self._lock:
            return self._paused.setdefault(role, paused) is paused

    def resume(self, role: str) -> bool:
        self._check_role(role)
        with self._lock:
            was = self._paused.pop(role, None) is not None
        self._feeds[role].publish([], gap=was)
        return was

    def paused(self) -> Mapping[str, QueuePause]:
        with self._lock:
            return dict(self._paused)

    def find(self, job_id: str, *, place: str | None = None) -> JobView | None:
        with self._lock:
            job = self._jobs.get(ids.check_job_id(job_id))
            return None if job is None else self._view(job)

    def folder(self, view: JobView) -> str:
        return f"{view.place}/{view.job_id}"  # does not exist: this store keeps no files

    def prompts(self, jobs: Sequence[JobAt]) -> Mapping[str, Mapping[str, Any]]:
        with self._lock:
            return {job.job_id: self._jobs[job.job_id].prompt for job in jobs if job.job_id in self._jobs}

    def named(self, name: str) -> str | None:
        with self._lock:
            job_id = self._names.get(ids.check_job_name(name))
            return job_id if job_id in self._jobs else None

    def names(self) -> Mapping[str, str]:
        with self._lock:
            return {name: job_id for name, job_id in sorted(self._names.items()) if job_id in self._jobs}

    def _view(self, job: MemoryJob) -> JobView:
        now = job.lifecycle
        place = f"{places.in_progress(now.role)}/{job.owner}" if job.owner else places.destination(now.role, now.status)
        if job.waits:
            named = () if moves.waits_for_person(now) else after.dependencies(job.prompt).all
            return JobView(lifecycle=now, place=places.WAITING, waits_for=named)
        return JobView(lifecycle=now, place=place)

    def list(
        self,
        *,
        roles: Collection[str] | None = None,
        statuses: Collection[Status] | None = None,
        limit: int | None = None,
    ) -> list[JobView]:
        with self._lock:
            found = [
                self._view(job)
                for _, job in sorted(self._jobs.items())
                if (roles is None or job.lifecycle.role in roles)
                and (statuses is None or job.lifecycle.status in statuses)
            ]
        return found[:limit]

    def count(self, *, roles: Collection[str] | None = None) -> Mapping[Status, int]:
        """Count by place, as the file store does: a job that was marked stale in place counts as in progress until it
        is collected."""
        answer = dict.fromkeys(Status, 0)
        with self._lock:
            for job in self._jobs.values():
                if roles is None or job.lifecycle.role in roles:
                    answer[Status.IN_PROGRESS if job.owner else job.lifecycle.status] += 1
        return answer

    def load(self, role: str | None) -> int:
        counts = self.count(roles=None if role is None else [role])
        return counts[Status.QUEUED] + counts[Status.IN_PROGRESS]

    def pending(self, role: str) -> int:
        with self._lock:
            counts = self.count(roles=[role])
            waiting = [job_id for job_id, job in self._jobs.items() if job.waits and job.lifecycle.role == role]
            stuck = sum(1 for job_id in waiting if self._stuck(job_id))
            stuck += sum(
                1
                for job in self._jobs.values()
                if job.owner and job.lifecycle.role == role and job.lifecycle.status is Status.STALE
            )
        return counts[Status.QUEUED] + counts[Status.IN_PROGRESS] - stuck

    def _stuck(self, job_id: str) -> bool:
        """Return whether a job that it waits for, directly or not, needs a decision before it can go on."""
        todo, seen = [job_id], set()
        while todo:
            job = self._jobs[todo.pop()]
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

    def _end_of(self, job_id: str) -> DependencyState:
        job = self._jobs.get(job_id)
        if job is None:
            return DependencyState.GONE
        if not job.lifecycle.terminal:
            return DependencyState.OPEN
        return DependencyState.SUCCEEDED if job.lifecycle.status is Status.SUCCEEDED else DependencyState.FAILED

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()

    def _check_role(self, role: str) -> None:
        if ids.check_role(role) not in self._roles:
            raise UnknownRole(f"no role {role}; known: {', '.join(self._roles)}")


def _digest(submission: Submission) -> str:
    payload = {name: data.hex() for name, data in submission.payload.items()}
    content = [submission.role, submission.prompt, submission.narrative, payload]
    return hashlib.sha256(documents.canonical(content)).hexdigest()
