"""What the routes answer, as dataclasses: the OpenAPI document is made of them, and tests hold every answer to them.

What the fields mean lives where they come from (kernel.envelope, operations); those of swarms live in `swarms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farro.jobs.envelope import Decision, Hop, Lifecycle
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.queue.catalog.charts import Curve


@dataclass(frozen=True, kw_only=True)
class Trouble:
    path: str
    message: str
    line: int | None
    column: int | None


@dataclass(frozen=True, kw_only=True)
class ErrorTold:
    code: str
    message: str
    problems: tuple[Trouble, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Failure:
    error: ErrorTold


@dataclass(frozen=True, kw_only=True)
class About:
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
class Row:
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
class Rows:
    jobs: tuple[Row, ...]
    next: str | None
    total: int | None
    at: str


@dataclass(frozen=True, kw_only=True)
class FileTold:
    path: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Life:
    """job.json."""

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
class SpentTold:
    calls: int
    usd: float | None
    estimated_calls: int
    estimated_usd: float
    unknown_calls: int


@dataclass(frozen=True, kw_only=True)
class Whole(Life):
    """A job with all that is known of it."""

    place: str
    damaged: str | None
    waits_for: tuple[str, ...]
    message: str | None
    orphaned: bool
    name: str | None
    cost: SpentTold | None
    prompt: Mapping[str, Any]
    narrative: str | None
    result: Mapping[str, Any] | None
    task: str | None
    title: str
    tags: tuple[str, ...]
    priority: str
    terminal: bool
    person: bool
    files: tuple[FileTold, ...]
    files_more: int  # beside those


@dataclass(frozen=True, kw_only=True)
class PausedTold:
    """A queue that gives out no job: who said so, since when, and why."""

    by: str
    at: str
    why: str | None


@dataclass(frozen=True, kw_only=True)
class Queue:
    role: str
    cap: int | None
    paused: PausedTold | None
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
class Queues:
    at: str
    queues: tuple[Queue, ...]
    total: Queue


@dataclass(frozen=True, kw_only=True)
class Series:
    start: str
    end: str
    step_s: int
    points: int
    bounded: bool
    roles: Mapping[str, Curve]


@dataclass(frozen=True, kw_only=True)
class OutputTold:
    step: str | None
    stream: str
    truncated: bool
    text: str | None = None
    base64: str | None = None


@dataclass(frozen=True, kw_only=True)
class EarlierTold:
    """What lies before the lines that are told; `before` asks for it."""

    before: str
    lines: int | None  # null: there is too much to count
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Logs:
    job_id: str
    status: Status
    attempt: int | None
    output: tuple[OutputTold, ...]
    earlier: EarlierTold | None


@dataclass(frozen=True, kw_only=True)
class Queued:
    jobs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Retried:
    job_id: str
    retry_of: str
    kept_steps: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Explained:
    job_id: str
    status: Status
    reason: str
    message: str
    fix: str | None


def life(lifecycle: Lifecycle) -> dict[str, Any]:
    """As job.json has it; its parts are encoded as they are."""
    return {**vars(lifecycle), "hops": [_hop(hop) for hop in lifecycle.hops]}


def _hop(hop: Hop) -> dict[str, Any]:
    return {name: value for name, value in vars(hop).items() if name != "route" or value is not None}
