"""Where every job of a store lies: for answers about thousands of jobs.

One job is looked up with Store.find; what a folder's name means is told by kernel.places.

In the file store the folders say it, and no job.json is opened before somebody asks for one. Elsewhere there are no
folders to look at: the store lists its jobs.
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
from farro.lazy_dataclass import dataclass
from farro.queue.times import moment_or_none
from farro.store.files import FilesStore
from farro.store.port import JobView, Store

FINISHED = (Status.SUCCEEDED, Status.FAILED, Status.KILLED)
HELD = "jobs/.held"
CHOSEN = "jobs/.ids"
_JOB_LIMIT = 4 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A job's place. What it says may be over by the time it is read."""

    job_id: str
    name: str  # of the folder; a quarantined namesake carries a suffix
    place: str  # relative to the root
    role: str | None  # None where jobs of every role lie together
    status: Status
    path: str  # of its folder; empty where it has none
    view: JobView | None = None  # where it has none

    def changed_at_s(self) -> float:
        """When it last changed, in Unix time: of a finished job that is when it finished. 0: it moved on."""
        if self.view is not None:
            changed = moment_or_none(self.view.lifecycle.updated_at)
            return 0.0 if changed is None else changed.timestamp()
        try:
            return os.lstat(self.path).st_mtime
        except OSError:
            return 0.0

    def lifecycle(self) -> Lifecycle | None:
        """None: it moved on, or cannot be read."""
        if self.view is not None:
            return self.view.lifecycle
        try:
            return Lifecycle.from_json(fs.read_bytes(f"{self.path}/job.json", _JOB_LIMIT))
        except (OSError, FarroError):
            return None

    def prompt(self, store: Store) -> Mapping[str, Any]:
        """Empty: it moved on, or cannot be read."""
        return read_prompt(self.path if self.view is None else store.folder(self.view))


def in_folders(store: Store) -> bool:
    """Whether a job is a folder under the root: then a look there is cheaper than to ask for jobs."""
    return isinstance(store, FilesStore)


def entries(
    store: Store,
    statuses: Collection[Status] | None = None,
    *,
    roles: Iterable[str] | None = None,
    quarantined: bool = False,
) -> Iterator[Entry]:
    """Every job, in the order in which a job passes the places. Jobs in somebody's hands count as in progress."""
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
                yield Entry(
                    job_id=job_id, name=name, place=place, role=role, status=status, path=f"{root}/{place}/{name}"
                )


def _listed(store: Store, statuses: Collection[Status] | None, roles: tuple[str, ...] | None) -> Iterator[Entry]:
    for view in store.list(roles=roles, statuses=statuses):
        aside = view.place == places.WAITING or view.status is Status.STALE
        yield Entry(
            job_id=view.job_id,
            name=view.job_id,
            place=view.place,
            role=None if aside else view.lifecycle.role,
            status=view.status,
            path="",
            view=view,
        )


def waiting(store: Store) -> list[Entry]:
    """Jobs that wait outside every queue: for others, or for a person."""
    if in_folders(store):
        home = f"{store.root}/{places.WAITING}"
        return [
            Entry(job_id=name, name=name, place=places.WAITING, role=None, status=Status.QUEUED, path=f"{home}/{name}")
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
    """Of a store with folders, the ids that somebody chose, children's among them, from their register. Whoever
    prunes a job takes it out."""
    with contextlib.suppress(FileNotFoundError):
        return [name for name in fs.listdir(f"{store.root}/{CHOSEN}") if ids.is_job_id(name)]
    return []


def has_work(store: Store) -> bool:
    """Whether any job is queued or running: the first that is found is enough, however long a queue is."""
    if not in_folders(store):
        return store.load(None) > 0
    for place, _, status in _places(store.root, tuple(store.roles()), False):
        if status in (Status.QUEUED, Status.IN_PROGRESS):
            with contextlib.suppress(FileNotFoundError), os.scandir(f"{store.root}/{place}") as found:
                if any(not entry.name.startswith(".") for entry in found):
                    return True
    return False
