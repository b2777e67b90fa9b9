"""Deciding about a job of the memory store, and a person's and the manager's word about jobs that nobody works on.

Submitting, working and recovery live in the package itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from farro.errors import AgentLost, IllegalTransition, UnknownJob
from farro.jobs import audit_fields, ids, states, transitions
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Reason, Status
from farro.jobs.transitions import Move
from farro.plans import after
from farro.plans.priority import priority
from farro.store.memory.state import Job, State
from farro.store.port import Agent, Change, PersonAnswer


class Deciding(State):
    """The part of the Store port that is not a worker's."""

    def answer(self, agent: Agent, job_id: str, answered: PersonAnswer) -> Lifecycle:
        with self._lock:
            self._check_alive(agent)
            job = self._job(job_id)
            if job.lifecycle.status is not Status.QUEUED or not transitions.waits_for_person(job.lifecycle):
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
            states.check(job_id, now.status, Status.QUEUED, Reason.REROUTED, finalized=now.finalized_at is not None)
            if job.waits and not transitions.waits_for_person(now):
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

    def _put(self, job: Job, lifecycle: Lifecycle) -> None:
        """The job's new state, told to whoever waits."""
        job.lifecycle = lifecycle
        job.waits &= lifecycle.status is Status.QUEUED
        self._entries += 1
        job.entered = (priority(job.prompt), self._entries)
        self.note(**audit_fields.codes(lifecycle))  # type: ignore[arg-type]
        change = Change(job_id=lifecycle.job_id, role=lifecycle.role, status=lifecycle.status)
        self._feeds[None].publish([change])
        if lifecycle.status is Status.QUEUED and not job.waits:
            self._feeds[lifecycle.role].publish([change])

    def _decide(self, job: Job, move: Move, by: str, result_sha256: str | None = None) -> Lifecycle:
        now = self._clock.now()
        lifecycle = transitions.decided(
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
        """A job has ended: see to those that wait, and to those that wait for these, until nothing changes."""
        changed = True
        while changed:
            changed = False
            for job in [
                job for job in self._jobs.values() if job.waits and not transitions.waits_for_person(job.lifecycle)
            ]:
                named = after.dependencies(job.prompt)
                verdict = after.judge(named, self._end_of)
                now = self._clock.now()
                if verdict.hopeless:
                    move = transitions.dependency_failed(job.lifecycle.role, verdict.hopeless)
                    self._put(job, transitions.decided(job.lifecycle, move, by=by, attempt=job.attempts, now=now))
                elif verdict.ready:
                    job.waits = False
                    note = f"after {', '.join(named.all)}"
                    self._put(job, transitions.unblocked(job.lifecycle, by=by, now=now, note=note))
                changed |= bool(verdict.ready or verdict.hopeless)

    def _job(self, job_id: str) -> Job:
        job = self._jobs.get(ids.check_job_id(job_id))
        if job is None:
            raise UnknownJob(f"no job {job_id}")
        return job

    def _check_alive(self, agent: Agent) -> None:
        if not self._agents.get(agent.id, (agent, False))[1]:
            raise AgentLost(f"{agent.id} left or was declared dead; the slot joins again under a new name")
