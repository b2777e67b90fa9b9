"""Listing jobs: by role, status and tag, in the order of the places or the newest first. Printing lives in cli."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from farro.execution.progress import read_prompt
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.plans.tags import required_tags
from farro.queue import find_job, tree
from farro.store.fleet import Fleet
from farro.store.port import JobView, Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """Which jobs; what is empty or None asks for all."""

    roles: Collection[str] = ()
    statuses: Collection[Status] = ()
    tags: Collection[str] = ()  # a job needs all of them
    limit: int | None = None
    last: int | None = None


def ls(store: Store, root: str, asked: Asked) -> list[JobView]:
    find_job.roles(store, asked.roles)
    if asked.last is not None:
        return _newest(store, asked, asked.last)
    limit = None if asked.tags else asked.limit
    found = store.list(roles=asked.roles or None, statuses=asked.statuses or None, limit=limit)
    if asked.tags:
        found = [view for view in found if _tagged(store.folder(view), asked.tags)]
    return found if asked.limit is None else found[: asked.limit]


def titles(store: Store, views: Sequence[JobView]) -> dict[str, str]:
    """What each job does, in a line: its name, or its first command and how many follow."""
    from farro.queue.catalog.rows import about  # here: most answers need none

    if isinstance(store, Fleet):  # all at once: a look at each would copy its files
        prompts = store.prompts([view.job_id for view in views])
        return {job_id: about(prompt).title for job_id, prompt in prompts.items()}
    return {view.job_id: about(read_prompt(store.folder(view))).title for view in views}


def _newest(store: Store, asked: Asked, count: int) -> list[JobView]:
    """By the time at which each last changed: no job.json is opened but those that are shown."""
    entries = tree.entries(store, _places_of(asked.statuses), roles=asked.roles or None, quarantined=True)
    if asked.tags:
        entries = (entry for entry in entries if required_tags(entry.prompt(store)) >= set(asked.tags))
    found: list[JobView] = []
    for entry in sorted(entries, key=lambda entry: (entry.changed_at_s(), entry.job_id), reverse=True):
        if len(found) >= count:
            break
        view = store.find(entry.job_id)
        if (
            view is not None
            and (not asked.roles or view.lifecycle.role in asked.roles)
            and (not asked.statuses or view.status in asked.statuses)
        ):
            found.append(view)
    return found


def _places_of(statuses: Collection[Status]) -> Collection[Status] | None:
    """Where such jobs may lie: one that is marked stale lies in its agent's hands until it is collected."""
    return {*statuses, Status.IN_PROGRESS} if statuses else None


def _tagged(folder: str, tags: Collection[str]) -> bool:
    return required_tags(read_prompt(folder)) >= set(tags)
