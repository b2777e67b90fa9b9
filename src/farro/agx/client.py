"""Submit plans to a root's own store and library, in files or in Redis, and ask about their jobs.

remote_client.py does the same over a RESP queue on another machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from farro.documents import Document
from farro.errors import InputError
from farro.execution.progress import read_prompt, read_result
from farro.host.clock import Clock
from farro.jobs.envelope import Lifecycle
from farro.jobs.request import JobRequest
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass, replace
from farro.plans import actions as rules
from farro.queue import find_job, jobs, logs, wait, watch
from farro.queue import jobs as verbs
from farro.queue import library as shelves
from farro.queue.library import ActionLine, PlanLine
from farro.queue.submit import SubmitPolicy, submit
from farro.store.library import Library
from farro.store.port import JobView, Store

LOOK_S = 0.2  # how often to look at the steps of a running job: their ends wake no watcher


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanJob:
    """What the planner shows of a job."""

    job_id: str
    status: str
    role: str | None = None
    plan_id: str | None = None
    attempt: int = 0
    step: str | None = None  # the one that runs
    created_at: str | None = None
    ended_at: str | None = None
    agent: str | None = None
    error: str | None = None
    category: str | None = None  # of the error
    ended: bool = False  # for good: no retry follows

    @property
    def good(self) -> bool:
        return self.status == Status.SUCCEEDED

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanWorker:
    id: str
    role: str | None
    alive: bool
    jobs: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    host: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanQueue:
    role: str
    counts: Mapping[str, int]  # by status
    workers: int


@dataclass(frozen=True, kw_only=True)
class LocalPlanClient:
    """Submit to a root's own store."""

    store: Store
    library: Library
    policy: SubmitPolicy
    clock: Clock
    by: str  # the actor of the audit log
    mint: Callable[[], str]

    def close(self) -> None:
        self.store.close()

    # --- submitting ---

    def submit(self, plan: Mapping[str, Any], request: JobRequest) -> str:
        """Queue a job and return its id. Raise InputError or Refused as for any submission; then nothing was queued."""
        wanted = rules.fields(plan)
        if wanted:
            raise InputError(
                f"the plan needs an input ({', '.join(wanted)}): save it, then `agx action submit NAME --inputs FILE`"
            )
        document = Document(dict(plan), str(plan.get("plan_id") or "plan"))
        return submit(self.store, [replace(request, document=document)], self.policy)[0].id

    def save_plan(self, plan: Mapping[str, Any], *, name: str | None, replace: bool) -> str:
        document = Document(dict(plan), name or "plan")
        roles, contract = self.store.roles(), self.policy.contract
        return shelves.save_plan(
            self.library, document, roles=roles, mint=self.mint, name=name, replace=replace, contract=contract
        )

    def save_action(self, plan_id: str, inputs: Sequence[Any], *, name: str | None) -> str:
        data = {"plan_id": plan_id, "inputs": list(inputs)} | ({} if name is None else {"action_id": name})
        return shelves.save_action(self.library, Document(data, "action"), mint=self.mint)

    def submit_inputs(
        self, plan_id: str, inputs: Sequence[Any], *, name: str | None, request: JobRequest
    ) -> tuple[str, list[str]]:
        """Save a new action and submit it; return its id and its jobs."""
        action_id = self.save_action(plan_id, inputs, name=name)
        return action_id, self.submit_action(action_id, request)

    def submit_action(self, action_id: str, request: JobRequest) -> list[str]:
        """Queue a job for each of its inputs. Submitted again it returns the same jobs."""
        return shelves.submit_action(self.store, self.library, action_id, request, self.policy)

    def delete_plan(self, plan_id: str) -> None:
        """Raise InputError where there is none, or an action needs it; then nothing was deleted."""
        shelves.remove_plan(self.library, plan_id)

    def delete_action(self, action_id: str) -> None:
        shelves.remove_action(self.library, action_id)

    # --- queries ---

    def plans(self) -> list[PlanLine]:
        return shelves.plans(self.library)

    def plan(self, plan_id: str) -> Mapping[str, Any]:
        return shelves.plan(self.library, plan_id)

    def actions(self) -> list[ActionLine]:
        return shelves.actions(self.library)

    def action(self, action_id: str) -> Mapping[str, Any]:
        """Return the action with its `jobs`, each with its status."""
        return shelves.action_told(self.store, self.library, action_id)

    def job(self, job: str) -> PlanJob:
        """Find a job by its id, its name or the beginning of its id. Raise UnknownJob."""
        return self._told(self._view(job))

    def jobs(self, *, statuses: Sequence[str], limit: int) -> list[PlanJob]:
        """List jobs, the newest first."""
        asked = jobs.JobQuery(statuses=[Status(status) for status in statuses], last=limit)
        return [self._told(view) for view in jobs.ls(self.store, asked)]

    def result(self, job: str) -> Mapping[str, Any] | None:
        """Return result.json as SPEC-4 has it; None while there is none."""
        view = self._view(job)
        return read_result(self.store.folder(view), view.lifecycle.attempt) or None if view.lifecycle.attempt else None

    def stdout(self, job: str, step: str | None) -> Iterator[bytes]:
        """Return a step's stdout, byte for byte: of the named step, else of the last that began."""
        view = self._view(job)
        chosen = logs.LogQuery(step=step, streams=("stdout",))
        told = logs.output(self.store, view.job_id, chosen)
        if step is not None:
            logs.check_step(self.store, told, step)
        for source in told.sources if step is not None else told.sources[-1:]:
            if os.path.exists(source.path):
                yield from logs.read(source.path, 0)

    def workers(self) -> list[PlanWorker]:
        found = []
        for agent in self.store.agents():
            if agent.role is None:
                continue  # a manager or watchdog: it runs no jobs
            tags, host = agent.identity.get("tags"), agent.identity.get("host")
            offered = tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else ()
            whose = host if isinstance(host, str) else None
            found.append(
                PlanWorker(id=agent.id, role=agent.role, alive=agent.alive, jobs=agent.jobs, tags=offered, host=whose)
            )
        return found

    def queues(self) -> list[PlanQueue]:
        alive = [worker.role for worker in self.workers() if worker.alive]
        found = []
        for role in self.store.roles():
            counts = {str(status): count for status, count in self.store.count(roles=[role]).items() if count}
            if counts or role in alive:
                found.append(PlanQueue(role=role, counts=counts, workers=alive.count(role)))
        return found

    # --- cancelling and waiting ---

    def cancel(self, job: str) -> PlanJob:
        job_id = find_job.resolve(self.store, job, shortest=find_job.SHORTEST_TO_END)
        verbs.kill(self.store, job_id, by=self.by, note="agx job cancel")
        return self.job(job_id)

    def follow(self, job_id: str) -> Iterator[PlanJob]:
        """Yield the job each time it changes, until it has ended."""
        for moment in watch.updates(self.store, job_id, every_s=LOOK_S):
            yield replace(_of(moment.lifecycle), step=moment.step)

    def ends(self, job_ids: Sequence[str]) -> Iterator[PlanJob]:
        """Yield each job when it has ended."""
        for end in wait.ends(self.store, job_ids, clock=self.clock):
            yield PlanJob(job_id=end.job_id, status="gone", ended=True) if end.lifecycle is None else _of(end.lifecycle)

    def _view(self, job: str) -> JobView:
        job_id = find_job.resolve(self.store, job)
        view = self.store.find(job_id)
        if view is None:
            raise InputError(f"{job_id} moved on while it was looked at; try again")
        return view

    def _told(self, view: JobView) -> PlanJob:
        plan_id = read_prompt(self.store.folder(view)).get("plan_id")
        return replace(_of(view.lifecycle), plan_id=plan_id if isinstance(plan_id, str) else None)


def _of(life: Lifecycle) -> PlanJob:
    error = life.error or {}
    message, category = error.get("message"), error.get("category")
    return PlanJob(
        job_id=life.job_id,
        status=str(life.status),
        role=life.role,
        attempt=life.attempt,
        created_at=life.created_at,
        ended_at=life.finalized_at,
        agent=life.agent,
        error=None if message is None else str(message),
        category=None if category is None else str(category),
        ended=life.terminal,
    )
