"""Where every job of a root lies, as the folders say it: for answers about thousands of jobs. No job.json is opened.

One job is looked up with Store.find; what a folder's name means is told by kernel.places.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from farro.kernel import ids, places
from farro.kernel.states import Status
from farro.system import fs

FINISHED = (Status.SUCCEEDED, Status.FAILED, Status.KILLED)
HELD = "jobs/.held"


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A job's folder. What it says may be over by the time it is read."""

    job_id: str
    name: str  # of the folder; a quarantined namesake carries a suffix
    place: str  # relative to the root
    role: str | None  # None where jobs of every role lie together
    status: Status
    path: str

    def changed_at_s(self) -> float:
        """When the folder last changed, in Unix time: of a finished job that is when it finished. 0: it moved on."""
        try:
            return os.lstat(self.path).st_mtime
        except OSError:
            return 0.0


def entries(
    root: str, roles: Iterable[str], statuses: Collection[Status] | None = None, *, quarantined: bool = False
) -> Iterator[Entry]:
    """Every job, in the order in which a job passes the places. Jobs in somebody's hands count as in progress."""
    for place, role, status in _places(root, tuple(roles), quarantined):
        if statuses is not None and status not in statuses:
            continue
        for name in fs.subdirectories(f"{root}/{place}"):
            job_id = name.split(".", 1)[0]
            if ids.is_job_id(job_id):
                yield Entry(
                    job_id=job_id, name=name, place=place, role=role, status=status, path=f"{root}/{place}/{name}"
                )


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


def has_work(root: str, roles: Iterable[str]) -> bool:
    """Whether any job is queued or running: the first that is found is enough, however long a queue is."""
    for place, _, status in _places(root, tuple(roles), False):
        if status in (Status.QUEUED, Status.IN_PROGRESS):
            with contextlib.suppress(FileNotFoundError), os.scandir(f"{root}/{place}") as found:
                if any(not entry.name.startswith(".") for entry in found):
                    return True
    return False
