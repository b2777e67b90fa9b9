"""The memory store: the Store port in a dictionary, for tests and for trying things out. Nothing outlives the process.

It keeps the same rules as the file store (kernel) and passes the same contract suite; it has no crashes to survive.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime

from farro import documents
from farro.errors import AgentLost, ClaimLost, IdConflict, IllegalTransition, InputError, NameTaken
from farro.jobs import ids, states, transitions
from farro.jobs.envelope import Envelope, Lifecycle
from farro.jobs.outcomes import ErrorInfo, Failed, Outcome, Released, Succeeded, Unroutable
from farro.jobs.states import Reason, Status
from farro.jobs.transitions import Move
from farro.plans import after
from farro.plans.tags import required_tags
from farro.store.memory.decisions import Deciding
from farro.store.memory.state import Job
from farro.store.port import Agent, AgentView, Claim, RecoveryAction, Submission


class MemoryStore(Deciding):
    """The Store port. See ports.store for what each call promises."""

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
        return self.enqueue_many([submission])[0]

    def enqueue_many(self, submissions: Sequence[Submission]) -> list[str]:
        for submission in submissions:
            self._check_role(submission.role)
            if submission.job_id is not None:
                ids.check_job_id(submission.job_id)
            if len(documents.canonical(submission.prompt)) >= self._policy.max_prompt_bytes:
                raise InputError(f"the prompt is too long; at most {self._policy.max_prompt_bytes} bytes are allowed")
        with self._lock:
            wanted: dict[str, str | None] = {}
            for submission in submissions:  # all are looked at before one is queued
                job_id, digest = submission.job_id or "", _digest(submission)
                first = self._jobs[job_id].digest if job_id in self._jobs else digest
                if job_id and wanted.setdefault(job_id, first) != digest:
                    raise IdConflict(f"{job_id} was submitted before with other content; the first job is untouched")
            earlier: set[str] = set()
            for submission in submissions:
                self._blocks(submission, earlier)
                earlier.update({submission.job_id} if submission.job_id else ())
            return [self._enqueue(submission) for submission in submissions]

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
        """What it has to wait for; refused when it could never run."""
        if submission.job_id in self._jobs:
            return []
        named = after.dependencies(submission.prompt)
        return after.blocking(named, self._end_of, earlier=earlier, own=submission.job_id)

    def _enqueue(self, submission: Submission) -> str:
        if submission.job_id in self._jobs:
            return submission.job_id
        routing = submission.prompt.get("routing")
        lifecycle = transitions.enqueued(
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
        self._jobs[lifecycle.job_id] = Job(prompt=prompt, digest=digest, lifecycle=lifecycle, entered=("", 0))
        self._jobs[lifecycle.job_id].waits = bool(blocks)
        self._put(self._jobs[lifecycle.job_id], lifecycle)
        return lifecycle.job_id

    # --- working ---

    def claim(self, agent: Agent) -> Claim | None:
        with self._lock:
            self._check_alive(agent)
            if agent.role in self._paused:
                return None
            now = self._clock.now()
            fitting = (job for job in self._jobs.values() if self._fits(job, agent, now))
            job = min(fitting, key=lambda job: job.entered, default=None)
            return None if job is None else self._claimed(job, agent, now)

    def _fits(self, job: Job, agent: Agent, now: datetime) -> bool:
        if job.lifecycle.status is not Status.QUEUED or job.lifecycle.role != agent.role or job.waits:
            return False
        due = job.lifecycle.not_before
        return required_tags(job.prompt) <= agent.tags and (due is None or datetime.fromisoformat(due) <= now)

    def _claimed(self, job: Job, agent: Agent, now: datetime) -> Claim:
        attempt, correlation = job.attempts + 1, f"{self._random_bits(128):032x}"
        lifecycle = transitions.claimed(
            job.lifecycle,
            agent=agent.id,
            attempt=attempt,
            correlation_id=correlation,
            now=now,
            policy_version=self._policy.policy_version(job.lifecycle.role),
        )
        job.attempts, job.owner = attempt, agent.id
        self._put(job, lifecycle)
        prompt = copy.deepcopy(job.prompt)  # what a worker does to its own is never written back
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

    def commit(self, claim: Claim, outcome: Outcome, move: Move | None = None) -> Lifecycle:
        if move is not None:
            self._check_role(move.role)
        return self._settle(claim, outcome, move)

    def route(self, claim: Claim, outcome: Outcome, role: str, note: str | None = None) -> Lifecycle:
        self._check_role(role)
        return self._settle(claim, outcome, Move(reason=Reason.ROUTED, status=Status.QUEUED, role=role, note=note))

    def release(self, claim: Claim, note: str = "") -> Lifecycle:
        return self._settle(claim, Released(note=note), None)

    def _settle(self, claim: Claim, outcome: Outcome, move: Move | None) -> Lifecycle:
        with self._lock:
            job = self._owned(claim)
            children = outcome.children if isinstance(outcome, Succeeded) else ()
            for child in children:
                self._check_role(child.role)
            move = move or transitions.after(
                job.lifecycle, outcome, self._policy.retry, self._uniform, attempt=claim.attempt
            )
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

    def _owned(self, claim: Claim) -> Job:
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
            move = transitions.resolve_stale(job.lifecycle, self._policy.retry, self._uniform, highest=job.attempts)
            return self._decide(job, move, agent.id)

    def _change(self, agent: Agent, job_id: str, move: Move) -> Lifecycle:
        with self._lock:
            self._check_alive(agent)
            job = self._job(job_id)
            now = job.lifecycle
            states.check(job_id, now.status, move.status, move.reason, finalized=now.finalized_at is not None)
            job.owner = None
            return self._decide(job, replace(move, role=now.role), agent.id)

    # --- keeping house ---

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
            if item.what != "stale":  # a transition, told where it happens
                self.note("recovered", actor=agent.id, job_id=item.job_id, what=item.what, agent=item.agent)
        return done

    def _recover_job(self, job: Job, job_id: str, owner: str, alive: bool, agent: Agent) -> list[RecoveryAction]:
        if job.lifecycle.status is Status.STALE:  # marked where it lay: carried out
            job.owner = None
            return [RecoveryAction(job_id=job_id, agent=owner, what="rolled_forward")]
        if not alive:
            error = ErrorInfo(category="agent_died", message=f"agent {owner} died during attempt {job.attempts}")
            move = Move(reason=Reason.AGENT_DIED, status=Status.STALE, role=job.lifecycle.role, error=error)
            self._decide(job, move, agent.id)
            return [RecoveryAction(job_id=job_id, agent=owner, what="stale")]
        return []

    def stale(self) -> list[str]:
        with self._lock:
            stale = [job for job in self._jobs.values() if job.lifecycle.status is Status.STALE and job.owner is None]
        return sorted(job.lifecycle.job_id for job in stale)


def _digest(submission: Submission) -> str:
    payload = {name: data.hex() for name, data in submission.payload.items()}
    content = [submission.role, submission.prompt, submission.narrative, payload]
    return hashlib.sha256(documents.canonical(content)).hexdigest()
