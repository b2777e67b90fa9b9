"""Scan the whole tree for contradictions. Writes nothing and locks nothing.

A job that may have moved during the scan is checked again before it is counted, so that a live queue shows no
contradictions.

Bounded for large roots: folders are read name by name, and only a limited number of finished jobs' job.json is opened;
every unfinished job's is.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator

from farro.doctor.checks import EXAMPLES
from farro.host import fs, leases
from farro.jobs import ids, places
from farro.jobs.envelope import SCHEMA_VERSION
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass, field
from farro.store.files import views
from farro.store.files.agents import LEASE
from farro.store.files.context import FilesContext
from farro.store.files.folder import JOB_LIMIT, LOCK

MAX_FINISHED = 20_000
OLD_S = 86400.0  # age at which a folder in staging is a leftover
TEMPORARY_S = 3600.0  # no write takes this long
_FINISHED = frozenset({Status.SUCCEEDED, Status.FAILED, Status.KILLED})


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanExample:
    """One example of a contradiction: what, and where (relative to the root)."""

    what: str
    path: str
    job_id: str = ""
    other: str = ""  # the second place


@dataclass(kw_only=True, slots=True)
class Tally:
    """The number of findings of one contradiction, with a few examples."""

    count: int = 0
    examples: list[ScanExample] = field(default_factory=list)

    def add(self, example: ScanExample) -> None:
        self.count += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(example)


@dataclass(kw_only=True, slots=True)
class Scan:
    """The findings of one scan, by kind."""

    jobs: int = 0
    unread: int = 0  # finished jobs whose job.json was not opened
    twins: Tally = field(default_factory=Tally)
    contradicting: Tally = field(default_factory=Tally)
    damaged: Tally = field(default_factory=Tally)
    foreign: Tally = field(default_factory=Tally)  # of another schema version
    dead_locks: Tally = field(default_factory=Tally)
    dead_agents: Tally = field(default_factory=Tally)
    left_in_staging: Tally = field(default_factory=Tally)
    quarantined: Tally = field(default_factory=Tally)
    temporary: Tally = field(default_factory=Tally)
    strays: Tally = field(default_factory=Tally)  # entries of a queue that are no job's folder


def scan(context: FilesContext, *, finished: int | None = MAX_FINISHED) -> Scan:
    """Scan the tree. `finished`: how many finished jobs' job.json is opened; None: all."""
    found, now_s = Scan(), context.clock.now().timestamp()
    where: dict[str, str] = {}
    left = finished
    for place, role, status, busy in views.job_places(context):
        for entry in _entries(context.path(place)):
            path = f"{place}/{entry.name}"
            if entry.name.startswith(fs.TEMPORARY):
                _temporary(context, found, path, now_s)
                continue
            if entry.name.startswith("."):
                continue
            job_id = entry.name.split(".", 1)[0]
            if not ids.is_job_id(job_id) or not entry.is_dir(follow_symlinks=False):
                found.strays.add(ScanExample(what=entry.name, path=path))
                continue
            found.jobs += 1
            if place == places.QUARANTINE:
                found.quarantined.add(ScanExample(what=job_id, path=path, job_id=entry.name))
                continue
            if job_id in where and _both_there(context, where[job_id], path):
                found.twins.add(ScanExample(what=job_id, path=where[job_id], job_id=job_id, other=path))
            where[job_id] = path
            if status in _FINISHED and left is not None:
                if left == 0:
                    found.unread += 1
                    continue
                left -= 1
            _job(context, found, path, job_id, status, busy=busy)
            if status is Status.QUEUED and role is not None:
                _lock(context, found, path, job_id, role)
            if status not in _FINISHED:
                for name in _names(context.path(path)):
                    if name.startswith(fs.TEMPORARY):
                        _temporary(context, found, f"{path}/{name}", now_s)
    _agents(context, found)
    for name in fs.subdirectories(context.staging):
        path = f"jobs/.staging/{name}"
        with contextlib.suppress(FileNotFoundError):
            if now_s - fs.lstat(context.path(path)).st_mtime > OLD_S:
                found.left_in_staging.add(ScanExample(what=name, path=path))
    for name in ("", "jobs", "agents", "logs"):
        for left_over in _names(context.path(name) if name else context.root):
            if left_over.startswith(fs.TEMPORARY):
                _temporary(context, found, f"{name}/{left_over}" if name else left_over, now_s)
    return found


def _entries(path: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            yield from entries
    except (FileNotFoundError, NotADirectoryError):
        return


def _names(path: str) -> list[str]:
    try:
        return fs.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _both_there(context: FilesContext, one: str, other: str) -> bool:
    """Return whether the job is still in both places: a job that moved during the scan is now in one."""
    return all(fs.exists(context.path(path)) for path in (one, other, one))


def _temporary(context: FilesContext, found: Scan, path: str, now_s: float) -> None:
    with contextlib.suppress(FileNotFoundError):
        if now_s - fs.lstat(context.path(path)).st_mtime > TEMPORARY_S:
            found.temporary.add(ScanExample(what=path.rsplit("/", 1)[1], path=path))


def _job(context: FilesContext, found: Scan, path: str, job_id: str, status: Status, *, busy: bool) -> None:
    for add, what in _twice(lambda: _verdict(context, found, path, job_id, status, busy=busy)):
        add(ScanExample(what=f"{job_id}: {what}", path=path, job_id=job_id))


def _twice(
    look: Callable[[], list[tuple[Callable[[ScanExample], None], str]]],
) -> list[tuple[Callable[[ScanExample], None], str]]:
    """Return the findings that two checks have in common."""
    first = look()
    return [each for each in look() if each in first] if first else []


def _verdict(
    context: FilesContext, found: Scan, path: str, job_id: str, status: Status, *, busy: bool
) -> list[tuple[Callable[[ScanExample], None], str]]:
    home = context.path(path)
    try:
        data = json.loads(fs.read_bytes(f"{home}/job.json", JOB_LIMIT))
    except (FileNotFoundError, NotADirectoryError):
        return [(found.damaged.add, "job.json is missing")] if fs.exists(home) else []
    except (OSError, ValueError, RecursionError):
        return [(found.damaged.add, "job.json cannot be read")]
    if not isinstance(data, dict):
        return [(found.damaged.add, "job.json is not an object")]
    version = data.get("schema_version")
    if version != SCHEMA_VERSION:
        what = "no schema_version" if version is None else f"schema_version {ascii(version)[:40]}"
        return [(found.foreign.add, what)]
    if not fs.exists(f"{home}/prompt.json"):
        return [(found.damaged.add, "prompt.json is missing")] if fs.exists(home) else []
    said = str(data.get("status")).replace("-", "_")
    if data.get("job_id") != job_id:
        return [(found.contradicting.add, f"job.json names {ascii(data.get('job_id'))[:80]}")]
    if not busy and status is not Status.IN_PROGRESS and said not in _FITTING[status] and fs.exists(home):
        return [(found.contradicting.add, f"job.json says {ascii(said)[:40]}, its place says {status}")]
    return []


# The statuses that fit a place. A queued job that was put back may still say that it is in progress.
_FITTING: dict[Status, tuple[str, ...]] = {status: (str(status),) for status in Status}
_FITTING[Status.QUEUED] = ("queued", "in_progress")


def _lock(context: FilesContext, found: Scan, path: str, job_id: str, role: str) -> None:
    def owner() -> str | None:
        try:
            return fs.readlink(context.path(path, LOCK))
        except OSError:
            return None

    name = owner()
    if name is None:
        return
    alive = ids.is_agent(name) and leases.is_held(f"{context.in_progress(role)}/{name}/{LEASE}")
    if not alive and owner() == name:
        found.dead_locks.add(ScanExample(what=f"{job_id}: locked by {name}", path=f"{path}/{LOCK}", job_id=job_id))


def _agents(context: FilesContext, found: Scan) -> None:
    for role in (None, *context.roles()):
        home = "jobs/.held" if role is None else places.in_progress(role)
        for name in fs.subdirectories(context.path(home)):
            path = f"{home}/{name}"
            if not leases.is_held(context.path(path, LEASE)) and fs.exists(context.path(path)):
                jobs = len(fs.subdirectories(context.path(path)))
                found.dead_agents.add(ScanExample(what=f"{name}: {jobs} job{'s' if jobs != 1 else ''}", path=path))
