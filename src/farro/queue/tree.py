"""Find where every job of a store is, for queries about thousands of jobs.

In the file store the folder shows the state of a job, so job.json is opened only if needed. Other stores list their
jobs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from farro.errors import FarroError
from farro.execution.progress import read_prompt
from farro.host import fs
from farro.jobs import ids, places
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Status
from farro.jobs.times import moment_or_none
from farro.lazy_dataclass import dataclass
from farro.store.files import FilesStore
from farro.store.port import JobView, Store

FINISHED = (Status.SUCCEEDED, Status.FAILED, Status.KILLED)
HELD = "jobs/.held"
CHOSEN = "jobs/.ids"
_JOB_LIMIT = 4 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class JobEntry:
    """A job and its place. It may have moved by the time it is read."""

    job_id: str
    name: str  # of the folder; a second quarantined job of one id has a suffix
    place: str  # relative to the root
    role: str | None  # None in folders that all roles share
    status: Status
    path: str  # of its folder; empty if it has none
    view: JobView | None = None  # set if it has no folder

    def changed_at_s(self) -> float:
        """Return when it last changed, in Unix time; for a finished job, when it finished. 0: it has moved."""
        if self.view is not None:
            changed = moment_or_none(self.view.lifecycle.updated_at)
            return 0.0 if changed is None else changed.timestamp()
        try:
            return os.lstat(self.path).st_mtime
        except OSError:
            return 0.0

    def lifecycle(self) -> Lifecycle | None:
        """Read job.json. None: the job has moved, or it cannot be read."""
        if self.view is not None:
            return self.view.lifecycle
        try:
            return Lifecycle.from_json(fs.read_bytes(f"{self.path}/job.json", _JOB_LIMIT))
        except (OSError, FarroError):
            return None

    def prompt(self, store: Store) -> Mapping[str, Any]:
        """Read prompt.json. Empty: the job has moved, or it cannot be read."""
        return read_prompt(self.path if self.view is None else store.folder(self.view))


def in_folders(store: Store) -> bool:
    """Return whether jobs are folders under the root: then reading the folder is cheaper than asking the store."""
    return isinstance(store, FilesStore)


def entries(
    store: Store,
    statuses: Collection[Status] | None = None,
    *,
    roles: Iterable[str] | None = None,
    quarantined: bool = False,
) -> Iterator[JobEntry]:
    """Yield every job in the order of its places. Jobs held by any agent count as in progress."""
    wanted = None if roles is None else tuple(roles)
    if not in_folders(store):
        yield from _listed(store, statuses, wanted)
        return
    root = store.root
    for place, role, status in _places(root, tuple(store.roles()) if wanted is None else wanted, quarantined):
        if statuses is not None and status not in statuses:
            continue
        for name in fs.subdirectories(f"{root}/{place}"):
            job_id = name.split(".", 1)[0]
            if ids.is_job_id(job_id):
                yield JobEntry(
                    job_id=job_id, name=name, place=place, role=role, status=status, path=f"{root}/{place}/{name}"
                )


def _listed(store: Store, statuses: Collection[Status] | None, roles: tuple[str, ...] | None) -> Iterator[JobEntry]:
    for view in store.list(roles=roles, statuses=statuses):
        aside = view.place == places.WAITING or view.status is Status.STALE
        yield JobEntry(
            job_id=view.job_id,
            name=view.job_id,
            place=view.place,
            role=None if aside else view.lifecycle.role,
            status=view.status,
            path="",
            view=view,
        )


def waiting(store: Store) -> list[JobEntry]:
    """Return the jobs that wait outside every queue: for other jobs, or for a person."""
    if in_folders(store):
        home = f"{store.root}/{places.WAITING}"
        return [
            JobEntry(
                job_id=name, name=name, place=places.WAITING, role=None, status=Status.QUEUED, path=f"{home}/{name}"
            )
            for name in fs.subdirectories(home)
        ]
    return [entry for entry in entries(store, {Status.QUEUED}) if entry.place == places.WAITING]


def _places(root: str, roles: tuple[str, ...], quarantined: bool) -> Iterator[tuple[str, str | None, Status]]:
    for role in roles:
        yield places.incoming(role), role, Status.QUEUED
    yield places.WAITING, None, Status.QUEUED
    for role in roles:
        for agent in fs.subdirectories(f"{root}/{places.in_progress(role)}"):
            yield f"{places.in_progress(role)}/{agent}", role, Status.IN_PROGRESS
    for agent in fs.subdirectories(f"{root}/{HELD}"):
        yield f"{HELD}/{agent}", None, Status.IN_PROGRESS
    yield places.STALE, None, Status.STALE
    yield places.OUTBOX, None, Status.IN_PROGRESS
    for role in roles:
        for status in FINISHED:
            yield places.completed(role, status), role, status
    if quarantined:
        yield places.QUARANTINE, None, Status.FAILED


def chosen(store: Store) -> list[str]:
    """Return the ids that submitters chose, children's among them, from their register. File store only; pruning
    removes them."""
    with contextlib.suppress(FileNotFoundError):
        return [name for name in fs.listdir(f"{store.root}/{CHOSEN}") if ids.is_job_id(name)]
    return []


def has_work(store: Store) -> bool:
    """Return whether any job is queued or running. Stops at the first."""
    if not in_folders(store):
        return store.load(None) > 0
    for place, _, status in _places(store.root, tuple(store.roles()), False):
        if status in (Status.QUEUED, Status.IN_PROGRESS):
            with contextlib.suppress(FileNotFoundError), os.scandir(f"{store.root}/{place}") as found:
                if any(not entry.name.startswith(".") for entry in found):
                    return True
    return False
