"""Changes on their way into the catalog and out of it: what is told on, what a comparison found, where a change points.

Keeping the catalog lives in `keeping`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from farro.kernel import places
from farro.kernel.states import Status
from farro.operations import tree
from farro.ports.store import Change

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Told:
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
    match change.status:
        case Status.QUEUED:
            return places.WAITING if change.role is None else places.incoming(change.role)
        case Status.IN_PROGRESS:
            return "jobs" if change.role is None else places.in_progress(change.role)
        case Status.STALE:
            return places.STALE
    return places.QUARANTINE if change.role is None else places.completed(change.role, change.status)


def in_lots(items: Iterable[T], size: int) -> Iterable[list[T]]:
    lot: list[T] = []
    for item in items:
        lot.append(item)
        if len(lot) == size:
            yield lot
            lot = []
    if lot:
        yield lot
