"""Answer from all machines of a shared store, or from this root's folders where the store is local."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import datetime

from farro.jobs.times import moment_or_none
from farro.log import audit_reader
from farro.log.audit_reader import JobEvents, RecentEvents
from farro.store.fleet import Fleet
from farro.store.port import Store

LINES = 200_000  # most lines of a shared audit log for one query


def trail(store: Store, job_id: str, *, since_s: float) -> JobEvents:
    """Return the audit lines of a job: this root's, or those of every machine."""
    if not isinstance(store, Fleet):
        return audit_reader.trail(f"{store.root}/logs", job_id, since_s=since_s)
    lines = store.audit_lines(max(0, int(since_s * 1000)), job_id)
    return JobEvents(lines=tuple(lines), whole=True)


def recent(store: Store, *, since: datetime, holding: Sequence[bytes], limit: int) -> RecentEvents:
    """Return the audit lines since then, newest first."""
    if not isinstance(store, Fleet):
        return audit_reader.recent(f"{store.root}/logs", since=since, holding=holding, limit=limit)
    newest = deque(store.audit_lines(int(since.timestamp() * 1000)), maxlen=LINES)
    if len(newest) < LINES:
        return RecentEvents(lines=tuple(reversed(newest)), whole=True, since=None)
    return RecentEvents(lines=tuple(reversed(newest)), whole=False, since=moment_or_none(newest[0].get("ts")))
