"""Looking at the tree without owning anything: where a job is, lists and counts. Nothing here writes.

What is said may be over by the time it is read; whoever acts on it moves the folder first (R1).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from farro.errors import Damaged, FarroError
from farro.host import fs, trees
from farro.jobs import ids, places, transitions
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.plans import after
from farro.store.files import folder as folders
from farro.store.files.context import Ground
from farro.store.port import JobView

_LOOKS = 4  # a job that moves while we look is found at the next look
_COMPLETED = (Status.SUCCEEDED, Status.FAILED, Status.KILLED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A job's folder and what its path says."""

    job_id: str
    path: str
    place: str  # relative to the root
    role: str | None
    status: Status
    busy: bool = False  # held by somebody for an instant: not to be moved from there

    @classmethod
    def stale(cls, ground: Ground, job_id: str) -> Found:
        path = ground.path(places.STALE, job_id)
        return cls(job_id=job_id, path=path, place=places.STALE, role=None, status=Status.STALE)


def spots(ground: Ground, roles: Collection[str] | None = None) -> Iterator[tuple[str, str | None, Status, bool]]:
    """Every folder in which jobs lie, in the order in which a job passes them: (place, role, status, busy)."""
    known = ground.roles() if roles is None else [role for role in ground.roles() if role in roles]
    for role in known:
        yield places.incoming(role), role, Status.QUEUED, False
    yield places.WAITING, None, Status.QUEUED, False  # of every role
    for role in known:
        for agent in fs.subdirectories(ground.in_progress(role)):
            yield f"{places.in_progress(role)}/{agent}", role, Status.IN_PROGRESS, False
    for agent in fs.subdirectories(ground.holds):
        yield f"jobs/.held/{agent}", None, Status.IN_PROGRESS, True
    yield places.STALE, None, Status.STALE, False
    yield places.OUTBOX, None, Status.IN_PROGRESS, True
    for role in known:
        for status in _COMPLETED:
            yield places.completed(role, status), role, status, False
    yield places.QUARANTINE, None, Status.FAILED, True


def locate(ground: Ground, job_id: str) -> Found | None:
    for _ in range(_LOOKS):
        for place, role, status, busy in spots(ground):
            path = ground.path(place, job_id)
            if fs.exists(path):
                return Found(job_id=job_id, path=path, place=place, role=role, status=status, busy=busy)
    return None


def find(ground: Ground, job_id: str) -> JobView | None:
    for _ in range(_LOOKS):
        found = locate(ground, ids.check_job_id(job_id))
        if found is None:
            return None
        try:
            return view(ground, found)
        except FileNotFoundError:
            continue  # it moved on between the two looks
    return None


def view(ground: Ground, found: Found) -> JobView:
    """The job as the path and job.json tell it; the path wins (R1). FileNotFoundError when it has moved on."""
    damaged = None
    try:
        lifecycle = folders.read_lifecycle(found.path)
    except (FarroError, FileNotFoundError) as error:
        if not fs.exists(found.path):
            raise FileNotFoundError(found.path) from error
        damaged = "job.json is missing" if isinstance(error, FileNotFoundError) else str(error)
        lifecycle = _guess(ground, found)
    if found.place == places.QUARANTINE:
        damaged = _why(found.path) or damaged or "quarantined"
        why = {"category": "quarantined", "message": damaged}
        lifecycle = replace(lifecycle, status=Status.FAILED, error=why, finalized_at=lifecycle.updated_at)
    elif found.busy or (found.status is Status.IN_PROGRESS and lifecycle.status is Status.STALE):
        pass  # in somebody's hands, or marked where it lies: job.json says more than the path
    elif lifecycle.status is not found.status:
        lifecycle = replace(lifecycle, status=found.status)
    after_others = found.place == places.WAITING and not transitions.waits_for_person(lifecycle)
    prompt = folders.prompt_if_any(ground, found.path) if after_others else None
    waits_for = after.dependencies(prompt or {}).all
    return JobView(lifecycle=lifecycle, place=found.place, damaged=damaged, waits_for=waits_for)


def _guess(ground: Ground, found: Found) -> Lifecycle:
    try:
        return folders.rebuilt(ground, found.path, found.job_id, found.role or "", found.status)
    except (Damaged, OSError):
        now = datetime.fromtimestamp(0, UTC)
        return replace(
            transitions.enqueued(job_id=found.job_id, role=found.role or "Runner", now=now), status=found.status
        )


def _why(path: str) -> str | None:
    try:
        return fs.read_bytes(f"{path}/quarantine.txt", 4096).decode("utf-8", "replace").strip()
    except OSError:
        return None


def listing(
    ground: Ground,
    roles: Collection[str] | None,
    statuses: Collection[Status] | None,
    limit: int | None,
    where: Iterable[tuple[str, str | None, Status, bool]] | None = None,
) -> list[JobView]:
    """Jobs by place and, in each, by name; at most `limit`. Folders that move on meanwhile are left out."""
    answer: list[JobView] = []
    for place, role, status, busy in spots(ground, roles) if where is None else where:
        if statuses is not None and not busy and status not in statuses and status is not Status.IN_PROGRESS:
            continue
        for name in sorted(fs.subdirectories(ground.path(place))):
            job_id = name.split(".", 1)[0]  # quarantined namesakes carry a suffix
            if not ids.is_job_id(job_id):
                continue
            found = Found(
                job_id=job_id, path=ground.path(place, name), place=place, role=role, status=status, busy=busy
            )
            try:
                seen = view(ground, found)
            except FileNotFoundError:
                continue
            if limit is not None and len(answer) >= limit:
                return answer
            if (statuses is None or seen.status in statuses) and (roles is None or seen.lifecycle.role in roles):
                answer.append(seen)
    return answer


def counts(ground: Ground, roles: Collection[str] | None) -> Mapping[Status, int]:
    """Jobs by status as the paths say it; no job.json is opened. Jobs in the outbox or in somebody's hands count as in
    progress, quarantined ones as failed, whatever the role."""
    answer = dict.fromkeys(Status, 0)
    for place, _, status, _ in spots(ground, roles):
        if place == places.WAITING and roles is not None:
            answer[status] += len(listing(ground, roles, None, None, [(place, None, status, False)]))
        else:
            answer[status] += _entries(ground, place)
    return answer


def pending(ground: Ground, role: str) -> int:
    """What may still come out of that queue. Looks at no finished job; jobs in somebody's hands count for all."""
    agents_of = [f"{places.in_progress(role)}/{name}" for name in fs.subdirectories(ground.in_progress(role))]
    holders = [f"jobs/.held/{name}" for name in fs.subdirectories(ground.holds)]
    found = sum(_entries(ground, place) for place in (places.incoming(role), *agents_of, *holders, places.OUTBOX))
    return found - sum(_marked(ground, place) for place in agents_of)


def _marked(ground: Ground, place: str) -> int:
    """Jobs that a worker marked stale where they lie: the manager's to decide, and nothing comes of them before."""
    marked = 0
    for name in fs.subdirectories(ground.path(place)):
        try:
            marked += folders.read_lifecycle(ground.path(place, name)).status is Status.STALE
        except (FarroError, OSError):
            continue
    return marked


def load(ground: Ground, role: str | None) -> int:
    """Queued, waiting or in progress, by counting folders where the filesystem does (counting.count_subdirectories)."""
    if role is None:
        return sum(load(ground, each) for each in ground.roles())
    homes = [ground.incoming(role), *([ground.path(places.WAITING)] if role == "Manager" else [])]
    homes += [f"{ground.in_progress(role)}/{agent}" for agent in fs.subdirectories(ground.in_progress(role))]
    return sum(map(trees.count_subdirectories, homes))


def _entries(ground: Ground, place: str) -> int:
    try:
        with os.scandir(ground.path(place)) as entries:
            return sum(1 for entry in entries if not entry.name.startswith("."))
    except FileNotFoundError:
        return 0
