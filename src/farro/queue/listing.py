"""List jobs by role, status and tag, in queue order or newest first."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.plans.metadata import required_tags
from farro.queue import find_job, jobs
from farro.store.port import JobView, Store


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
    left = {view.job_id: view for view in map(store.find, jobs.orphans(store)) if view is not None}
    found = {**left, **{view.job_id: view for view in store.list(statuses=[Status.STALE])}}
    return sorted(found.values(), key=lambda view: (view.lifecycle.created_at, view.job_id))


def titles(store: Store, views: Sequence[JobView]) -> dict[str, str]:
    """Return a one-line title for each job: its name, or its first command and how many follow."""
    from farro.queue.catalog.rows import summarize  # here: most listings need no titles

    return {job_id: summarize(prompt).title for job_id, prompt in store.prompts(views).items()}


def _newest(store: Store, query: JobQuery, count: int) -> list[JobView]:
    """Return the jobs that changed last. Opens only the job.json files of the jobs that are returned."""
    entries = list(store.entries(roles=query.roles or None, statuses=_places_of(query.statuses)))
    if query.tags:
        prompts = store.prompts(entries)
        entries = [entry for entry in entries if required_tags(prompts.get(entry.job_id, {})) >= set(query.tags)]
    found: list[JobView] = []
    for entry in sorted(entries, key=lambda entry: (entry.changed_at_s(), entry.job_id), reverse=True):
        if len(found) >= count:
            break
        view = store.find(entry.job_id)
        if (
            view is not None
            and (not query.roles or view.lifecycle.role in query.roles)
            and (not query.statuses or view.status in query.statuses)
        ):
            found.append(view)
    return found


def _places_of(statuses: Collection[Status]) -> Collection[Status] | None:
    """Return the statuses of the folders to search: a stale job stays in its agent's folder until it is collected."""
    return {*statuses, Status.IN_PROGRESS} if statuses else None
