"""Build the AsyncAPI 3 document of the messages of swarms from their classes; schemas.py writes it.
[test_the_asyncapi_document_matches_the_message_classes]"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from farro.documents import json_schema
from farro.swarm import lifecycle
from farro.swarm.wire import messages, names
from farro.swarm.wire.names import Signal

VERSION = "1.0.0"
FILE = "asyncapi.json"
Action = Literal["send", "receive"]
Who = Literal["orchestrator", "controller", "component"]

SHAPES: Mapping[str, Any] = {
    "ControlSignal": messages.ControlSignal,
    "Ready": messages.Ready,
    "Error": messages.Error,
    "Duplicate": messages.Duplicate,
    "Warning": messages.Warning,
    "Status": messages.StatusReport,
}
_MEANING = {
    "ControlSignal": "One shape for all signals; args depend on the signal",
    "Ready": "The command had its effect, which was observed",
    "Error": "The command failed; everything that exists was kept",
    "Duplicate": "A signal or its command was sent again, and nothing was done",
    "Warning": "The command succeeded, but with a note for people, such as an order that is a heuristic",
    "Status": "The status of a component, or of a swarm by its controller",
    "Item": "A work item: any JSON",
}
_PARAMETERS = {
    "swarmId": ("The swarm", "demo"),
    "role": ("The role of a component, or swarm-controller", "generator"),
    "instance": ("The instance of that role", "demo-generator"),
    "queue": ("The suffix of a work queue ph.<swarmId>.<queue>", "items"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class AsyncApiChannel:
    """One routing key with its parameters. `by` says who sends or receives there."""

    name: str
    address: str
    message: str
    about: str
    by: tuple[tuple[Who, Action], ...]
    example: Mapping[str, Any]
    exchange: str = names.CONTROL


def channels() -> Iterator[AsyncApiChannel]:
    for signal in Signal:
        if signal is not Signal.CREATE:
            yield _signal(signal)
    for signal in Signal:
        yield from _confirmations(signal)
    for signal in Signal:
        yield AsyncApiChannel(
            name=f"duplicate.{signal}",
            address=f"ev.duplicate.{signal}.{_scope(signal)}",
            message="Duplicate",
            about=f"{signal} was sent again with the same idempotency key",
            by=(("controller", "send"), ("orchestrator", "send")),
            example={**_confirmation(signal), "originalCorrelationId": _ID[2], "correlationId": _ID[3]},
        )
    yield _warning()
    yield from _statuses()
    yield AsyncApiChannel(
        name="work",
        address="{queue}",
        message="Item",
        about="Work items of a swarm, on its own exchange",
        by=(("component", "send"), ("component", "receive")),
        example={"n": 1},
        exchange="ph.{swarmId}.hive",
    )


def document() -> dict[str, Any]:
    """Return the whole document."""
    every = list(channels())
    return {
        "asyncapi": "3.0.0",
        "id": "urn:farro:swarms",
        "info": {
            "title": "farro swarms",
            "version": VERSION,
            "description": "Signals, confirmations and status of swarms (seed 003). Every signal gets exactly one "
            "confirmation; after a crash it may be sent again under the same message id.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {one.name: _channel(one) for one in every},
        "operations": {
            f"{who}.{action}.{one.name}": _operation(who, action, one) for one in every for who, action in one.by
        },
        "components": {
            "messages": {name: _message(name, every) for name in (*SHAPES, "Item")},
            "schemas": {**{name: schema(shape) for name, shape in SHAPES.items()}, "Item": {}},
        },
    }


def schema(shape: Any) -> dict[str, Any]:
    """Return the JSON Schema of a message in the names of the wire. What may be absent may be null."""
    made: dict[str, Any] = _camel_schema(json_schema.schema(shape))
    return made


def _camel_schema(made: Any) -> Any:
    if isinstance(made, list):
        return [_camel_schema(item) for item in made]
    if not isinstance(made, dict):
        return made
    renamed = {name: _camel_schema(value) for name, value in made.items()}
    if isinstance(made.get("properties"), dict):
        renamed["properties"] = {
            messages.camel(name): _camel_schema(value) for name, value in made["properties"].items()
        }
        renamed["required"] = [messages.camel(name) for name in made.get("required", ())]
    return renamed


def address_fits(address: str, key: str) -> bool:
    """Return whether a routing key fits the address of a channel."""
    wanted, words = address.split("."), key.split(".")
    return len(wanted) == len(words) and all(
        part == word or (part.startswith("{") and bool(word)) for part, word in zip(wanted, words, strict=True)
    )


# --- parts ---


def _channel(one: AsyncApiChannel) -> dict[str, Any]:
    named = [part[1:-1] for part in one.address.split(".") if part.startswith("{")]
    return {
        "address": one.address,
        "description": one.about,
        "messages": {one.message: {"$ref": f"#/components/messages/{one.message}"}},
        "parameters": {name: _parameter(name) for name in named},
        "bindings": {
            "amqp": {
                "is": "routingKey",
                "exchange": {"name": one.exchange, "type": "topic", "durable": True, "autoDelete": False},
                "bindingVersion": "0.3.0",
            }
        },
    }


def _parameter(name: str) -> dict[str, Any]:
    about, example = _PARAMETERS[name]
    return {"description": f"{about}: {names.NAME_PATTERN}", "examples": [example]}


def _operation(who: Who, action: Action, one: AsyncApiChannel) -> dict[str, Any]:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{one.name}"},
        "summary": one.about,
        "tags": [{"name": who}],
        "messages": [{"$ref": f"#/channels/{one.name}/messages/{one.message}"}],
    }


def _message(name: str, every: list[AsyncApiChannel]) -> dict[str, Any]:
    examples = [{"name": one.name, "payload": dict(one.example)} for one in every if one.message == name]
    made: dict[str, Any] = {
        "name": name,
        "summary": _MEANING[name],
        "contentType": "application/json",
        "payload": {"$ref": f"#/components/schemas/{name}"},
        "examples": examples,
    }
    if name not in ("Status", "Item"):
        made["correlationId"] = {"location": "$message.payload#/correlationId"}
    return made


def _signal(signal: Signal) -> AsyncApiChannel:
    sends: tuple[tuple[Who, Action], ...] = (("orchestrator", "send"), ("controller", "receive"))
    if signal.of_component:
        sends = (*sends, ("controller", "send"), ("component", "receive"))
    if signal is Signal.STATUS:  # a controller asks the orchestrator which signals are its own
        sends = (*sends, ("orchestrator", "receive"))
    said: dict[str, Any] = {
        "correlationId": _ID[0],
        "idempotencyKey": _ID[1],
        "signal": str(signal),
        "messageId": _ID[0],
        "timestamp": _NOW,
        **_body_scope(signal),
        "origin": "orchestrator",
    }
    args = _ARGS.get(signal)
    return AsyncApiChannel(
        name=f"{signal}",
        address=f"sig.{signal}.{_scope(signal)}",
        message="ControlSignal",
        about=_SIGNALS[signal],
        by=sends,
        example={**said, **({} if args is None else {"args": args})},
    )


def _confirmations(signal: Signal) -> Iterator[AsyncApiChannel]:
    """Yield the confirmations of a signal. The orchestrator sends those of commands that it does, refuses or gives up
    itself."""
    by: tuple[tuple[Who, Action], ...] = (("orchestrator", "send"),)
    if signal not in (Signal.CREATE, Signal.STATUS):
        by = (*by, ("orchestrator", "receive"), ("controller", "send"))
    if signal is not Signal.STATUS:  # answered by a status-full
        yield AsyncApiChannel(
            name=f"ready.{signal}",
            address=f"ev.ready.{signal}.{_scope(signal)}",
            message="Ready",
            about=f"{signal} had its effect",
            by=by,
            example={
                **_confirmation(signal),
                "result": "success",
                "state": "Ready" if signal is Signal.CREATE else str(lifecycle.EFFECTS.get(signal, "Running")),
            },
        )
    yield AsyncApiChannel(
        name=f"error.{signal}",
        address=f"ev.error.{signal}.{_scope(signal)}",
        message="Error",
        about=f"{signal} did not have its effect",
        by=by,
        example={
            **_confirmation(signal),
            "result": "error",
            "phase": signal.phase,
            "code": "CONFIG_REFUSED" if signal is Signal.CONFIG else "COMPONENT_FAILED",
            "message": "demo-generator ended, and was started 6 times",
            "retryable": True,
        },
    )


def _warning() -> AsyncApiChannel:
    return AsyncApiChannel(
        name="warning.swarm-template",
        address="ev.warning.swarm-template.{swarmId}",
        message="Warning",
        about="Work flows in a cycle; components are started by a heuristic order",
        by=(("controller", "send"), ("orchestrator", "receive")),
        example={
            **{name: value for name, value in _confirmation(Signal.TEMPLATE).items() if name != "idempotencyKey"},
            "message": "work flows in a circle (a → b → a); they are started in the order of the plan, and stopped in "
            "reverse",
        },
    )


def _statuses() -> Iterator[AsyncApiChannel]:
    yield AsyncApiChannel(
        name="controller-up",
        address=f"ev.ready.{names.CONTROLLER}.{{instance}}",
        message="Status",
        about="The handshake of a controller: it listens on its control queue",
        by=(("controller", "send"), ("orchestrator", "receive")),
        example={**_status("status-full", names.CONTROLLER, "demo-marshal"), "state": "Creating"},
    )
    for kind in ("status-full", "status-delta"):
        yield AsyncApiChannel(
            name=f"{kind}.swarm",
            address=f"ev.{kind}.{names.CONTROLLER}.{{instance}}",
            message="Status",
            about="The aggregate status of a swarm, on a change and every ten seconds",
            by=(("controller", "send"), ("orchestrator", "receive")),
            example={**_status(kind, names.CONTROLLER, "demo-marshal"), **_AGGREGATE},
        )
        yield AsyncApiChannel(
            name=f"{kind}.component",
            address=f"ev.{kind}.{{role}}.{{instance}}",
            message="Status",
            about="The status of a component, which counts as a heartbeat",
            by=(("component", "send"), ("controller", "receive")),
            example=_status(kind, "generator", "demo-generator"),
        )


def _scope(signal: Signal) -> str:
    return "{role}.{instance}" if signal.of_component else "{swarmId}"


def _body_scope(signal: Signal) -> dict[str, str]:
    component = {"role": "generator", "instance": "demo-generator"} if signal.of_component else {}
    return {"swarmId": "demo", **component}


def _confirmation(signal: Signal) -> dict[str, Any]:
    return {
        "ts": _NOW,
        "correlationId": _ID[0],
        "idempotencyKey": _ID[1],
        "signal": str(signal),
        "scope": _body_scope(signal),
    }


def _status(kind: str, role: str, instance: str) -> dict[str, Any]:
    return {
        "event": "status",
        "kind": kind,
        "version": "1.0",
        "messageId": _ID[4],
        "timestamp": _NOW,
        "role": role,
        "instance": instance,
        "swarmId": "demo",
        "enabled": True,
        "state": "Running",
        "watermark": _NOW,
        "maxStalenessSec": 0.0,
        "totals": {"total": 1, "desired": 1, "healthy": 1, "running": 1, "enabled": 1},
        "queues": {"inputs": [], "outputs": ["ph.demo.items"]},
        "data": {"tps": 5.0, "done": 120, "failed": 0, "deadLetters": 0, "health": "UP"},
    }


_NOW = "2026-11-16T12:34:56.789Z"
_ID = tuple(f"{number}23e4567-e89b-42d3-a456-426614174000" for number in range(1, 6))
_AGGREGATE = {
    "watermark": "2026-11-16T12:34:52.289Z",
    "maxStalenessSec": 4.5,
    "totals": {"desired": 2, "healthy": 2, "running": 2, "enabled": 2},
    "queues": {"inputs": ["ph.demo.items"], "outputs": ["ph.demo.items"]},
    "data": {"health": "Healthy"},
}
_SIGNALS = {
    Signal.TEMPLATE: "Send or replace the plan; every component is launched, disabled",
    Signal.START: "Enable the components, in the order of the work flow",
    Signal.STOP: "Disable the components, in reverse order; everything stays",
    Signal.REMOVE: "Remove the components",
    Signal.CONFIG: "Change the config of one component, or enable or disable it",
    Signal.STATUS: "Answered by a status-full under the same correlation id",
}
_ARGS: Mapping[Signal, dict[str, Any]] = {
    Signal.TEMPLATE: {"plan": {"id": "demo", "bees": [{"role": "generator", "command": ["demo-generator"]}]}},
    Signal.CONFIG: {"enabled": True, "rate": 20},
}
