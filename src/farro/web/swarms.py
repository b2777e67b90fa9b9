"""Show swarms and the ledger of their commands; accept new commands.

A command is written to a file for the orchestrator, which sends it on the bus; the response is 202.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from farro.errors import FarroError, InputError
from farro.lazy_dataclass import dataclass, field
from farro.swarm import service as swarms
from farro.swarm.service import CommandRequest, Signal
from farro.web.errors import HttpError
from farro.web.request_handling import ApiRequest, Routes, WebState

routes = Routes("swarms")
_COMPONENT = "/api/components/{role}/{instance}"


@dataclass(frozen=True, kw_only=True)
class ComponentData:
    role: str
    instance: str
    state: str
    enabled: bool
    starts: int
    failure: str | None
    tps: float | None
    staleness_s: float | None


@dataclass(frozen=True, kw_only=True)
class SwarmResponse:
    id: str
    state: str
    health: str
    reason: str | None
    watermark: str | None
    max_staleness_s: float | None
    totals: Mapping[str, int]
    components: tuple[ComponentData, ...]
    queues: tuple[dict[str, Any], ...]
    durations: Mapping[str, float]
    failures: Mapping[str, int]
    recent_errors: tuple[dict[str, Any], ...]
    controller: Mapping[str, Any]
    created_at: str
    changed_at: str
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SwarmsResponse:
    swarms: tuple[SwarmResponse, ...]
    orchestrator: bool


@dataclass(frozen=True, kw_only=True)
class CommandData:
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
class CommandsResponse:
    commands: tuple[CommandData, ...]


@dataclass(frozen=True, kw_only=True)
class SwarmPlanResponse:
    plan: Mapping[str, Any] | None
    configured: Mapping[str, Mapping[str, Any]]  # by instance: the members of its config that updates changed


@dataclass(frozen=True, kw_only=True)
class AcceptedResponse:
    correlationId: str  # noqa: N815 - seed 003 spells it so
    idempotencyKey: str  # noqa: N815
    watch: Mapping[str, str]
    timeoutMs: int  # noqa: N815


def _folder(state: WebState) -> str:
    return swarms.folder(state.root)


@routes.get("/api/swarms", "The swarms and their health.", SwarmsResponse, cache_s=0.5)
def list_swarms(state: WebState, request: ApiRequest) -> Any:
    folder = _folder(state)
    found = swarms.swarms(folder, clock=state.clock)
    return {"swarms": found, "orchestrator": swarms.orchestrator_runs(folder)}


@routes.get("/api/swarms/{swarm}", "One swarm.", SwarmResponse, cache_s=0.5)
def show_swarm(state: WebState, request: ApiRequest) -> Any:
    return _find_swarm(state, request.path["swarm"])


def _find_swarm(state: WebState, swarm: str) -> swarms.SwarmView:
    swarms.check_swarm(swarm)
    try:
        return swarms.swarm(_folder(state), swarm, state.clock)
    except InputError as error:
        raise HttpError(404, "unknown_swarm", str(error)) from error


@routes.get("/api/swarms/{swarm}/commands", "The commands to a swarm and their results.", CommandsResponse)
def list_commands(state: WebState, request: ApiRequest) -> Any:
    show_swarm(state, request)
    return {"commands": swarms.commands(_folder(state), request.path["swarm"])}


@routes.get("/api/swarms/{swarm}/plan", "A swarm's plan, and configuration changes since.", SwarmPlanResponse)
def show_plan(state: WebState, request: ApiRequest) -> Any:
    show_swarm(state, request)
    files, swarm = swarms.files(state.root, state.settings), request.path["swarm"]
    return {"plan": files.plan_data(swarm), "configured": files.config_updates(swarm)}


@dataclass(frozen=True, kw_only=True)
class CommandBody:
    idempotencyKey: str | None = None  # noqa: N815


@dataclass(frozen=True, kw_only=True)
class TemplateBody(CommandBody):
    """The plan, as `plan` or as the body itself."""

    takes_more: ClassVar[bool] = True
    plan: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class ConfigBody(CommandBody):
    enabled: bool | None = None
    config: dict[str, Any] = field(default_factory=dict)
    swarm: str | None = None


@dataclass(frozen=True, kw_only=True)
class StatusRequestBody(CommandBody):
    swarm: str | None = None


def send_command(signal: Signal, state: WebState, request: ApiRequest) -> Any:
    args = None
    if signal is Signal.TEMPLATE:
        assert request.document is not None
        whole = {name: value for name, value in request.document.data.items() if name != "idempotencyKey"}
        args = whole if request.body.plan is None else dict(request.body.plan)
    return _send(state, signal, request.path["swarm"], args, request.body.idempotencyKey)


for _word, _signal, _summary, _body in (
    ("create", Signal.CREATE, "Create a swarm.", CommandBody),
    ("template", Signal.TEMPLATE, "Give a swarm its plan.", TemplateBody),
    ("start", Signal.START, "Start a swarm's components.", CommandBody),
    ("stop", Signal.STOP, "Stop a swarm's components.", CommandBody),
    ("remove", Signal.REMOVE, "Remove a swarm.", CommandBody),
):
    _command = routes.post(f"/api/swarms/{{swarm}}/{_word}", _summary, AcceptedResponse, body=_body, status=202)
    _command(partial(send_command, _signal))


@routes.post(
    f"{_COMPONENT}/config", "Change a component's configuration.", AcceptedResponse, body=ConfigBody, status=202
)
def change_config(state: WebState, request: ApiRequest) -> Any:
    body: ConfigBody = request.body
    args = {**body.config, **({} if body.enabled is None else {"enabled": body.enabled})}
    if not args:
        raise InputError("say what to change: enabled, or config")
    return _send(state, Signal.CONFIG, body.swarm, args, body.idempotencyKey, request.path)


@routes.post(
    f"{_COMPONENT}/status-request",
    "Request a status message from a component.",
    AcceptedResponse,
    body=StatusRequestBody,
    status=202,
)
def request_status(state: WebState, request: ApiRequest) -> Any:
    return _send(state, Signal.STATUS, request.body.swarm, None, request.body.idempotencyKey, request.path)


def _send(
    state: WebState,
    signal: Signal,
    swarm: str | None,
    args: dict[str, Any] | None,
    key: str | None,
    component: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    if swarm is not None and signal is not Signal.CREATE:
        _find_swarm(state, swarm)
    request = CommandRequest(
        signal=signal,
        swarm=swarm,
        args=args,
        role=None if component is None else component["role"],
        instance=None if component is None else component["instance"],
        idempotency_key=key,
        origin=state.person,
    )
    accepted = swarms.submit(_folder(state), request, durable=state.settings.durability == "power")
    try:
        state.ensure_orchestrator()
    except FarroError as error:  # the command is stored, and an orchestrator started later will find it
        state.log("error", "no orchestrator could be started", {"why": str(error)})
    return {
        "correlationId": accepted.correlation_id,
        "idempotencyKey": accepted.idempotency_key,
        "watch": accepted.watch,
        "timeoutMs": accepted.timeout_ms,
    }
