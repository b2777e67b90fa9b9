"""Report on the whole root: queues, roles, figures, workers, alerts, costs, schedules, doctor, metrics; pause queues.

Responses that take a while are cached for a moment (`cache_s`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from starlette.responses import Response

from farro.agents import service as agents
from farro.config.settings import Lasting, RoleSettings
from farro.documents.constraints import Bounds, Length
from farro.errors import FarroError, InputError
from farro.jobs.times import parse_duration, timestamp
from farro.lazy_dataclass import dataclass
from farro.queue import alerts as alert_rules
from farro.queue import queues, schedules
from farro.queue import stats as statistics
from farro.queue.catalog.charts import KEPT_S, SLOT_S
from farro.queue.catalog.index import RoleCounts
from farro.queue.catalog.rows import spelled
from farro.queue.stats import TOTAL, RoleStats
from farro.web import responses
from farro.web.errors import HttpError
from farro.web.job_queries import require_loaded, spent_data
from farro.web.request_handling import ApiRequest, NoFields, Routes, WebState

routes = Routes("overview")
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STATES = ("queued", "delayed", "waiting", "in_progress", "succeeded", "failed", "stale", "killed")


@routes.get("/api", "The server's version and root, and whether it is ready.", responses.AboutResponse)
def show_about(state: WebState, request: ApiRequest) -> Any:
    catalog = state.catalog
    return {
        "name": "farro",
        "version": state.version,
        "root": state.root,
        "store": state.store_name,
        "now": timestamp(state.clock.now()),
        "started_at": state.started_at,
        "roles": list(state.store.roles()),
        "user": state.user,
        "ready": catalog.ready,
        "jobs": len(catalog),
        "loaded": len(catalog) - catalog.unread,
        "read_only": state.read_only,
    }


# --- queues ----------------------------------------------------------------------------------------------------------


@routes.get("/api/queues", "How many jobs of each status each role has.", responses.QueuesResponse, cache_s=0.5)
def list_queues(state: WebState, request: ApiRequest) -> Any:
    require_loaded(state)
    slots: dict[str | None, list[bool]] = {}
    for agent in state.store.agents():
        if agent.alive and agent.role not in queues.SUPPORT_ROLES:  # counted as /api/workers does
            slots.setdefault(agent.role, []).append(bool(agent.jobs))
    lines = queue_lines(state)
    for line in lines:
        own = slots.get(line["role"], [])
        line["workers"], line["busy"] = len(own), sum(own)
    return {"at": timestamp(state.clock.now()), "queues": lines, "total": _total(lines)}


def queue_lines(state: WebState) -> list[dict[str, Any]]:
    """Count the jobs of each role, configured roles first. Pages get an event when a count changes."""
    counts = state.catalog.counts()
    known = list(state.store.roles())
    names = known + sorted(role for role in counts if role not in known)
    nothing = RoleCounts()
    paused = state.store.paused()
    return [
        {
            "role": role,
            "cap": state.settings.cap_of(role) if role in known else None,
            "paused": paused.get(role),
            **asdict(counts.get(role, nothing)),
        }
        for role in names
    ]


def _total(lines: list[dict[str, Any]]) -> dict[str, Any]:
    names = [name for name in responses.QueueData.__dataclass_fields__ if name not in ("role", "cap", "paused")]
    return {"role": TOTAL, "cap": None, "paused": None, **{name: sum(line[name] for line in lines) for name in names}}


# --- figures ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StatsQuery:
    since: Lasting = "1h"
    role: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StatsResponse:
    stats: tuple[RoleStats, ...]


@routes.get(
    "/api/stats", "Throughput, latency and failures of each role.", StatsResponse, query=StatsQuery, cache_s=5.0
)
def list_stats(state: WebState, request: ApiRequest) -> Any:
    query: StatsQuery = request.query
    window_s = parse_duration(query.since)
    if window_s <= 0:
        raise InputError("since: must be longer than 0, such as 10m")
    lines = statistics.stats(state.store, now=state.clock.now(), window_s=window_s, roles=query.role)
    return {"stats": [line.to_data() for line in lines]}


@dataclass(frozen=True, kw_only=True)
class SeriesQuery:
    window_s: Annotated[int, Bounds(at_least=SLOT_S, at_most=KEPT_S)] = 3600
    points: Annotated[int, Bounds(at_least=1, at_most=1000)] = 60
    role: tuple[str, ...] = ()


@routes.get(
    "/api/series", "Throughput and latency over time.", responses.SeriesResponse, query=SeriesQuery, cache_s=2.0
)
def show_series(state: WebState, request: ApiRequest) -> Any:
    query: SeriesQuery = request.query
    require_loaded(state)
    step_s = max(SLOT_S, -(-query.window_s // query.points) // SLOT_S * SLOT_S)
    now_ms = state.catalog.now_ms()
    end_ms = (now_ms // (SLOT_S * 1000) + 1) * SLOT_S * 1000  # includes the current slot of ten seconds
    points = min(query.points, max(1, query.window_s // step_s))
    curves = state.catalog.curves(end_ms, step_s, points, query.role)
    return {
        "start": spelled(end_ms - step_s * points * 1000),
        "end": spelled(end_ms),
        "step_s": step_s,
        "points": points,
        "bounded": state.catalog.unread > 0,
        "roles": curves,
    }


# --- workers, alerts -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class WorkersQuery:
    all: bool = False


@dataclass(frozen=True, kw_only=True)
class WorkersResponse:
    workers: tuple[queues.WorkerLine, ...]


@routes.get("/api/workers", "The workers of this root.", WorkersResponse, query=WorkersQuery, cache_s=1.0)
def list_workers(state: WebState, request: ApiRequest) -> Any:
    return {"workers": queues.listed(state.store.agents(), everyone=request.query.all)}


@dataclass(frozen=True, kw_only=True)
class AlertData:
    name: str
    firing: bool
    what: str
    value: float
    bar: float
    role: str | None
    next: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AlertsResponse:
    firing: int
    bounded: bool
    alerts: tuple[AlertData, ...]


@routes.get("/api/alerts", "The alert rules, and which of them fire.", AlertsResponse, cache_s=5.0)
def list_alerts(state: WebState, request: ApiRequest) -> Any:
    result = alert_rules.alerts(state.store, state.settings, now=state.clock.now())
    return {"firing": result.firing, "bounded": result.bounded, "alerts": result.alerts}


# --- costs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CostsQuery:
    day: str | None = None
    since: str | None = None
    by: Literal["job", "role", "model", "day"] | None = None
    job: str | None = None


@dataclass(frozen=True, kw_only=True)
class CostSumData(responses.SpentData):
    tokens: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class CostLineData(CostSumData):
    name: str


@dataclass(frozen=True, kw_only=True)
class BudgetData(responses.SpentData):
    budget: str
    key: str
    limit_usd: float
    left_usd: float | None


@dataclass(frozen=True, kw_only=True)
class CostsResponse:
    job_id: str | None
    first_day: str | None
    last_day: str
    by: str
    lines: tuple[CostLineData, ...]
    total: CostSumData
    budgets: tuple[BudgetData, ...]


@routes.get("/api/costs", "The costs of model calls.", CostsResponse, query=CostsQuery, cache_s=5.0)
def sum_costs(state: WebState, request: ApiRequest) -> Any:
    query: CostsQuery = request.query
    wanted = agents.parse_day_range(
        day=query.day, since=query.since, whole=query.job is not None, now=state.clock.now()
    )
    by = query.by or ("role" if query.job is None else "model")
    result = agents.sum_costs(state.ledger, state.store, state.settings, job=query.job, wanted=wanted, by=by)
    return {
        "job_id": result.job_id,
        "first_day": result.first_day,
        "last_day": result.last_day,
        "by": result.by,
        "lines": [{"name": line.name, **_cost_data(line)} for line in result.lines],
        "total": _cost_data(result.total),
        "budgets": [_budget_data(left) for left in result.budgets],
    }


def _cost_data(line: agents.CostSum) -> dict[str, Any]:
    return {**spent_data(line.spent), "tokens": None if line.tokens is None else line.tokens.to_json()}


def _budget_data(left: agents.BudgetStatus) -> dict[str, Any]:
    remains = left.left_usd
    return {
        "budget": left.name,
        "key": left.key,
        "limit_usd": round(float(left.limit_usd), 12),
        **spent_data(left.spent),
        "left_usd": None if remains is None else round(float(remains), 12),
    }


# --- doctor, schedules -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CheckData:
    id: str
    title: str
    verdict: Literal["ok", "warning", "failed"]
    found: str
    cause: str | None
    repair: tuple[str, ...]
    details: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DoctorResponse:
    root: str
    strict: bool
    passed: bool
    checks: tuple[CheckData, ...]


@routes.get(
    "/api/doctor", "The problems that farro doctor finds, and how to repair them.", DoctorResponse, cache_s=10.0
)
def run_doctor(state: WebState, request: ApiRequest) -> Any:
    result = state.examine()
    checks = [check.to_json() for check in result.results]
    return {"root": state.root, "strict": result.strict, "passed": result.passed, "checks": checks}


@dataclass(frozen=True, kw_only=True)
class ScheduleData:
    name: str
    file: str
    cron: str | None
    zone: str | None
    missed: str | None
    role: str | None
    enabled: bool
    next: str | None
    last: str | None
    last_job: str | None
    problems: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SchedulesResponse:
    schedules: tuple[ScheduleData, ...]


@routes.get("/api/schedules", "The schedules of this root.", SchedulesResponse, cache_s=1.0)
def list_schedules(state: WebState, request: ApiRequest) -> Any:
    now = state.clock.now()
    found = schedules.read(state.root, state.store.roles())
    return {"schedules": [schedules.line(state.root, entry, now) for entry in found]}


@routes.post("/api/schedules/{name}/run", "Run a schedule now.", responses.EnqueueResponse, body=NoFields, status=201)
def run_schedule(state: WebState, request: ApiRequest) -> Any:
    name = request.path["name"]
    if name not in {entry.name for entry in schedules.read(state.root, state.store.roles())}:
        raise HttpError(404, "unknown_schedule", f"no schedule {name[:60]} in {state.root}/{schedules.FOLDER}")
    found = schedules.named(state.root, state.store.roles(), name)
    return {"jobs": [schedules.fire_now(state.store, found, state.policy)]}


# --- roles, and pausing their queues ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RoleData:
    role: str
    description: str
    cap: int | None
    provider: str | None
    model: str | None
    read_only: bool
    network: bool | tuple[str, ...]
    budget_usd: float | None


@dataclass(frozen=True, kw_only=True)
class RolesResponse:
    roles: tuple[RoleData, ...]


@routes.get("/api/roles", "The roles and their settings.", RolesResponse)
def list_roles(state: WebState, request: ApiRequest) -> Any:
    return {"roles": [_role_data(state, role) for role in state.store.roles()]}


def _role_data(state: WebState, role: str) -> RoleData:
    own = state.settings.roles.get(role) or RoleSettings()
    return RoleData(
        role=role,
        description=own.description,
        cap=state.settings.cap_of(role),
        provider=own.provider,
        model=own.model,
        read_only=own.read_only,
        network=own.network,
        budget_usd=own.budget_usd,
    )


@dataclass(frozen=True, kw_only=True)
class PauseBody:
    why: Annotated[str, Length(queues.LONGEST_WHY)] | None = None


@dataclass(frozen=True, kw_only=True)
class PauseResponse:
    role: str
    changed: bool  # false: the queue was in that state already
    paused: responses.PauseData | None


@routes.post("/api/queues/{queue}/pause", "Stop giving out jobs of a queue.", PauseResponse, body=PauseBody)
def pause_queue(state: WebState, request: ApiRequest) -> Any:
    role = _queue_role(state, request)
    changed = role not in state.store.paused()
    why = (request.body.why or "").strip() or None
    paused = queues.pause(state.store, [role], by=state.person, why=why, clock=state.clock).get(role)
    return {"role": role, "changed": changed, "paused": paused}


@routes.post("/api/queues/{queue}/resume", "Give out jobs of a queue again.", PauseResponse, body=NoFields)
def resume_queue(state: WebState, request: ApiRequest) -> Any:
    role = _queue_role(state, request)
    return {"role": role, "changed": bool(queues.resume(state.store, [role], by=state.person)), "paused": None}


def _queue_role(state: WebState, request: ApiRequest) -> str:
    role = request.path["queue"]
    if role not in state.store.roles():
        raise HttpError(404, "unknown_role", f"no role {role[:60]} here; GET /api/roles lists the roles")
    return role


# --- metrics ---------------------------------------------------------------------------------------------------------


class MetricsCollector:
    """Collect the metrics at each scrape."""

    def __init__(self, state: WebState) -> None:
        self._state = state

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        state, catalog = self._state, self._state.catalog
        yield GaugeMetricFamily("farro_up", "1 once all jobs are counted", value=float(catalog.ready))
        jobs = GaugeMetricFamily("farro_jobs", "jobs by role and state", labels=["role", "state"])
        caps = GaugeMetricFamily("farro_queue_cap", "how many jobs a role may have", labels=["role"])
        for line in queue_lines(state):
            for job_state in _STATES:
                jobs.add_metric([line["role"], job_state], line[job_state])
            if line["cap"] is not None:
                caps.add_metric([line["role"]], line["cap"])
        yield jobs
        yield caps
        ended = CounterMetricFamily("farro_jobs_ended", "jobs that ended", labels=["role", "status"])
        seconds = CounterMetricFamily("farro_job_seconds", "seconds from creation to end, summed", labels=["role"])
        wait_seconds = CounterMetricFamily(
            "farro_job_wait_seconds", "seconds to the first claim, summed", labels=["role"]
        )
        for role, sums in catalog.sums().items():
            for status, count in sums.ended.items():
                ended.add_metric([role, status], count)
            seconds.add_metric([role], sums.seconds)
            wait_seconds.add_metric([role], sums.waited)
        yield from (ended, seconds, wait_seconds)
        workers = GaugeMetricFamily("farro_workers", "slots of workers", labels=["role", "state"])
        for (role, job_state), count in self._workers().items():
            workers.add_metric([role, job_state], count)
        yield workers

    def _workers(self) -> dict[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        for agent in self._state.store.agents():
            if agent.role is not None:
                job_state = "dead" if not agent.alive else "busy" if agent.jobs else "idle"
                found[agent.role, job_state] = found.get((agent.role, job_state), 0) + 1
        return found


@routes.get("/metrics", "Metrics for Prometheus.", media_type="text/plain", cache_s=1.0)
def show_metrics(state: WebState, request: ApiRequest) -> Response:
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ImportError:
        message = "metrics need prometheus-client; install it with: pip install 'farro[metrics]'"
        raise HttpError(501, "no_metrics", message) from None
    registry = CollectorRegistry(auto_describe=False)
    try:
        registry.register(MetricsCollector(state))
        return Response(generate_latest(registry), media_type=MEDIA_TYPE)
    except (FarroError, OSError) as error:
        raise HttpError(503, "storage_trouble", str(error)) from error
