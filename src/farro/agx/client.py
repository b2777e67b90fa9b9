"""The desk: where the planner hands plans in and asks what became of them, as a Protocol with its words.

Two stand behind it: a root's own store (local) and a RESP queue on another machine (remote). What is printed lives in
cli.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass, field
from farro.queue.library import ActionLine, PlanLine
from farro.queue.options import NO_OPTIONS, SubmitOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticket:
    """How a plan is to be handed in."""

    role: str | None = None
    job_id: str | None = None
    options: SubmitOptions = NO_OPTIONS
    payload: Mapping[str, bytes] = field(default_factory=dict)
    force: bool = False  # beyond a cap


@dataclass(frozen=True, kw_only=True, slots=True)
class JobTold:
    """A job as somebody who waits for it wants to know it."""

    job_id: str
    status: str
    role: str | None = None
    plan_id: str | None = None
    attempt: int = 0
    step: str | None = None  # that runs
    created_at: str | None = None
    ended_at: str | None = None
    agent: str | None = None
    error: str | None = None
    category: str | None = None  # of the error
    ended: bool = False  # nothing moves it on any more

    @property
    def good(self) -> bool:
        return self.status == Status.SUCCEEDED

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerTold:
    id: str
    role: str | None
    alive: bool
    jobs: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    host: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueTold:
    role: str
    counts: Mapping[str, int]  # by status
    workers: int


class Desk(Protocol):
    @property
    def name(self) -> str:
        """What people call it: the root's folder, or an address."""

    def close(self) -> None: ...

    # --- handing in ---

    def submit(self, plan: Mapping[str, Any], ticket: Ticket) -> str:
        """The job's id. InputError and Refused as for any submission; nothing was queued then."""

    def save_plan(self, plan: Mapping[str, Any], *, name: str | None, replace: bool) -> str: ...

    def save_action(self, plan_id: str, inputs: Sequence[Any], *, name: str | None) -> str: ...

    def submit_inputs(
        self, plan_id: str, inputs: Sequence[Any], *, name: str | None, ticket: Ticket
    ) -> tuple[str, list[str]]:
        """A new action, kept and handed in: its id, and its jobs."""

    def submit_action(self, action_id: str, ticket: Ticket) -> list[str]:
        """The jobs of all its inputs; again: the same jobs."""

    def delete_plan(self, plan_id: str) -> None:
        """InputError: there is none, or an action needs it; nothing was deleted."""

    def delete_action(self, action_id: str) -> None: ...

    # --- looking ---

    def plans(self) -> list[PlanLine]: ...

    def plan(self, plan_id: str) -> Mapping[str, Any]: ...

    def actions(self) -> list[ActionLine]: ...

    def action(self, action_id: str) -> Mapping[str, Any]:
        """With its `jobs`, each with its status."""

    def job(self, job: str) -> JobTold:
        """By its id, its name or its beginning. UnknownJob."""

    def jobs(self, *, statuses: Sequence[str], limit: int) -> list[JobTold]:
        """The newest first."""

    def result(self, job: str) -> Mapping[str, Any] | None:
        """As the memo has it; None while there is none."""

    def stdout(self, job: str, step: str | None) -> Iterator[bytes]:
        """What a step said, byte for byte: the one that is named, else the last that began."""

    def workers(self) -> list[WorkerTold]: ...

    def queues(self) -> list[QueueTold]: ...

    # --- steering and waiting ---

    def cancel(self, job: str) -> JobTold: ...

    def follow(self, job_id: str) -> Iterator[JobTold]:
        """Each time something about it is another; over when it has ended."""

    def ends(self, job_ids: Sequence[str]) -> Iterator[JobTold]:
        """Each of them as it ends."""
