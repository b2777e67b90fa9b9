"""The verbs of operators and the manager, for stores that read and replace a job atomically.

The rules are here once; a store adds `decide_job`. The file store, where each step may meet a crash, has its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from farro.errors import IllegalTransition, UnknownJob
from farro.jobs import moves
from farro.jobs.envelope import Lifecycle
from farro.jobs.moves import Move
from farro.jobs.outcomes import ErrorInfo
from farro.jobs.retry import RetryPolicy, Uniform
from farro.jobs.states import Reason, Status
from farro.lazy_dataclass import replace
from farro.store.port import Agent, PersonAnswer, Store


class JobToDecide(NamedTuple):
    """A job as it is when a verb decides about it."""

    lifecycle: Lifecycle
    attempts: int  # so far
    held: bool  # by an agent


Choose = Callable[[JobToDecide], Move | None]


def move_for_answer(seen: Lifecycle, answered: PersonAnswer) -> Move:
    """Return the move of a person's answer. IllegalTransition: the job does not wait for one."""
    if seen.status is not Status.QUEUED or not moves.waits_for_person(seen):
        raise IllegalTransition(
            f"{seen.job_id} does not wait for a person, it is {seen.status} ({seen.role}); nothing was changed. "
            "`farro inbox` lists what waits"
        )
    return Move(reason=Reason.ANSWERED, status=Status.QUEUED, role="Manager", note=answered.note, route=answered.route)


def move_for_reroute(seen: Lifecycle, role: str, note: str | None, route: Mapping[str, Any] | None) -> Move:
    """Return the move into that role's queue, whatever the workflow says. IllegalTransition: it is not possible now."""
    seen.check_transition(Status.QUEUED, Reason.REROUTED)
    if moves.waits(seen) and not moves.waits_for_person(seen):
        raise IllegalTransition(f"{seen.job_id} runs after other jobs, and they have not ended; nothing was changed")
    return Move(reason=Reason.REROUTED, status=Status.QUEUED, role=role, note=note, route=route)


def move_for_start(seen: Lifecycle, note: str | None) -> Move:
    """Return the move of a job whose account was resumed. IllegalTransition: the job does not wait for one."""
    if not moves.awaited_accounts(seen):
        raise IllegalTransition(f"{seen.job_id} does not wait for an account; nothing was changed")
    return Move(reason=Reason.RESUMED, status=Status.QUEUED, role=seen.role, note=note)


def move_for_requeue(note: str | None, delay_s: float | None) -> Move:
    return Move(reason=Reason.REQUEUED, status=Status.QUEUED, role="", delay_s=delay_s, note=note)


def move_for_kill(note: str | None, reason: Reason) -> Move:
    error = ErrorInfo(category="killed", message=note or "killed by an operator")
    return Move(reason=reason, status=Status.KILLED, role="", error=error, note=note)


def move_for_completion(note: str | None) -> Move:
    return Move(reason=Reason.FORCE_COMPLETED, status=Status.SUCCEEDED, role="", note=note)


class OperatorVerbs(Store, Protocol):
    """The operators' part of the Store port."""

    @abstractmethod
    def decide_job(self, agent: Agent, job_id: str, choose: Choose, *, text: str | None = None) -> Lifecycle | None:
        """Apply the move that `choose` returns, in one step. None: there is no such job, or `choose` returned None.
        With `text`, a new attempt has it as its result."""

    @abstractmethod
    def retry_rules(self) -> tuple[RetryPolicy, Uniform]:
        """Return what decides about a stale job."""

    def _changed(self, agent: Agent, job_id: str, choose: Choose, *, text: str | None = None) -> Lifecycle:
        done = self.decide_job(agent, job_id, choose, text=text)
        if done is None:
            raise UnknownJob(f"no job {job_id}; `farro ls` lists what there is")
        return done

    def _moved(self, agent: Agent, job_id: str, move: Move) -> Lifecycle:
        def choose(job: JobToDecide) -> Move:
            job.lifecycle.check_transition(move.status, move.reason)
            return replace(move, role=job.lifecycle.role)

        return self._changed(agent, job_id, choose)

    def requeue(self, agent: Agent, job_id: str, *, note: str | None = None, delay_s: float | None = None) -> Lifecycle:
        return self._moved(agent, job_id, move_for_requeue(note, delay_s))

    def kill(self, agent: Agent, job_id: str, *, note: str | None = None, reason: Reason = Reason.KILLED) -> Lifecycle:
        try:
            return self._moved(agent, job_id, move_for_kill(note, reason))
        except IllegalTransition:
            seen = self.find(job_id)
            if seen is None or not seen.lifecycle.terminal:
                raise
            return seen.lifecycle  # it had ended before the kill

    def force_complete(self, agent: Agent, job_id: str, *, note: str | None = None) -> Lifecycle:
        return self._moved(agent, job_id, move_for_completion(note))

    def resolve_stale(self, agent: Agent, job_id: str) -> Lifecycle | None:
        def choose(job: JobToDecide) -> Move | None:
            if job.held or job.lifecycle.status is not Status.STALE:
                return None
            return moves.resolve_stale(job.lifecycle, *self.retry_rules(), highest=job.attempts)

        return self.decide_job(agent, job_id, choose)

    def answer(self, agent: Agent, job_id: str, answered: PersonAnswer) -> Lifecycle:
        choose: Choose = lambda job: move_for_answer(job.lifecycle, answered)  # noqa: E731
        return self._changed(agent, job_id, choose, text=answered.text)

    def reroute(
        self, agent: Agent, job_id: str, role: str, *, note: str | None = None, route: Mapping[str, Any] | None = None
    ) -> Lifecycle:
        return self._changed(agent, job_id, lambda job: move_for_reroute(job.lifecycle, role, note, route))

    def start_now(self, agent: Agent, job_id: str, *, note: str | None = None) -> Lifecycle:
        return self._changed(agent, job_id, lambda job: move_for_start(job.lifecycle, note))

    def finalize(
        self, agent: Agent, job_id: str, *, note: str | None = None, route: Mapping[str, Any] | None = None
    ) -> Lifecycle | None:
        def choose(job: JobToDecide) -> Move | None:
            now = job.lifecycle
            if now.status is not Status.FAILED or now.terminal:
                return None
            return Move(reason=Reason.FINALIZED, status=Status.FAILED, role=now.role, note=note, route=route)

        return self.decide_job(agent, job_id, choose)
