"""Show one job, and requeue, kill or complete it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from farro.errors import IllegalTransition
from farro.host import fs, trees
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.queue import find_job
from farro.store.port import Agent, JobView, Store

if TYPE_CHECKING:
    from farro.store.budgets import Spent

_MESSAGE_LIMIT = 64 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class JobDetails:
    """A job with its files and its final message."""

    view: JobView
    files: tuple[str, ...]  # relative to the job's folder
    message: str | None  # the text of error.md or result.md in the job's folder
    orphaned: bool  # the agent that holds it is dead
    name: str | None  # the job's name, if it was given one
    cost: Spent | None = None  # of its agents' calls; None: there were none


def orphans(store: Store) -> frozenset[str]:
    """Return the jobs held by dead agents: they say in_progress, but no process works on them until a watchdog recovers
    them."""
    return frozenset(job_id for agent in store.agents() if not agent.alive for job_id in agent.jobs)


def show(store: Store, job_id: str, *, cost_of: Callable[[str], Spent | None] | None = None) -> JobDetails:
    """Return a job's details."""
    view = find_job.find_view(store, job_id)
    folder = store.folder(view)
    files: tuple[str, ...] = ()
    message = None
    with contextlib.suppress(OSError):  # the folder may be moved meanwhile
        files = tuple(sorted(os.path.relpath(path, folder) for path in trees.walk_files(folder)))
        name = next((name for name in ("error.md", "result.md") if name in files), None)
        if name is not None:
            message = fs.read_bytes(f"{folder}/{name}", _MESSAGE_LIMIT).decode("utf-8", "replace")
    orphaned = view.status is Status.IN_PROGRESS and job_id in orphans(store)
    named = next((name for name, owner in store.names().items() if owner == job_id), None)
    cost = None if cost_of is None else cost_of(job_id)
    return JobDetails(view=view, files=files, message=message, orphaned=orphaned, name=named, cost=cost)


def requeue(store: Store, job_id: str, *, by: str, note: str | None) -> Lifecycle:
    """Put a job back into its queue, also one whose agent is dead."""
    with operator(store, by) as agent:
        _collect(store, agent, job_id)
        try:
            return store.requeue(agent, job_id, note=note)
        except IllegalTransition as error:
            view = store.find(job_id)
            if view is None or view.status not in (Status.IN_PROGRESS, Status.QUEUED):
                raise
            raise IllegalTransition(f"{job_id} {_why_not_requeued(view)}. Nothing was changed") from error


def _collect(store: Store, agent: Agent, job_id: str) -> None:
    """Take a job from its dead agent, as a watchdog would."""
    if job_id in orphans(store):
        store.recover(agent)


def _why_not_requeued(view: JobView) -> str:
    """Say what keeps the job from being requeued, and what to do."""
    job_id = view.job_id
    if view.status is Status.QUEUED:
        return f"is queued already; `farro explain {job_id}` says what it waits for"
    return (
        f"is in_progress, and {view.lifecycle.agent} works on it; `farro wait {job_id}` waits for its end, "
        f"`farro kill {job_id}` ends it"
    )


def kill(store: Store, job_id: str, *, by: str, note: str | None) -> Lifecycle:
    """End a job for good."""
    with operator(store, by) as agent:
        _collect(store, agent, job_id)
        return store.kill(agent, job_id, note=note)


def force_complete(store: Store, job_id: str, *, by: str, note: str | None) -> Lifecycle:
    """Mark a job as succeeded."""
    with operator(store, by) as agent:
        return store.force_complete(agent, job_id, note=note)


@contextlib.contextmanager
def operator(store: Store, by: str) -> Iterator[Agent]:
    """Join as an agent for one command of a person. Like every writer it holds a lease (R1): what it holds is recovered
    if it dies."""
    agent = store.join(by, role=None)
    try:
        yield agent
    finally:
        store.leave(agent)
