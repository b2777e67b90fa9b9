"""Time travel: the audit log page by page, and the queues as they were at a moment.

Folding the log lives in operations.past, its pages in operations.audit_pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from farro.documents.constraints import Bounds
from farro.errors import InputError
from farro.jobs.states import Status
from farro.jobs.times import parse_timestamp, timestamp
from farro.lazy_dataclass import dataclass
from farro.queue import audit_pages
from farro.queue.catalog.rows import milliseconds, spelled
from farro.web.endpoints import Asked, Endpoint, get
from farro.web.state import House


@dataclass(frozen=True, eq=False)
class MomentText:
    """A moment, to be asked for: any of RFC 3339, but those at the edges of the calendar."""

    def fault(self, value: str, /) -> str | None:
        try:
            _spelled(value)
        except (ValueError, OverflowError):
            return "must be a moment such as 2026-01-31T12:00:00Z"
        return None

    def schema(self) -> dict[str, Any]:
        return {"format": "date-time"}


Moment = Annotated[str, MomentText()]


def _spelled(text: str | None) -> str | None:
    if text is None:
        return None
    moment = parse_timestamp(text.replace(" ", "+"))  # a plus in a query is a space, unless it is escaped
    if not 1970 <= moment.year <= 9000:
        raise ValueError(text)
    return timestamp(moment)


@dataclass(frozen=True, kw_only=True)
class AuditQuery:
    limit: Annotated[int, Bounds(at_least=1, at_most=1000)] = 200
    before: str | None = None
    job: str | None = None
    since: Moment | None = None
    until: Moment | None = None


@dataclass(frozen=True, kw_only=True)
class AuditTold:
    lines: tuple[dict[str, Any], ...]
    next: str | None
    whole: bool


def audit(house: House, asked: Asked) -> Any:
    query: AuditQuery = asked.query
    wanted = audit_pages.AuditPageQuery(
        limit=query.limit,
        cursor=query.before,
        job_id=query.job,
        since=_spelled(query.since),
        until=_spelled(query.until),
    )
    page = audit_pages.page(house.store, wanted)
    return {"lines": page.lines, "next": page.next, "whole": page.whole}


@dataclass(frozen=True, kw_only=True)
class RangeTold:
    first: str | None
    last: str | None
    lines: int


def known(house: House, asked: Asked) -> Any:
    house.past.refresh()
    return asdict(house.past.range())


@dataclass(frozen=True, kw_only=True)
class ThenQuery:
    at: Moment
    limit: Annotated[int, Bounds(at_least=0, at_most=5000)] = 200
    role: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class JobThen:
    job_id: str
    role: str
    status: Status
    since: str | None
    agent: str | None


@dataclass(frozen=True, kw_only=True)
class ThenTold:
    at: str
    since: str | None
    whole: bool
    queues: Mapping[str, Mapping[str, int]]
    jobs: tuple[JobThen, ...]
    more: int


def then(house: House, asked: Asked) -> Any:
    query: ThenQuery = asked.query
    at = _spelled(query.at)
    at_ms = milliseconds(at)
    assert at_ms is not None
    house.past.refresh()
    told = house.past.at(at_ms, limit=query.limit, roles=query.role)
    return {
        "at": at,
        "since": house.past.range().first,
        "whole": house.past.whole,
        "queues": told.queues,
        "jobs": [asdict(job) for job in told.jobs],
        "more": told.more,
    }


@dataclass(frozen=True, kw_only=True)
class CurveQuery:
    since: Moment | None = None
    until: Moment | None = None
    points: Annotated[int, Bounds(at_least=1, at_most=1000)] = 100
    role: str | None = None


@dataclass(frozen=True, kw_only=True)
class PointTold:
    at: str
    queued: int
    in_progress: int
    succeeded: int
    failed: int
    stale: int
    killed: int
    events: int


@dataclass(frozen=True, kw_only=True)
class CurveTold:
    since: str | None
    until: str | None
    points: tuple[PointTold, ...]


def curve(house: House, asked: Asked) -> Any:
    """From the first to the last line of the log, where nothing else is asked for."""
    query: CurveQuery = asked.query
    house.past.refresh()
    whole = house.past.range()
    since = milliseconds(_spelled(query.since) or whole.first)
    until = milliseconds(_spelled(query.until) or whole.last)
    if since is None or until is None:
        return {"since": None, "until": None, "points": []}
    if until < since:
        raise InputError("until is before since")
    points = house.past.curve(since, until, query.points, role=query.role)
    return {"since": spelled(since), "until": spelled(until), "points": points}


ENDPOINTS: tuple[Endpoint, ...] = (
    get("/api/audit", audit, "The audit log, the newest lines first.", AuditTold, query=AuditQuery, tag="history"),
    get("/api/history/range", known, "How far back the log reaches.", RangeTold, keep_s=1.0, tag="history"),
    get("/api/history", then, "The queues as they were.", ThenTold, query=ThenQuery, keep_s=1.0, tag="history"),
    get("/api/history/series", curve, "How they changed.", CurveTold, query=CurveQuery, keep_s=2.0, tag="history"),
)
