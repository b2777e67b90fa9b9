"""How everything stands: queues, workers, figures and curves, alerts, costs, schedules, what doctor says.

What is counted and judged lives in operations; answers that take a while are made once for all who ask (`keep_s`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from farro.agents import service as agents
from farro.config.fields import Lasting
from farro.documents.constraints import Bounds
from farro.errors import InputError
from farro.jobs.times import parse_duration, timestamp
from farro.lazy_dataclass import dataclass
from farro.queue import alerts as watching
from farro.queue import schedules, workers
from farro.queue import stats as statistics
from farro.queue.catalog.charts import KEPT_S, SLOT_S
from farro.queue.catalog.index import RoleCounts
from farro.queue.catalog.rows import spelled
from farro.queue.stats import TOTAL, RoleStats
from farro.web import answers
from farro.web.endpoints import Asked, Endpoint, get, post
from farro.web.errors import Wrong
from farro.web.job_queries import loaded, spent_data
from farro.web.state import House


def about(house: House, asked: Asked) -> Any:
    catalog = house.catalog
    return {
        "name": "farro",
        "version": house.version,
        "root": house.root,
        "store": house.store_name,
        "now": timestamp(house.clock.now()),
        "started_at": house.started_at,
        "roles": list(house.store.roles()),
        "user": house.user,
        "ready": catalog.ready,
        "jobs": len(catalog),
        "loaded": len(catalog) - catalog.unread,
        "read_only": house.read_only,
    }


# --- queues ------------------------------------------------------------------------------------------------------


def queues(house: House, asked: Asked) -> Any:
    loaded(house)
    slots: dict[str | None, list[bool]] = {}
    for agent in house.store.agents():
        if agent.alive and agent.role not in workers.SUPPORT_ROLES:  # as /api/workers counts them
            slots.setdefault(agent.role, []).append(bool(agent.jobs))
    lines = queue_lines(house)
    for line in lines:
        own = slots.get(line["role"], [])
        line["workers"], line["busy"] = len(own), sum(own)
    return {"at": timestamp(house.clock.now()), "queues": lines, "total": _summed(lines)}


def queue_lines(house: House) -> list[dict[str, Any]]:
    """A line for each role, those of the root first, without its workers. Pages are told when one differs."""
    counts = house.catalog.counts()
    known = list(house.store.roles())
    names = known + sorted(role for role in counts if role not in known)
    nothing = RoleCounts()
    paused = house.store.paused()
    return [
        {
            "role": role,
            "cap": house.settings.cap_of(role) if role in known else None,
            "paused": asdict(paused[role]) if role in paused else None,
            **asdict(counts.get(role, nothing)),
        }
        for role in names
    ]


def _summed(lines: list[dict[str, Any]]) -> dict[str, Any]:
    names = [name for name in answers.Queue.__dataclass_fields__ if name not in ("role", "cap", "paused")]
    return {"role": TOTAL, "cap": None, "paused": None, **{name: sum(line[name] for line in lines) for name in names}}


# --- figures -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StatsQuery:
    since: Lasting = "1h"
    role: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Stats:
    stats: tuple[RoleStats, ...]


def stats(house: House, asked: Asked) -> Any:
    query: StatsQuery = asked.query
    window_s = parse_duration(query.since)
    if window_s <= 0:
        raise InputError("since: wants a window longer than nothing, such as 10m")
    lines = statistics.stats(house.store, house.root, now=house.clock.now(), window_s=window_s, roles=query.role)
    return {"stats": [_rounded(asdict(line)) for line in lines]}


def _rounded(line: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in line.items()}


@dataclass(frozen=True, kw_only=True)
class SeriesQuery:
    window_s: Annotated[int, Bounds(at_least=SLOT_S, at_most=KEPT_S)] = 3600
    points: Annotated[int, Bounds(at_least=1, at_most=1000)] = 60
    role: tuple[str, ...] = ()


def series(house: House, asked: Asked) -> Any:
    query: SeriesQuery = asked.query
    loaded(house)
    step_s = max(SLOT_S, -(-query.window_s // query.points) // SLOT_S * SLOT_S)
    now_ms = house.catalog.now_ms()
    end_ms = (now_ms // (SLOT_S * 1000) + 1) * SLOT_S * 1000  # with the ten seconds that are not over yet
    points = min(query.points, max(1, query.window_s // step_s))
    drawn = house.catalog.curves(end_ms, step_s, points, query.role)
    return {
        "start": spelled(end_ms - step_s * points * 1000),
        "end": spelled(end_ms),
        "step_s": step_s,
        "points": points,
        "bounded": house.catalog.unread > 0,
        "roles": drawn,
    }


# --- workers, alerts ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class WorkersQuery:
    all: bool = False


@dataclass(frozen=True, kw_only=True)
class Workers:
    workers: tuple[workers.WorkerLine, ...]


def listed_workers(house: House, asked: Asked) -> Any:
    return {"workers": [asdict(line) for line in workers.listed(house.store.agents(), everyone=asked.query.all)]}


@dataclass(frozen=True, kw_only=True)
class AlertTold:
    name: str
    firing: bool
    what: str
    value: float
    bar: float
    role: str | None
    next: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Alerts:
    firing: int
    bounded: bool
    alerts: tuple[AlertTold, ...]


def alerts(house: House, asked: Asked) -> Any:
    told = watching.alerts(house.store, house.root, house.settings, now=house.clock.now())
    return {"firing": told.firing, "bounded": told.bounded, "alerts": [asdict(alert) for alert in told.alerts]}


# --- costs -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CostsQuery:
    day: str | None = None
    since: str | None = None
    by: Literal["job", "role", "model", "day"] | None = None
    job: str | None = None


@dataclass(frozen=True, kw_only=True)
class Sums(answers.SpentTold):
    tokens: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class CostLine(Sums):
    name: str


@dataclass(frozen=True, kw_only=True)
class Budget(answers.SpentTold):
    budget: str
    key: str
    limit_usd: float
    left_usd: float | None


@dataclass(frozen=True, kw_only=True)
class CostsTold:
    job_id: str | None
    first_day: str | None
    last_day: str
    by: str
    lines: tuple[CostLine, ...]
    total: Sums
    budgets: tuple[Budget, ...]


def costs(house: House, asked: Asked) -> Any:
    query: CostsQuery = asked.query
    wanted = agents.parse_day_range(
        day=query.day, since=query.since, whole=query.job is not None, now=house.clock.now()
    )
    by = query.by or ("role" if query.job is None else "model")
    told = agents.sum_costs(house.ledger, house.store, house.root, house.settings, job=query.job, wanted=wanted, by=by)
    return {
        "job_id": told.job_id,
        "first_day": told.first_day,
        "last_day": told.last_day,
        "by": told.by,
        "lines": [{"name": line.name, **_sums(line)} for line in told.lines],
        "total": _sums(told.total),
        "budgets": [_budget(left) for left in told.budgets],
    }


def _sums(line: agents.CostSum) -> dict[str, Any]:
    return {**spent_data(line.spent), "tokens": None if line.tokens is None else line.tokens.to_json()}


def _budget(left: agents.BudgetStatus) -> dict[str, Any]:
    remains = left.left_usd
    return {
        "budget": left.name,
        "key": left.key,
        "limit_usd": round(float(left.limit_usd), 12),
        **spent_data(left.spent),
        "left_usd": None if remains is None else round(float(remains), 12),
    }


# --- schedules, doctor -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ScheduleTold:
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
class Schedules:
    schedules: tuple[ScheduleTold, ...]


def listed_schedules(house: House, asked: Asked) -> Any:
    now = house.clock.now()
    found = schedules.read(house.root, house.store.roles())
    return {"schedules": [schedules.line(house.root, entry, now) for entry in found]}


def run_schedule(house: House, asked: Asked) -> Any:
    name = asked.path["name"]
    if name not in {entry.name for entry in schedules.read(house.root, house.store.roles())}:
        raise Wrong(404, "unknown_schedule", f"no schedule {name[:60]} in {house.root}/{schedules.FOLDER}")
    found = schedules.named(house.root, house.store.roles(), name)
    return {"jobs": [schedules.fire_now(house.store, house.root, found, house.gate(False))]}


@dataclass(frozen=True, kw_only=True)
class CheckTold:
    id: str
    title: str
    verdict: Literal["ok", "warning", "failed"]
    found: str
    cause: str | None
    repair: tuple[str, ...]
    details: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Doctor:
    root: str
    strict: bool
    passed: bool
    checks: tuple[CheckTold, ...]


def doctor(house: House, asked: Asked) -> Any:
    told = house.examine()
    checks = [result.to_json() for result in told.results]
    return {"root": house.root, "strict": told.strict, "passed": told.passed, "checks": checks}


@dataclass(frozen=True, kw_only=True)
class Empty:
    """No members."""


ENDPOINTS: tuple[Endpoint, ...] = (
    get("/api", about, "What this server is, and whether it is ready.", answers.About, tag="overview"),
    get(
        "/api/queues", queues, "How many jobs of each status each role has.", answers.Queues, keep_s=0.5, tag="overview"
    ),
    get("/api/stats", stats, "How each role does.", Stats, query=StatsQuery, keep_s=5.0, tag="overview"),
    get(
        "/api/series",
        series,
        "Throughput and latency over time.",
        answers.Series,
        query=SeriesQuery,
        keep_s=2.0,
        tag="overview",
    ),
    get("/api/workers", listed_workers, "Who works here.", Workers, query=WorkersQuery, keep_s=1.0, tag="overview"),
    get("/api/alerts", alerts, "What somebody must be woken for.", Alerts, keep_s=5.0, tag="overview"),
    get("/api/costs", costs, "What agents' calls cost.", CostsTold, query=CostsQuery, keep_s=5.0, tag="overview"),
    get("/api/doctor", doctor, "What is wrong here, and what repairs it.", Doctor, keep_s=10.0, tag="overview"),
    get("/api/schedules", listed_schedules, "The schedules of this root.", Schedules, keep_s=1.0, tag="overview"),
    post(
        "/api/schedules/{name}/run",
        run_schedule,
        "Run a schedule now.",
        answers.Queued,
        body=Empty,
        status=201,
        tag="overview",
    ),
)
