"""Name the folders that a job may be in, relative to the root. The path is the state (R1)."""

from __future__ import annotations

import re
from functools import lru_cache

from farro.errors import Damaged
from farro.jobs.ids import ROLE
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass

OUTBOX = "jobs/outbox"
STALE = "jobs/stale"
QUARANTINE = "jobs/quarantine"
WAITING = "agents/Manager/waiting"

_PATTERN = re.compile(rf"agents/({ROLE.pattern})/(incoming|completed/succeeded|completed/failed|completed/killed)")
_COMPLETED = {
    "completed/succeeded": Status.SUCCEEDED,
    "completed/failed": Status.FAILED,
    "completed/killed": Status.KILLED,
}


def incoming(role: str) -> str:
    return f"agents/{role}/incoming"


def in_progress(role: str) -> str:
    return f"agents/{role}/in-progress"


def completed(role: str, status: Status) -> str:
    return f"agents/{role}/completed/{status}"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPlace:
    """A destination that a decision may name."""

    path: str
    status: Status
    role: str | None  # None: a folder for jobs of every role


@lru_cache(maxsize=64)
def parse(path: str) -> JobPlace:
    """Parse the destination of a decision. Raise Damaged for anything else: a planted job.json must not name a path."""
    if path == STALE:
        return JobPlace(path=path, status=Status.STALE, role=None)
    if path == WAITING:
        return JobPlace(path=path, status=Status.QUEUED, role=None)
    found = _PATTERN.fullmatch(path)
    if found is None:
        raise Damaged(f"decision.to: {ascii(path)[:100]} is not a place for a job")
    role, kind = found.groups()
    return JobPlace(path=path, status=_COMPLETED.get(kind, Status.QUEUED), role=role)


def destination(role: str, status: Status) -> str:
    """Return the folder of a job with that status and role while no agent holds it."""
    if status is Status.QUEUED:
        return incoming(role)
    if status is Status.STALE:
        return STALE
    return completed(role, status)
