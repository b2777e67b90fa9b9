"""The port through which the planner submits plans and asks about their jobs.

Two adapters: `LocalPlanClient` over a root's own store, `RemotePlanClient` over a RESP queue on another machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from farro.jobs.request import JobRequest
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.queue.library import ActionLine, PlanLine


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


class PlanClient(Protocol):
    @property
    def name(self) -> str:
        """The name for messages: the root's folder, or an address."""

    def close(self) -> None: ...

    # --- submitting ---

    def submit(self, plan: Mapping[str, Any], request: JobRequest) -> str:
        """Queue a job and return its id. Raise InputError or Refused as for any submission; then nothing was queued."""

    def save_plan(self, plan: Mapping[str, Any], *, name: str | None, replace: bool) -> str: ...

    def save_action(self, plan_id: str, inputs: Sequence[Any], *, name: str | None) -> str: ...

    def submit_inputs(
        self, plan_id: str, inputs: Sequence[Any], *, name: str | None, request: JobRequest
    ) -> tuple[str, list[str]]:
        """Save a new action and submit it; return its id and its jobs."""

    def submit_action(self, action_id: str, request: JobRequest) -> list[str]:
        """Queue a job for each of its inputs. Submitted again it returns the same jobs."""

    def delete_plan(self, plan_id: str) -> None:
        """Raise InputError where there is none, or an action needs it; then nothing was deleted."""

    def delete_action(self, action_id: str) -> None: ...

    # --- queries ---

    def plans(self) -> list[PlanLine]: ...

    def plan(self, plan_id: str) -> Mapping[str, Any]: ...

    def actions(self) -> list[ActionLine]: ...

    def action(self, action_id: str) -> Mapping[str, Any]:
        """Return the action with its `jobs`, each with its status."""

    def job(self, job: str) -> PlanJob:
        """Find a job by its id, its name or the beginning of its id. Raise UnknownJob."""

    def jobs(self, *, statuses: Sequence[str], limit: int) -> list[PlanJob]:
        """List jobs, the newest first."""

    def result(self, job: str) -> Mapping[str, Any] | None:
        """Return result.json as SPEC-4 has it; None while there is none."""

    def stdout(self, job: str, step: str | None) -> Iterator[bytes]:
        """Return a step's stdout, byte for byte: of the named step, else of the last that began."""

    def workers(self) -> list[PlanWorker]: ...

    def queues(self) -> list[PlanQueue]: ...

    # --- cancelling and waiting ---

    def cancel(self, job: str) -> PlanJob: ...

    def follow(self, job_id: str) -> Iterator[PlanJob]:
        """Yield the job each time it changes, until it has ended."""

    def ends(self, job_ids: Sequence[str]) -> Iterator[PlanJob]:
        """Yield each job when it has ended."""
