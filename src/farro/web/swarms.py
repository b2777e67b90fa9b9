"""Swarms: how each does, the ledger of its commands, and asking for more. What is asked for is answered with 202.

Nobody here speaks on the bus: a command is written down (operations.swarms), and the orchestrator carries it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, ClassVar

from farro.errors import FarroError, InputError
from farro.lazy_dataclass import dataclass, field
from farro.swarm import service as swarms
from farro.swarm.service import CommandRequest, Signal
from farro.web.endpoints import Asked, Endpoint, get, post
from farro.web.errors import Wrong
from farro.web.state import House


@dataclass(frozen=True, kw_only=True)
class ComponentTold:
    role: str
    instance: str
    state: str
    enabled: bool
    starts: int
    failure: str | None
    tps: float | None
    staleness_s: float | None


@dataclass(frozen=True, kw_only=True)
class SwarmTold:
    id: str
    state: str
    health: str
    reason: str | None
    watermark: str | None
    max_staleness_s: float | None
    totals: Mapping[str, int]
    components: tuple[ComponentTold, ...]
    queues: tuple[dict[str, Any], ...]
    durations: Mapping[str, float]
    failures: Mapping[str, int]
    recent_errors: tuple[dict[str, Any], ...]
    controller: Mapping[str, Any]
    created_at: str
    changed_at: str
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Swarms:
    swarms: tuple[SwarmTold, ...]
    orchestrator: bool


@dataclass(frozen=True, kw_only=True)
class CommandTold:
    signal: str
    scope: Mapping[str, str]
    correlation_id: str
    idempotency_key: str
    begun_at: str
    ended_at: str | None
    result: str | None
    state: str | None
    code: str | None
    message: str | None
    notes: str | None
    retryable: bool | None


@dataclass(frozen=True, kw_only=True)
class Commands:
    commands: tuple[CommandTold, ...]


@dataclass(frozen=True, kw_only=True)
class SwarmPlanTold:
    plan: Mapping[str, Any] | None
    configured: Mapping[str, Mapping[str, Any]]  # by instance: what updates changed of its config since the plan


@dataclass(frozen=True, kw_only=True)
class AskedTold:
    correlationId: str  # noqa: N815 - seed 003 spells it so
    idempotencyKey: str  # noqa: N815
    watch: Mapping[str, str]
    timeoutMs: int  # noqa: N815


def _place(house: House) -> str:
    return swarms.folder(house.root)


def listed(house: House, asked: Asked) -> Any:
    place = _place(house)
    found = [asdict(view) for view in swarms.swarms(place, clock=house.clock)]
    return {"swarms": found, "orchestrator": swarms.orchestrator_runs(place)}


def shown(house: House, asked: Asked) -> Any:
    return asdict(_there(house, asked.path["swarm"]))


def _there(house: House, swarm: str) -> swarms.SwarmView:
    swarms.check_swarm(swarm)
    try:
        return swarms.swarm(_place(house), swarm, house.clock)
    except InputError as error:
        raise Wrong(404, "unknown_swarm", str(error)) from error


def commands(house: House, asked: Asked) -> Any:
    shown(house, asked)
    return {"commands": [asdict(view) for view in swarms.commands(_place(house), asked.path["swarm"])]}


def plan(house: House, asked: Asked) -> Any:
    shown(house, asked)
    files, swarm = swarms.files(house.root, house.settings), asked.path["swarm"]
    return {"plan": files.plan_data(swarm), "configured": files.config_updates(swarm)}


@dataclass(frozen=True, kw_only=True)
class Wish:
    idempotencyKey: str | None = None  # noqa: N815


@dataclass(frozen=True, kw_only=True)
class PlanWish(Wish):
    """The plan, as `plan` or as the body itself."""

    takes_more: ClassVar[bool] = True
    plan: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class ConfigWish(Wish):
    enabled: bool | None = None
    config: dict[str, Any] = field(default_factory=dict)
    swarm: str | None = None


@dataclass(frozen=True, kw_only=True)
class StatusWish(Wish):
    swarm: str | None = None


def ask(signal: Signal, house: House, asked: Asked) -> Any:
    args = None
    if signal is Signal.TEMPLATE:
        assert asked.document is not None
        whole = {name: value for name, value in asked.document.data.items() if name != "idempotencyKey"}
        args = whole if asked.body.plan is None else dict(asked.body.plan)
    return _asked(house, signal, asked.path["swarm"], args, asked.body.idempotencyKey)


def config(house: House, asked: Asked) -> Any:
    body: ConfigWish = asked.body
    args = {**body.config, **({} if body.enabled is None else {"enabled": body.enabled})}
    if not args:
        raise InputError("say what shall change: enabled, or config")
    return _asked(house, Signal.CONFIG, body.swarm, args, body.idempotencyKey, asked.path)


def request_status(house: House, asked: Asked) -> Any:
    return _asked(house, Signal.STATUS, asked.body.swarm, None, asked.body.idempotencyKey, asked.path)


def _asked(
    house: House,
    signal: Signal,
    swarm: str | None,
    args: dict[str, Any] | None,
    key: str | None,
    component: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    if swarm is not None and signal is not Signal.CREATE:
        _there(house, swarm)
    request = CommandRequest(
        signal=signal,
        swarm=swarm,
        args=args,
        role=None if component is None else component["role"],
        instance=None if component is None else component["instance"],
        idempotency_key=key,
        origin=house.person,
    )
    told = swarms.submit(_place(house), request, durable=house.settings.durability == "power")
    try:
        house.orchestrate()
    except FarroError as error:  # it is written down, and waits for one
        house.log("error", "no orchestrator could be started", {"why": str(error)})
    return {
        "correlationId": told.correlation_id,
        "idempotencyKey": told.idempotency_key,
        "watch": told.watch,
        "timeoutMs": told.timeout_ms,
    }


def _verb(word: str, signal: Signal, summary: str, body: type = Wish) -> Endpoint:
    done = partial(ask, signal)
    return post(f"/api/swarms/{{swarm}}/{word}", done, summary, AskedTold, body=body, status=202, tag="swarms")


_COMPONENT = "/api/components/{role}/{instance}"
ENDPOINTS: tuple[Endpoint, ...] = (
    get("/api/swarms", listed, "The swarms, and how each does.", Swarms, keep_s=0.5, tag="swarms"),
    get("/api/swarms/{swarm}", shown, "One swarm.", SwarmTold, keep_s=0.5, tag="swarms"),
    get("/api/swarms/{swarm}/commands", commands, "What was asked of it, and the ends.", Commands, tag="swarms"),
    get("/api/swarms/{swarm}/plan", plan, "Its plan, and what was configured since.", SwarmPlanTold, tag="swarms"),
    _verb("create", Signal.CREATE, "Make a swarm."),
    _verb("template", Signal.TEMPLATE, "Give it a plan.", PlanWish),
    _verb("start", Signal.START, "Let its components work."),
    _verb("stop", Signal.STOP, "Let them stop working."),
    _verb("remove", Signal.REMOVE, "Remove it."),
    post(f"{_COMPONENT}/config", config, "Change a component.", AskedTold, body=ConfigWish, status=202, tag="swarms"),
    post(
        f"{_COMPONENT}/status-request",
        request_status,
        "Have a component say how it does.",
        AskedTold,
        body=StatusWish,
        status=202,
        tag="swarms",
    ),
)
