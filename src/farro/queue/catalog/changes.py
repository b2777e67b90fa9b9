"""Changes on their way into the catalog and out of it: what is told on, what a comparison found, where a change points.

Keeping the catalog lives in `keeping`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

from farro.jobs import places
from farro.jobs.states import Status
from farro.queue import tree
from farro.store.port import Change

T = TypeVar("T")


class Told(NamedTuple):
    """One change as it is told on. `status` None: the job is gone."""

    job_id: str
    role: str | None
    status: Status | None
    was: Status | None  # None: it was not there
    was_role: str | None


class Seen(NamedTuple):
    """A job as a comparison finds it."""

    entry: tree.Entry
    role: str | None
    created_ms: int
    changed_ms: int


def place_of(change: Change) -> str:
    """As far as a change says it: of a running job not in whose hands it is."""
    return _place(change.role, change.status)


@lru_cache(maxsize=1024)
def _place(role: str | None, status: Status) -> str:
    match status:
        case Status.QUEUED:
            return places.WAITING if role is None else places.incoming(role)
        case Status.IN_PROGRESS:
            return "jobs" if role is None else places.in_progress(role)
        case Status.STALE:
            return places.STALE
    return places.QUARANTINE if role is None else places.completed(role, status)


def last_of_each(changes: Sequence[Change]) -> list[Change]:
    """Where each job went last, in the order of these: what it passed on its way is over already."""
    last: dict[str, Change] = {}
    for change in reversed(changes):
        last.setdefault(change.job_id, change)
    return list(reversed(last.values()))


def in_lots(items: Iterable[T], size: int) -> Iterable[list[T]]:
    lot: list[T] = []
    for item in items:
        lot.append(item)
        if len(lot) == size:
            yield lot
            lot = []
    if lot:
        yield lot
