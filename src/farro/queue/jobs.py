"""List jobs by role, status and tag, show one, and requeue, kill or complete it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from farro.errors import IllegalTransition
from farro.host import fs, trees
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.plans.metadata import required_tags
from farro.queue import find_job
from farro.store.port import Agent, JobEntry, JobView, Store

if TYPE_CHECKING:
    from farro.store.ledger import Spent

_MESSAGE_LIMIT = 64 * 1024
_PROMPT_LIMIT = 16 << 20
_PAYLOAD_LIMIT = 256 << 20
_PROMPTS = 1000  # read together


@dataclass(frozen=True, kw_only=True, slots=True)
class JobDetails:
    """A job with its files and its final message."""

    view: JobView
    files: tuple[str, ...]  # relative to the job's folder
    message: str | None  # the text of error.md or result.md in the job's folder
    orphaned: bool  # the agent that holds it is dead
    name: str | None  # the job's name, if it was given one
    cost: Spent | None = None  # of its agents' calls; None: there were none


def submitted_prompt(folder: str) -> dict[str, Any]:
    """Return prompt.json, to submit it again. ValueError, RecursionError, OSError: it cannot be read."""
    data = json.loads(fs.read_bytes(f"{folder}/prompt.json", _PROMPT_LIMIT))
    if not isinstance(data, dict):
        raise ValueError("it is not an object")
    return data


def submitted_files(folder: str) -> tuple[str | None, dict[str, bytes]]:
    """Return the narrative and the payload that came with a prompt."""
    narrative: str | None = None
    payload: dict[str, bytes] = {}
    with contextlib.suppress(FileNotFoundError):
        narrative = fs.read_bytes(f"{folder}/prompt.md", _PROMPT_LIMIT).decode("utf-8", "replace")
    with contextlib.suppress(FileNotFoundError):
        for name in fs.listdir(f"{folder}/payload"):
            payload[name] = fs.read_bytes(f"{folder}/payload/{name}", _PAYLOAD_LIMIT)
    return narrative, payload


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


@dataclass(frozen=True, kw_only=True, slots=True)
class JobQuery:
    """A filter for the jobs to list; empty or None means all."""

    roles: Collection[str] = ()
    statuses: Collection[Status] = ()
    tags: Collection[str] = ()  # a job must have all of them
    limit: int | None = None
    last: int | None = None


def ls(store: Store, query: JobQuery) -> list[JobView]:
    """List the jobs that match."""
    find_job.roles(store, query.roles)
    if query.last is not None:
        return _newest(store, query, query.last)
    limit = None if query.tags else query.limit
    found = store.list(roles=query.roles or None, statuses=query.statuses or None, limit=limit)
    if query.tags:
        prompts = store.prompts(found)
        found = [view for view in found if required_tags(prompts.get(view.job_id, {})) >= set(query.tags)]
    return found if query.limit is None else found[: query.limit]


def stale(store: Store) -> list[JobView]:
    """List the jobs that are stale, and those of dead agents that no watchdog has collected yet, oldest first."""
    left = {view.job_id: view for view in map(store.find, orphans(store)) if view is not None}
    found = {**left, **{view.job_id: view for view in store.list(statuses=[Status.STALE])}}
    return sorted(found.values(), key=lambda view: (view.lifecycle.created_at, view.job_id))


def titles(store: Store, views: Sequence[JobView]) -> dict[str, str]:
    """Return a one-line title for each job: its name, or its first command and how many follow."""
    from farro.queue.catalog.rows import summarize  # here: most listings need no titles

    return {job_id: summarize(prompt).title for job_id, prompt in store.prompts(views).items()}


def _newest(store: Store, query: JobQuery, count: int) -> list[JobView]:
    """Return the jobs that changed last. Opens only the job.json files of the jobs that are returned."""
    entries = store.newest(roles=query.roles or None, statuses=_places_of(query.statuses))
    if query.tags:
        entries = _tagged(store, entries, set(query.tags))
    found: list[JobView] = []
    while len(found) < count and (entry := next(entries, None)) is not None:
        view = store.find(entry.job_id)
        if (
            view is not None
            and (not query.roles or view.lifecycle.role in query.roles)
            and (not query.statuses or view.status in query.statuses)
        ):
            found.append(view)
    return found


def _tagged(store: Store, entries: Iterator[JobEntry], tags: set[str]) -> Iterator[JobEntry]:
    """Yield the entries whose prompts require these tags. Reads the prompts in batches."""
    while batch := list(islice(entries, _PROMPTS)):
        prompts = store.prompts(batch)
        yield from (entry for entry in batch if required_tags(prompts.get(entry.job_id, {})) >= tags)


def _places_of(statuses: Collection[Status]) -> Collection[Status] | None:
    """Return the statuses of the folders to search: a stale job stays in its agent's folder until it is collected."""
    return {*statuses, Status.IN_PROGRESS} if statuses else None
