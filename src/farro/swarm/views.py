"""Swarms and their commands as they are shown, read from the files that the orchestrator keeps.

`folder` is the folder swarms/ of a root. No function here writes or uses the bus.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from farro.errors import InputError
from farro.host import leases
from farro.host.clock import Clock, SystemClock
from farro.jobs.times import parse_timestamp
from farro.lazy_dataclass import dataclass, field
from farro.swarm import ledger
from farro.swarm.files import DesiredState, SwarmFiles, check_swarm
from farro.swarm.ledger import LedgerEntry
from farro.swarm.lifecycle import TTL_S, SwarmState
from farro.swarm.plan import SwarmPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandView:
    """A command and its outcome. `result` is success or error; None while it is in progress."""

    signal: str
    scope: dict[str, str]  # swarmId, role, instance
    correlation_id: str  # of its first signal
    idempotency_key: str
    begun_at: str
    ended_at: str | None = None
    result: str | None = None
    state: str | None = None
    code: str | None = None
    message: str | None = None
    notes: str | None = None
    retryable: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ComponentView:
    role: str
    instance: str
    state: str
    enabled: bool = False
    starts: int = 0
    failure: str | None = None
    last_end: dict[str, str] | None = None  # at, how, words: its last end, even if it was started again
    tps: float | None = None
    staleness_s: float | None = None
    told: dict[str, Any] = field(default_factory=dict)  # what the component itself adds to its status


@dataclass(frozen=True, kw_only=True, slots=True)
class SwarmView:
    id: str
    state: str
    health: str  # Healthy, Degraded, Unknown
    reason: str | None
    watermark: str | None
    max_staleness_s: float | None
    totals: dict[str, int]  # total, desired (the same), healthy, running, enabled
    components: list[ComponentView]
    queues: list[dict[str, Any]]  # name, ready, taken, consumers, deadLetters
    durations: dict[str, float]  # provision, ready, start: seconds
    failures: dict[str, int]  # by code
    recent_errors: list[dict[str, Any]]  # at, role, instance, reason, correlationId
    controller: dict[str, Any]  # instance, alive
    created_at: str
    changed_at: str
    warnings: list[str] = field(default_factory=list)


# --- queries ---


def swarm(folder: str, name: str, clock: Clock | None = None) -> SwarmView:
    """Show one swarm. Raises InputError if it does not exist."""
    files, clock = SwarmFiles(folder), clock or SystemClock()
    desired = existing(files, name)
    alive = leases.is_held(f"{files.swarm_folder(name)}/.lease")
    return _swarm_view(desired, files.plan(name), files.status(name) or {}, alive=alive, now=clock.now())


def swarms(folder: str, *, removed: bool = False, clock: Clock | None = None) -> list[SwarmView]:
    """Show all swarms by name; removed ones only if `removed`."""
    views = []
    for name in SwarmFiles(folder).swarms():
        with contextlib.suppress(InputError):  # a folder without a desired state is not a swarm
            views.append(swarm(folder, name, clock))
    return [view for view in views if removed or view.state != SwarmState.REMOVED]


def command(folder: str, correlation_id: str) -> CommandView | None:
    """Show one command; None if the orchestrator has not taken it yet, or has forgotten it."""
    for entry in reversed(list(ledger.read(SwarmFiles(folder).ledger).values())):
        if correlation_id in entry.correlations:
            return _command_view(entry)
    return None


def commands(folder: str, name: str) -> list[CommandView]:
    """Show the commands of one swarm and its components, oldest first; those not yet taken come last."""
    files = SwarmFiles(folder)
    entries = ledger.read(files.ledger).values()
    views = [_command_view(entry) for entry in entries if entry.swarm == name]
    taken = {correlation for entry in entries for correlation in entry.correlations}
    for _, signal in files.pending_requests():
        if signal is not None and signal.swarm_id == name and signal.correlation_id not in taken:
            views.append(_command_view(ledger.entry_of(signal, str(signal.timestamp))))
    return views


def orchestrator_runs(folder: str) -> bool:
    return leases.is_held(SwarmFiles(folder).lease)


def existing(files: SwarmFiles, name: str) -> DesiredState:
    """Read the desired state of a swarm. Raises InputError if the swarm does not exist."""
    found = files.desired(check_swarm(name))
    if found is None:
        raise InputError(unknown_swarm(files, name))
    return found


def is_there(files: SwarmFiles, name: str) -> bool:
    """Return whether a swarm was created, and not removed since."""
    desired = files.desired(name)
    return desired is not None and desired.state is not SwarmState.REMOVED


def unknown_swarm(files: SwarmFiles, name: str) -> str:
    """Return the error text for a swarm that does not exist."""
    there = [other for other in files.swarms() if is_there(files, other)]
    return f"there is no swarm {name}; " + (
        f"known: {', '.join(there)}" if there else f"make it with `farro swarm create {name} --plan FILE`"
    )


# --- views ---


def _swarm_view(
    desired: DesiredState, plan: SwarmPlan | None, status: Mapping[str, Any], *, alive: bool, now: datetime
) -> SwarmView:
    """`status` is the last one of the controller; `alive` says whether the controller runs."""
    data = status.get("data") or {}
    age_s = _age_s(status.get("heard_at"), now)
    gone = desired.state is SwarmState.REMOVED
    health, reason = ("Unknown", None) if gone else _health(data, age_s, alive)
    if desired.state is SwarmState.FAILED and desired.reason:
        health, reason = "Degraded", desired.reason
    staleness = status.get("max_staleness_s")
    return SwarmView(
        id=desired.swarm,
        state=str(desired.state),
        health=health,
        reason=reason,
        watermark=status.get("watermark"),
        max_staleness_s=None if staleness is None or age_s is None else round(float(staleness) + age_s, 3),
        totals={name: int(count) for name, count in (status.get("totals") or {}).items()},
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


def _command_view(entry: LedgerEntry) -> CommandView:
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


def _scope(swarm: str | None, role: str | None, instance: str | None) -> dict[str, str]:
    scope = {"swarmId": swarm, "role": role, "instance": instance}
    return {name: value for name, value in scope.items() if value is not None}


def _health(data: Mapping[str, Any], age_s: float | None, alive: bool) -> tuple[str, str | None]:
    if age_s is None:
        return "Unknown", "its controller sent no status yet" if alive else "its controller does not run"
    if not alive:
        return "Unknown", "its controller does not run"
    if age_s > TTL_S:
        return "Unknown", f"its controller sent no status for {age_s:.0f} s"
    reason = data.get("reason")
    return str(data.get("health", "Unknown")), None if reason is None else str(reason)


def _components(plan: SwarmPlan | None, reported: list[Any], age_s: float | None) -> list[ComponentView]:
    """Show the components of the plan, with what the controller reported of each."""
    lines = {line.get("instance"): line for line in reported if isinstance(line, dict)}
    views = []
    for member in () if plan is None else plan.members():
        line = lines.get(member.instance, {})
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


def _texts(value: Any) -> dict[str, str] | None:
    return {str(name): str(text) for name, text in value.items()} if isinstance(value, dict) else None


def _age_s(at: Any, now: datetime) -> float | None:
    if not isinstance(at, str):
        return None
    return max(0.0, (now - parse_timestamp(at)).total_seconds())
