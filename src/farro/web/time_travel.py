"""Show the past: the audit log page by page, and the queues as they were at a given moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from farro.documents.constraints import Bounds
from farro.errors import InputError
from farro.jobs.times import parse_timestamp, timestamp
from farro.lazy_dataclass import dataclass
from farro.queue import audit
from farro.queue.catalog.rows import milliseconds, spelled
from farro.queue.time_travel import PastJob, Range
from farro.web.request_handling import ApiRequest, Routes, WebState

routes = Routes("history")


@dataclass(frozen=True, eq=False)
class MomentFormat:
    """A moment in RFC 3339, from 1970 to 9000."""

    def fault(self, value: str, /) -> str | None:
        try:
            _normalized(value)
        except (ValueError, OverflowError):
            return "must be a moment such as 2026-01-31T12:00:00Z"
        return None

    def schema(self) -> dict[str, Any]:
        return {"format": "date-time"}


Moment = Annotated[str, MomentFormat()]


def _normalized(text: str | None) -> str | None:
    if text is None:
        return None
    moment = parse_timestamp(text.replace(" ", "+"))  # an unescaped plus in a query means a space
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
class AuditResponse:
    lines: tuple[dict[str, Any], ...]
    next: str | None
    whole: bool


@routes.get("/api/audit", "The audit log, the newest lines first.", AuditResponse, query=AuditQuery)
def list_audit(state: WebState, request: ApiRequest) -> Any:
    query: AuditQuery = request.query
    page_query = audit.AuditPageQuery(
        limit=query.limit,
        cursor=query.before,
        job_id=query.job,
        since=_normalized(query.since),
        until=_normalized(query.until),
    )
    return audit.page(state.store, page_query)


@dataclass(frozen=True, kw_only=True)
class HistoryRangeResponse(Range):
    """The first and the last moment, and the number of lines."""


@routes.get("/api/history/range", "The first and last moment of the audit log.", HistoryRangeResponse, cache_s=1.0)
def show_range(state: WebState, request: ApiRequest) -> Any:
    state.queue_history.refresh()
    return state.queue_history.range()


@dataclass(frozen=True, kw_only=True)
class PastQueuesQuery:
    at: Moment
    limit: Annotated[int, Bounds(at_least=0, at_most=5000)] = 200
    role: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PastQueuesResponse:
    at: str
    since: str | None
    whole: bool
    queues: Mapping[str, Mapping[str, int]]
    jobs: tuple[PastJob, ...]
    more: int


@routes.get("/api/history", "The queues at a moment.", PastQueuesResponse, query=PastQueuesQuery, cache_s=1.0)
def show_past_queues(state: WebState, request: ApiRequest) -> Any:
    query: PastQueuesQuery = request.query
    at = _normalized(query.at)
    at_ms = milliseconds(at)
    assert at_ms is not None
    state.queue_history.refresh()
    past = state.queue_history.at(at_ms, limit=query.limit, roles=query.role)
    return {
        "at": at,
        "since": state.queue_history.range().first,
        "whole": state.queue_history.whole,
        "queues": past.queues,
        "jobs": past.jobs,
        "more": past.more,
    }


@dataclass(frozen=True, kw_only=True)
class HistorySeriesQuery:
    since: Moment | None = None
    until: Moment | None = None
    points: Annotated[int, Bounds(at_least=1, at_most=1000)] = 100
    role: str | None = None


@dataclass(frozen=True, kw_only=True)
class HistoryPointData:
    at: str
    queued: int
    in_progress: int
    succeeded: int
    failed: int
    stale: int
    killed: int
    events: int


@dataclass(frozen=True, kw_only=True)
class HistorySeriesResponse:
    since: str | None
    until: str | None
    points: tuple[HistoryPointData, ...]


@routes.get(
    "/api/history/series", "The queues over time.", HistorySeriesResponse, query=HistorySeriesQuery, cache_s=2.0
)
def show_series(state: WebState, request: ApiRequest) -> Any:
    """Default to the range from the first to the last line of the log."""
    query: HistorySeriesQuery = request.query
    state.queue_history.refresh()
    whole = state.queue_history.range()
    since = milliseconds(_normalized(query.since) or whole.first)
    until = milliseconds(_normalized(query.until) or whole.last)
    if since is None or until is None:
        return {"since": None, "until": None, "points": []}
    if until < since:
        raise InputError("`until` is earlier than `since`")
    points = state.queue_history.curve(since, until, query.points, role=query.role)
    return {"since": spelled(since), "until": spelled(until), "points": points}
