"""A swarm and its commands as they are shown: made of what the orchestrator keeps, without asking anybody.

Reading the files lives in swarm_place and swarm_ledger; printing lives in cli and fronts.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from farro.jobs.times import parse_timestamp
from farro.lazy_dataclass import dataclass, field
from farro.swarm.files import Desired
from farro.swarm.ledger import Entry
from farro.swarm.lifecycle import SwarmState
from farro.swarm.plan import SwarmPlan
from farro.swarm.status import TTL_S
from farro.swarm.wire.messages import ControlSignal


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A command that is written down. `watch`: the routing keys of its confirmations."""

    correlation_id: str
    idempotency_key: str
    watch: dict[str, str]
    timeout_ms: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandView:
    """A command, and what became of it. `result`: success, error; None: it goes on."""

    signal: str
    scope: dict[str, str]  # swarmId, role, instance
    correlation_id: str  # of the first signal of it
    idempotency_key: str
    begun_at: str
    ended_at: str | None = None
    result: str | None = None
    state: str | None = None
    code: str | None = None
    message: str | None = None
    notes: str | None = None
    retryable: bool | None = None


Ended = CommandView  # of one that is over


@dataclass(frozen=True, kw_only=True, slots=True)
class ComponentView:
    role: str
    instance: str
    state: str
    enabled: bool = False
    starts: int = 0
    failure: str | None = None
    last_end: dict[str, str] | None = None  # at, how, words: when it last ended, also where it was started again
    tps: float | None = None
    staleness_s: float | None = None
    told: dict[str, Any] = field(default_factory=dict)  # what it adds to its status by itself


@dataclass(frozen=True, kw_only=True, slots=True)
class SwarmView:
    id: str
    state: str
    health: str  # Healthy, Degraded, Unknown
    reason: str | None
    watermark: str | None
    max_staleness_s: float | None
    totals: dict[str, int]  # desired, healthy, running, enabled
    components: list[ComponentView]
    queues: list[dict[str, Any]]  # name, ready, taken, consumers, deadLetters
    durations: dict[str, float]  # provision, ready, start: seconds
    failures: dict[str, int]  # by code
    recent_errors: list[dict[str, Any]]  # at, role, instance, reason, correlationId
    controller: dict[str, Any]  # instance, alive
    created_at: str
    changed_at: str
    warnings: list[str] = field(default_factory=list)


def swarm_view(
    desired: Desired, plan: SwarmPlan | None, told: Mapping[str, Any], *, alive: bool, now: datetime
) -> SwarmView:
    """`told`: what its controller last said, and when that was heard; `alive`: whether it lives."""
    data = told.get("data") or {}
    age_s = _age_s(told.get("heard_at"), now)
    gone = desired.state is SwarmState.REMOVED
    health, reason = ("Unknown", None) if gone else _health(data, age_s, alive)
    if desired.state is SwarmState.FAILED and desired.reason:
        health, reason = "Degraded", desired.reason
    staleness = told.get("max_staleness_s")
    return SwarmView(
        id=desired.swarm,
        state=str(desired.state),
        health=health,
        reason=reason,
        watermark=told.get("watermark"),
        max_staleness_s=None if staleness is None or age_s is None else round(float(staleness) + age_s, 3),
        totals={name: int(count) for name, count in (told.get("totals") or {}).items()},
        components=[] if gone else _components(plan, data.get("components") or [], age_s),
        queues=list(data.get("queues") or []),
        durations=desired.durations,
        failures=desired.failures,
        recent_errors=list(data.get("errors") or []),
        controller={"instance": desired.controller, "alive": alive},
        created_at=desired.created_at,
        changed_at=desired.changed_at,
        warnings=list(data.get("warnings") or []),
    )


def command_view(entry: Entry) -> CommandView:
    end = entry.end
    return CommandView(
        signal=entry.signal,
        scope=_scope(entry.swarm, entry.role, entry.instance),
        correlation_id=entry.correlations[0],
        idempotency_key=entry.key,
        begun_at=entry.begun_at,
        ended_at=entry.ended_at,
        result=None if end is None else "success" if end.good else "error",
        state=None if end is None else end.state,
        code=None if end is None else end.code,
        message=None if end is None else end.message,
        notes=None if end is None else end.notes,
        retryable=None if end is None or end.good else end.retryable,
    )


def waiting_view(told: ControlSignal) -> CommandView:
    return CommandView(
        signal=told.signal,
        scope=_scope(told.swarm_id, told.role, told.instance),
        correlation_id=told.correlation_id,
        idempotency_key=told.idempotency_key,
        begun_at=str(told.timestamp),
    )


def _scope(swarm: str | None, role: str | None, instance: str | None) -> dict[str, str]:
    told = {"swarmId": swarm, "role": role, "instance": instance}
    return {name: value for name, value in told.items() if value is not None}


def _health(data: Mapping[str, Any], age_s: float | None, alive: bool) -> tuple[str, str | None]:
    if age_s is None:
        return "Unknown", "its controller said nothing yet" if alive else "its controller does not run"
    if not alive:
        return "Unknown", "its controller does not run"
    if age_s > TTL_S:
        return "Unknown", f"its controller said nothing for {age_s:.0f} s"
    reason = data.get("reason")
    return str(data.get("health", "Unknown")), None if reason is None else str(reason)


def _components(plan: SwarmPlan | None, told: list[Any], age_s: float | None) -> list[ComponentView]:
    """Those of the plan, with what the controller says of them."""
    said = {line.get("instance"): line for line in told if isinstance(line, dict)}
    views = []
    for member in () if plan is None else plan.members():
        line = said.get(member.instance, {})
        stale = line.get("stalenessSec")
        views.append(
            ComponentView(
                role=member.role,
                instance=member.instance,
                state=str(line.get("state", "New")),
                enabled=bool(line.get("enabled")),
                starts=int(line.get("starts", 0)),
                failure=line.get("failure"),
                last_end=_texts(line.get("lastEnd")),
                tps=line.get("tps"),
                staleness_s=None if stale is None else round(float(stale) + (age_s or 0.0), 3),
                told=dict(line.get("told") or {}),
            )
        )
    return views


def _texts(told: Any) -> dict[str, str] | None:
    return {str(name): str(value) for name, value in told.items()} if isinstance(told, dict) else None


def _age_s(at: Any, now: datetime) -> float | None:
    if not isinstance(at, str):
        return None
    return max(0.0, (now - parse_timestamp(at)).total_seconds())
