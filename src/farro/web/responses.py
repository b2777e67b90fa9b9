"""Declare the responses that several modules return, as dataclasses.

`…Response` is a whole body, `…Data` a part of one. The OpenAPI document is built from them, and the tests check every
response against them [tests/web/test_openapi.py].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farro.jobs.envelope import Decision, Hop, Lifecycle
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.queue.catalog.charts import Curve


@dataclass(frozen=True, kw_only=True)
class ProblemData:
    path: str
    message: str
    line: int | None
    column: int | None


@dataclass(frozen=True, kw_only=True)
class ErrorData:
    code: str
    message: str
    problems: tuple[ProblemData, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ErrorResponse:
    error: ErrorData


@dataclass(frozen=True, kw_only=True)
class AboutResponse:
    name: str
    version: str
    root: str
    store: str
    now: str
    started_at: str
    roles: tuple[str, ...]
    user: str
    ready: bool
    jobs: int
    loaded: int
    read_only: bool


@dataclass(frozen=True, kw_only=True)
class JobData:
    job_id: str
    role: str | None
    status: Status
    attempt: int
    created_at: str | None
    enqueued_at: str | None
    updated_at: str | None
    first_claimed_at: str | None
    finalized_at: str | None
    not_before: str | None
    agent: str | None
    retry_of: str | None
    error: Mapping[str, str] | None
    place: str
    title: str
    name: str | None
    plan_id: str | None
    task: str | None
    tags: tuple[str, ...]
    priority: str
    steps: int
    waits_for: tuple[str, ...]
    person: bool
    terminal: bool


@dataclass(frozen=True, kw_only=True)
class JobListResponse:
    jobs: tuple[JobData, ...]
    next: str | None
    total: int | None
    at: str


@dataclass(frozen=True, kw_only=True)
class JobFileData:
    path: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class LifecycleResponse:
    """The content of job.json."""

    schema_version: str
    job_id: str
    role: str
    status: Status
    attempt: int
    retry_count: int
    hops: tuple[Hop, ...]
    created_at: str
    enqueued_at: str
    updated_at: str
    first_claimed_at: str | None
    finalized_at: str | None
    not_before: str | None
    routing: Mapping[str, Any] | None
    agent: str | None
    correlation_id: str | None
    requeued_from: Status | None
    retry_of: str | None
    policy_version: str | None
    result_sha256: str | None
    error: Mapping[str, str] | None
    decision: Decision | None


@dataclass(frozen=True, kw_only=True)
class SpentData:
    calls: int
    usd: float | None
    estimated_calls: int
    estimated_usd: float
    unknown_calls: int


@dataclass(frozen=True, kw_only=True)
class JobResponse(LifecycleResponse):
    """A job with everything that is known about it."""

    place: str
    damaged: str | None
    waits_for: tuple[str, ...]
    message: str | None
    orphaned: bool
    name: str | None
    cost: SpentData | None
    prompt: Mapping[str, Any]
    narrative: str | None
    result: Mapping[str, Any] | None
    task: str | None
    title: str
    tags: tuple[str, ...]
    priority: str
    terminal: bool
    person: bool
    files: tuple[JobFileData, ...]
    files_more: int  # how many files `files` leaves out


@dataclass(frozen=True, kw_only=True)
class PauseData:
    """The pause of a queue: by which agent, since when, and the reason."""

    by: str
    at: str
    why: str | None


@dataclass(frozen=True, kw_only=True)
class QueueData:
    role: str
    cap: int | None
    paused: PauseData | None
    queued: int
    delayed: int
    waiting: int
    in_progress: int
    succeeded: int
    failed: int
    stale: int
    killed: int
    workers: int
    busy: int


@dataclass(frozen=True, kw_only=True)
class QueuesResponse:
    at: str
    queues: tuple[QueueData, ...]
    total: QueueData


@dataclass(frozen=True, kw_only=True)
class SeriesResponse:
    start: str
    end: str
    step_s: int
    points: int
    bounded: bool
    roles: Mapping[str, Curve]


@dataclass(frozen=True, kw_only=True)
class OutputData:
    step: str | None
    stream: str
    truncated: bool
    text: str | None = None
    base64: str | None = None


@dataclass(frozen=True, kw_only=True)
class EarlierOutputData:
    """The output before the returned lines; pass `before` to request it."""

    before: str
    lines: int | None  # null: too much to count
    bytes: int


@dataclass(frozen=True, kw_only=True)
class LogsResponse:
    job_id: str
    status: Status
    attempt: int | None
    output: tuple[OutputData, ...]
    earlier: EarlierOutputData | None


@dataclass(frozen=True, kw_only=True)
class EnqueueResponse:
    jobs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RetryResponse:
    job_id: str
    retry_of: str
    kept_steps: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ExplainResponse:
    job_id: str
    status: Status
    reason: str
    message: str
    fix: str | None


def lifecycle_data(lifecycle: Lifecycle) -> dict[str, Any]:
    """Return the content of job.json; the parts are encoded later."""
    return {**vars(lifecycle), "hops": [_hop_data(hop) for hop in lifecycle.hops]}


def _hop_data(hop: Hop) -> dict[str, Any]:
    return {
        name: value for name, value in vars(hop).items() if name not in ("route", "claimed_at") or value is not None
    }
