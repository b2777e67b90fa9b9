"""Query the tree without owning anything: locate a job, list and count. Nothing here writes.

A result may be outdated by the time it is read; an agent that acts on it moves the folder first (R1).
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from farro.errors import Damaged, FarroError
from farro.host import fs, trees
from farro.jobs import ids, moves, places
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import FINISHED, Status
from farro.lazy_dataclass import dataclass, replace
from farro.plans import after
from farro.store.files import folder as folders
from farro.store.files.context import FilesContext
from farro.store.port import JobAt, JobEntry, JobView, QueueCounts

_TRIES = 4  # a job that moves during a search is found by the next one
_JOB_LIMIT = 4 << 20
_PROMPT_LIMIT = 16 << 20
_CHOSEN = "jobs/.ids"


@dataclass(frozen=True, kw_only=True, slots=True)
class LocatedJob:
    """A job's folder, and the role and status that its path implies."""

    job_id: str
    path: str
    place: str  # relative to the root
    role: str | None
    status: Status
    busy: bool = False  # an operator, manager or watchdog holds it for an instant: it must not be moved from there
    archived: bool = False  # it has no folder any more

    @classmethod
    def stale(cls, context: FilesContext, job_id: str) -> LocatedJob:
        path = context.path(places.STALE, job_id)
        return cls(job_id=job_id, path=path, place=places.STALE, role=None, status=Status.STALE)


def job_places(
    context: FilesContext, roles: Collection[str] | None = None
) -> Iterator[tuple[str, str | None, Status, bool]]:
    """Yield every folder that may contain jobs, in the order in which a job passes them: (place, role, status,
    busy)."""
    known = context.roles() if roles is None else [role for role in context.roles() if role in roles]
    for role in known:
        yield places.incoming(role), role, Status.QUEUED, False
    yield places.WAITING, None, Status.QUEUED, False  # of every role
    for role in known:
        for agent in fs.subdirectories(context.in_progress(role)):
            yield f"{places.in_progress(role)}/{agent}", role, Status.IN_PROGRESS, False
    for agent in fs.subdirectories(context.holds):
        yield f"jobs/.held/{agent}", None, Status.IN_PROGRESS, True
    yield places.STALE, None, Status.STALE, False
    yield places.OUTBOX, None, Status.IN_PROGRESS, True
    for role in known:
        for status in FINISHED:
            yield places.completed(role, status), role, status, False
    yield places.QUARANTINE, None, Status.FAILED, True


def locate(context: FilesContext, job_id: str) -> LocatedJob | None:
    for _ in range(_TRIES):
        for place, role, status, busy in job_places(context):
            path = context.path(place, job_id)
            if fs.exists(path):
                return LocatedJob(job_id=job_id, path=path, place=place, role=role, status=status, busy=busy)
        if context.archive is not None and (found := context.archive.locate(job_id)) is not None:
            place, role, status = found  # after the folders: a job moves only in this direction
            path = context.path(place, job_id)
            return LocatedJob(job_id=job_id, path=path, place=place, role=role, status=status, archived=True)
    return None


def find(context: FilesContext, job_id: str, place: str | None = None) -> JobView | None:
    ids.check_job_id(job_id)
    if place is not None and (seen := _seen_in(context, job_id, place)) is not None:
        return seen
    for _ in range(_TRIES):
        found = locate(context, job_id)
        if found is None:
            return None
        try:
            return view(context, found)
        except FileNotFoundError:
            continue  # it moved on in between
    return None


def _seen_in(context: FilesContext, job_id: str, place: str) -> JobView | None:
    """Read the job where it was seen last, which is one read instead of a search. None: search for it."""
    if not place.endswith(("/incoming", "/succeeded", "/failed", "/killed")):
        return None
    try:
        lifecycle = folders.read_lifecycle(context.path(place, job_id))
        if lifecycle.job_id == job_id and lifecycle.status is places.parse(place).status:
            return JobView(lifecycle=lifecycle, place=place)
    except (FarroError, OSError):
        pass
    return None


def view(context: FilesContext, found: LocatedJob) -> JobView:
    """Return the job according to its path and job.json; the path wins (R1). FileNotFoundError: it has moved on."""
    if found.archived:
        return _archived_view(context, found)
    damaged = None
    try:
        lifecycle = folders.read_lifecycle(found.path)
    except (FarroError, FileNotFoundError) as error:
        if not fs.exists(found.path):
            raise FileNotFoundError(found.path) from error
        damaged = "job.json is missing" if isinstance(error, FileNotFoundError) else str(error)
        lifecycle = _guess(context, found)
    if found.place == places.QUARANTINE:
        damaged = _why(found.path) or damaged or "quarantined"
        why = {"category": "quarantined", "message": damaged}
        lifecycle = replace(lifecycle, status=Status.FAILED, error=why, finalized_at=lifecycle.updated_at)
    elif found.busy or (found.status is Status.IN_PROGRESS and lifecycle.status is Status.STALE):
        pass  # held by an agent, or marked stale in place: job.json says more than the path
    elif lifecycle.status is not found.status:
        lifecycle = replace(lifecycle, status=found.status)
    after_others = found.place == places.WAITING and not moves.waits_for_person(lifecycle)
    prompt = folders.prompt_if_any(context, found.path) if after_others else None
    waits_for = after.dependencies(prompt or {}).all
    return JobView(lifecycle=lifecycle, place=found.place, damaged=damaged, waits_for=waits_for)


def _archived_view(context: FilesContext, found: LocatedJob) -> JobView:
    try:
        lifecycle = context.archive_index.lifecycle(found.job_id)
    except Damaged as error:
        now = datetime.fromtimestamp(0, UTC)
        enqueued = moves.enqueued(job_id=found.job_id, role=found.role or "Runner", now=now)
        lifecycle = replace(enqueued, status=found.status, finalized_at=enqueued.updated_at)
        return JobView(lifecycle=lifecycle, place=found.place, damaged=str(error))
    return JobView(lifecycle=lifecycle, place=found.place)


def _guess(context: FilesContext, found: LocatedJob) -> Lifecycle:
    try:
        return folders.rebuilt(context, found.path, found.job_id, found.role or "", found.status)
    except (Damaged, OSError):
        now = datetime.fromtimestamp(0, UTC)
        return replace(moves.enqueued(job_id=found.job_id, role=found.role or "Runner", now=now), status=found.status)


def _why(path: str) -> str | None:
    try:
        return fs.read_bytes(f"{path}/quarantine.txt", 4096).decode("utf-8", "replace").strip()
    except OSError:
        return None


def listing(
    context: FilesContext,
    roles: Collection[str] | None,
    statuses: Collection[Status] | None,
    limit: int | None,
    where: Iterable[tuple[str, str | None, Status, bool]] | None = None,
) -> list[JobView]:
    """Up to `limit` jobs, sorted by place and then by name. Jobs that move on meanwhile are left out."""
    answer: list[JobView] = []
    for place, role, status, busy in job_places(context, roles) if where is None else where:
        if statuses is not None and not busy and status not in statuses and status is not Status.IN_PROGRESS:
            continue
        for name in sorted(fs.subdirectories(context.path(place))):
            job_id = name.split(".", 1)[0]  # a second quarantined job of the same id has a suffix
            if not ids.is_job_id(job_id):
                continue
            found = LocatedJob(
                job_id=job_id, path=context.path(place, name), place=place, role=role, status=status, busy=busy
            )
            try:
                seen = view(context, found)
            except FileNotFoundError:
                continue
            if limit is not None and len(answer) >= limit:
                return answer
            if (statuses is None or seen.status in statuses) and (roles is None or seen.lifecycle.role in roles):
                answer.append(seen)
    if where is None and context.archive is not None:
        listed = {view.job_id for view in answer}  # one may have been archived meanwhile
        for entry in context.archive.newest(roles, statuses):
            if limit is not None and len(answer) >= limit:
                break
            if entry.job_id not in listed and (archived := find(context, entry.job_id)) is not None:
                answer.append(archived)
    return answer


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderEntry(JobEntry):
    """A job's folder. job.json is opened only for what the folder's place does not say."""

    path: str

    def changed_at_s(self) -> float:
        try:
            return os.lstat(self.path).st_mtime
        except OSError:
            return 0.0

    def lifecycle(self) -> Lifecycle | None:
        try:
            return Lifecycle.from_json(fs.read_bytes(f"{self.path}/job.json", _JOB_LIMIT))
        except (OSError, FarroError):
            return None


def entries(
    context: FilesContext,
    roles: Collection[str] | None,
    statuses: Collection[Status] | None,
    *,
    archived: bool = True,
) -> Iterator[JobEntry]:
    """Yield every job that has a folder in the order of its places, then the archived ones."""
    for place, role, status, _ in job_places(context, roles):
        if statuses is None or status in statuses:
            yield from _entries_in(context, place, role, status)
    if archived and context.archive is not None:
        yield from context.archive.entries(roles, statuses)


def newest(
    context: FilesContext, roles: Collection[str] | None, statuses: Collection[Status] | None
) -> Iterator[JobEntry]:
    """Yield the jobs of `entries`, that which changed last first."""

    def order(entry: JobEntry) -> tuple[float, str]:
        return entry.changed_at_s(), entry.job_id

    live = sorted(entries(context, roles, statuses, archived=False), key=order, reverse=True)
    if context.archive is None:
        return iter(live)
    return heapq.merge(live, context.archive.newest(roles, statuses), key=order, reverse=True)


def waiting(context: FilesContext) -> list[FolderEntry]:
    return list(_entries_in(context, places.WAITING, None, Status.QUEUED))


def _entries_in(context: FilesContext, place: str, role: str | None, status: Status) -> Iterator[FolderEntry]:
    home = context.path(place)
    for name in fs.subdirectories(home):
        job_id = name.split(".", 1)[0]  # a second quarantined job of the same id has a suffix
        if ids.is_job_id(job_id):
            yield FolderEntry(job_id=job_id, place=place, role=role, status=status, path=f"{home}/{name}")


def known_ids(context: FilesContext, prefix: str) -> Iterable[str]:
    """Yield the ids of all jobs; for a prefix that farro does not mint, those that submitters chose. These are in a
    register, children's among them, however long the history is."""
    archived = [] if context.archive is None else context.archive.ids(prefix)
    if ids.may_begin_minted(prefix):
        return chain(archived, (entry.job_id for entry in entries(context, None, None, archived=False)))
    try:
        return [*archived, *(name for name in fs.listdir(context.path(_CHOSEN)) if ids.is_job_id(name))]
    except FileNotFoundError:
        return archived


def prompts(context: FilesContext, jobs: Sequence[JobAt]) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for job in jobs:
        path = context.path(job.place, job.job_id)
        try:
            data = json.loads(_prompt_text(context, path, job.job_id))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError):
            data = {}
        found[job.job_id] = data if isinstance(data, dict) else {}
    return found


def _prompt_text(context: FilesContext, path: str, job_id: str) -> bytes:
    try:
        return fs.read_bytes(f"{path}/prompt.json", _PROMPT_LIMIT)
    except FileNotFoundError:
        text = None if context.archive is None else context.archive.prompt(job_id)
        if text is None:
            raise
        return text


def size(context: FilesContext, job: JobAt) -> int:
    """Return how many bytes a job occupies."""
    path = context.path(job.place, job.job_id)
    if context.archive is not None and not fs.exists(path):
        return context.archive.size_of(job.job_id)
    return trees.size(path)


def ahead(context: FilesContext, view: JobView) -> int:
    """Count the jobs that entered this queue earlier, by the modification time of job.json."""
    queue = context.path(view.place)
    entered = entered_ns(queue, view.job_id)
    if entered is None:
        return 0
    return sum(
        1
        for name in fs.subdirectories(queue)
        if name != view.job_id
        and (other := entered_ns(queue, name)) is not None
        and (other, name) < (entered, view.job_id)
    )


def entered_ns(queue: str, name: str) -> int | None:
    try:
        return os.lstat(f"{queue}/{name}/job.json").st_mtime_ns
    except OSError:
        return None


def counts(context: FilesContext, roles: Collection[str] | None) -> Mapping[Status, int]:
    """Count jobs by the status that their paths imply, without opening a job.json. Jobs in the outbox or held by an
    agent without a role count as in progress, quarantined ones as failed, whatever the role."""
    answer = dict.fromkeys(Status, 0)
    for place, _, status, _ in job_places(context, roles):
        if place == places.WAITING and roles is not None:
            answer[status] += len(listing(context, roles, None, None, [(place, None, status, False)]))
        else:
            answer[status] += _entries(context, place)
    if context.archive is not None:
        for (_, status), count in context.archive.counts(roles).items():
            answer[status] += count
    return answer


def pending(context: FilesContext, role: str) -> int:
    """Return how many jobs may still come out of that queue. Examines no finished job; jobs held by an agent without a
    role count for every role."""
    agents_of = [f"{places.in_progress(role)}/{name}" for name in fs.subdirectories(context.in_progress(role))]
    holders = [f"jobs/.held/{name}" for name in fs.subdirectories(context.holds)]
    found = sum(_entries(context, place) for place in (places.incoming(role), *agents_of, *holders, places.OUTBOX))
    return found - sum(_marked(context, place) for place in agents_of)


def _marked(context: FilesContext, place: str) -> int:
    """Count the jobs that a worker marked stale in place: nothing happens to them until the manager decides."""
    marked = 0
    for name in fs.subdirectories(context.path(place)):
        try:
            marked += folders.read_lifecycle(context.path(place, name)).status is Status.STALE
        except (FarroError, OSError):
            continue
    return marked


def load(context: FilesContext, role: str | None) -> int:
    """Count queued, waiting and running jobs, from the filesystem's own folder counts where it has them."""
    if role is None:
        return sum(load(context, each) for each in context.roles())
    homes = [context.incoming(role), *([context.path(places.WAITING)] if role == "Manager" else [])]
    homes += [f"{context.in_progress(role)}/{agent}" for agent in fs.subdirectories(context.in_progress(role))]
    return sum(map(trees.count_subdirectories, homes))


def _entries(context: FilesContext, place: str) -> int:
    try:
        with os.scandir(context.path(place)) as entries:
            return sum(1 for entry in entries if not entry.name.startswith("."))
    except FileNotFoundError:
        return 0


# --- counting again and again ---


_TICK_S = 1.0  # longer than the time resolution of any filesystem


class FolderCounter:
    """Count the jobs of each role by status, for callers that ask again and again.

    A folder whose link count gives the number of subfolders costs one stat call. On filesystems without that (btrfs;
    ext4 beyond 65,000), a folder is read again only when it has changed. Invariant: a cached count was true at the
    folder's modification time it is stored with.
    """

    def __init__(self, context: FilesContext) -> None:
        self._context = context
        self._kept: dict[str, tuple[int, int]] = {}  # place → modification time, count

    def count(self) -> QueueCounts:
        """Count all jobs, finished ones included."""
        roles = self._context.roles()
        archived = {} if self._context.archive is None else self._context.archive.counts()
        return QueueCounts(
            roles={
                role: {
                    Status.QUEUED: self._in(places.incoming(role)),
                    Status.IN_PROGRESS: self._below(places.in_progress(role)),
                    **{
                        status: self._in(places.completed(role, status)) + archived.get((role, status), 0)
                        for status in FINISHED
                    },
                }
                for role in roles
            },
            waiting=self._in(places.WAITING),
            stale=self._in(places.STALE),
            passing=self._below("jobs/.held") + self._in(places.OUTBOX),
            quarantined=self._in(places.QUARANTINE),
        )

    def _below(self, place: str) -> int:
        """Count the jobs that the agents of this place hold. Not cached: agents come and go."""
        found = 0
        for agent in fs.subdirectories(self._context.path(place)):
            with contextlib.suppress(FileNotFoundError):  # the agent has left
                found += trees.count_subdirectories(self._context.path(place, agent))
        return found

    def _in(self, place: str) -> int:
        path = self._context.path(place)
        try:
            changed_ns = fs.lstat(path).st_mtime_ns
            kept = self._kept.get(place)
            if kept is not None and kept[0] == changed_ns:
                return kept[1]
            found = trees.count_subdirectories(path)
        except FileNotFoundError:
            return 0
        if self._context.clock.now().timestamp() - changed_ns / 1e9 > _TICK_S:  # else a job may come in the same tick
            self._kept[place] = (changed_ns, found)
        return found
