"""One look through the whole tree for what contradicts itself. Writes nothing and holds nothing.

What is found, and what helps, is told by stores.files.checks. Everything that may be a job on its way between two looks
is looked at again before it is counted: a live queue has no contradictions.

Bounded for large roots: folders are read name by name, and of finished jobs only so many job.json are opened; every
job that is not finished is.
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
from farro.store.files.context import Ground
from farro.store.files.folder import JOB_LIMIT, LOCK

FINISHED_LOOKED_AT = 20_000
OLD_S = 86400.0  # of what was left in staging
TEMPORARY_S = 3600.0  # no write takes so long
_FINISHED = frozenset({Status.SUCCEEDED, Status.FAILED, Status.KILLED})


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """One example: what, and where (relative to the root)."""

    what: str
    path: str
    job_id: str = ""
    other: str = ""  # the second place


@dataclass(kw_only=True, slots=True)
class Tally:
    count: int = 0
    examples: list[Seen] = field(default_factory=list)

    def add(self, seen: Seen) -> None:
        self.count += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(seen)


@dataclass(kw_only=True, slots=True)
class Scan:
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
    strays: Tally = field(default_factory=Tally)  # what is no job's folder where only these lie


def scan(ground: Ground, *, finished: int | None = FINISHED_LOOKED_AT) -> Scan:
    """`finished`: of how many finished jobs the job.json is opened; None: of all."""
    found, now_s = Scan(), ground.clock.now().timestamp()
    where: dict[str, str] = {}
    left = finished
    for place, role, status, busy in views.spots(ground):
        for entry in _entries(ground.path(place)):
            path = f"{place}/{entry.name}"
            if entry.name.startswith(fs.TEMPORARY):
                _temporary(ground, found, path, now_s)
                continue
            if entry.name.startswith("."):
                continue
            job_id = entry.name.split(".", 1)[0]
            if not ids.is_job_id(job_id) or not entry.is_dir(follow_symlinks=False):
                found.strays.add(Seen(what=entry.name, path=path))
                continue
            found.jobs += 1
            if place == places.QUARANTINE:
                found.quarantined.add(Seen(what=job_id, path=path, job_id=entry.name))
                continue
            if job_id in where and _both_there(ground, where[job_id], path):
                found.twins.add(Seen(what=job_id, path=where[job_id], job_id=job_id, other=path))
            where[job_id] = path
            if status in _FINISHED and left is not None:
                if left == 0:
                    found.unread += 1
                    continue
                left -= 1
            _job(ground, found, path, job_id, status, busy=busy)
            if status is Status.QUEUED and role is not None:
                _lock(ground, found, path, job_id, role)
            if status not in _FINISHED:
                for name in _names(ground.path(path)):
                    if name.startswith(fs.TEMPORARY):
                        _temporary(ground, found, f"{path}/{name}", now_s)
    _agents(ground, found)
    for name in fs.subdirectories(ground.staging):
        path = f"jobs/.staging/{name}"
        with contextlib.suppress(FileNotFoundError):
            if now_s - fs.lstat(ground.path(path)).st_mtime > OLD_S:
                found.left_in_staging.add(Seen(what=name, path=path))
    for name in ("", "jobs", "agents", "logs"):
        for left_over in _names(ground.path(name) if name else ground.root):
            if left_over.startswith(fs.TEMPORARY):
                _temporary(ground, found, f"{name}/{left_over}" if name else left_over, now_s)
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


def _both_there(ground: Ground, one: str, other: str) -> bool:
    """A job that moved on while it was looked for lies in one place only, at the second look."""
    return all(fs.exists(ground.path(path)) for path in (one, other, one))


def _temporary(ground: Ground, found: Scan, path: str, now_s: float) -> None:
    with contextlib.suppress(FileNotFoundError):
        if now_s - fs.lstat(ground.path(path)).st_mtime > TEMPORARY_S:
            found.temporary.add(Seen(what=path.rsplit("/", 1)[1], path=path))


def _job(ground: Ground, found: Scan, path: str, job_id: str, status: Status, *, busy: bool) -> None:
    for add, what in _twice(lambda: _verdict(ground, found, path, job_id, status, busy=busy)):
        add(Seen(what=f"{job_id}: {what}", path=path, job_id=job_id))


def _twice(look: Callable[[], list[tuple[Callable[[Seen], None], str]]]) -> list[tuple[Callable[[Seen], None], str]]:
    """What is seen at both of two looks."""
    first = look()
    return [each for each in look() if each in first] if first else []


def _verdict(
    ground: Ground, found: Scan, path: str, job_id: str, status: Status, *, busy: bool
) -> list[tuple[Callable[[Seen], None], str]]:
    home = ground.path(path)
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
        return [(found.foreign.add, f"schema_version {ascii(version)[:40]}")]
    if not fs.exists(f"{home}/prompt.json"):
        return [(found.damaged.add, "prompt.json is missing")] if fs.exists(home) else []
    said = str(data.get("status")).replace("-", "_")
    if data.get("job_id") != job_id:
        return [(found.contradicting.add, f"job.json names {ascii(data.get('job_id'))[:80]}")]
    if not busy and status is not Status.IN_PROGRESS and said not in _FITTING[status] and fs.exists(home):
        return [(found.contradicting.add, f"job.json says {ascii(said)[:40]}, its place says {status}")]
    return []


# As a claim sees it: a job that was put back may still say that it is in progress.
_FITTING: dict[Status, tuple[str, ...]] = {status: (str(status),) for status in Status}
_FITTING[Status.QUEUED] = ("queued", "in_progress")


def _lock(ground: Ground, found: Scan, path: str, job_id: str, role: str) -> None:
    def owner() -> str | None:
        try:
            return fs.readlink(ground.path(path, LOCK))
        except OSError:
            return None

    name = owner()
    if name is None:
        return
    alive = ids.is_agent(name) and leases.is_held(f"{ground.in_progress(role)}/{name}/{LEASE}")
    if not alive and owner() == name:
        found.dead_locks.add(Seen(what=f"{job_id}: locked by {name}", path=f"{path}/{LOCK}", job_id=job_id))


def _agents(ground: Ground, found: Scan) -> None:
    for role in (None, *ground.roles()):
        home = "jobs/.held" if role is None else places.in_progress(role)
        for name in fs.subdirectories(ground.path(home)):
            path = f"{home}/{name}"
            if not leases.is_held(ground.path(path, LEASE)) and fs.exists(ground.path(path)):
                jobs = len(fs.subdirectories(ground.path(path)))
                found.dead_agents.add(Seen(what=f"{name}: {jobs} job{'s' if jobs != 1 else ''}", path=path))
