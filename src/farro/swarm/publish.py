"""Saying things on the control exchange: signals, confirmations, warnings, status. Each in its form, under its key.

When something is said lives in the controller and the orchestrator.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from farro.jobs.times import timestamp
from farro.swarm.bus.port import Bus, Message
from farro.swarm.ledger import Entry, message_id
from farro.swarm.lifecycle import SwarmState
from farro.swarm.plan import SwarmPlan
from farro.swarm.status import Aggregate
from farro.swarm.wire import messages, names
from farro.swarm.wire.names import Scope, Signal

if TYPE_CHECKING:
    from farro.swarm.controller.actions import Ground

_PHASES = {
    Signal.CREATE: "create",
    Signal.TEMPLATE: "template",
    Signal.START: "start",
    Signal.STOP: "stop",
    Signal.REMOVE: "remove",
    Signal.CONFIG: "config",
    Signal.STATUS: "status",
}


class Voice:
    """`now` is a time as the wire has it."""

    def __init__(self, bus: Bus, now: Callable[[], str]) -> None:
        self._bus = bus
        self.now = now

    async def confirm(self, entry: Entry, correlation_id: str) -> None:
        """The end of a command, to whoever sent that signal of it."""
        assert entry.end is not None
        end, signal = entry.end, Signal(entry.signal)
        told: dict[str, Any] = {
            "ts": self.now(),
            "correlation_id": correlation_id,
            "idempotency_key": entry.key,
            "signal": entry.signal,
            "scope": messages.scope_body(entry.scope),
        }
        body: messages.Ready | messages.Error
        if end.good:
            body = messages.Ready(**told, state=str(end.state), notes=end.notes)
        else:
            phase: Any = end.phase or _PHASES[signal]
            code, message = end.code or "FAILED", end.message or ""
            body = messages.Error(
                **told, phase=phase, code=code, message=message, retryable=end.retryable, details=end.details
            )
        kind = "ready" if end.good else "error"
        key = names.event_key("ready" if end.good else "error", signal, _of_key(signal, entry.scope))
        await self._send(key, body, message_id(correlation_id, signal, kind))

    async def duplicate(self, entry: Entry, correlation_id: str) -> None:
        signal = Signal(entry.signal)
        original = next((other for other in entry.correlations if other != correlation_id), correlation_id)
        body = messages.Duplicate(
            ts=self.now(),
            correlation_id=correlation_id,
            original_correlation_id=original,
            idempotency_key=entry.key,
            signal=entry.signal,  # type: ignore[arg-type]
            scope=messages.scope_body(entry.scope),
        )
        key = names.event_key("duplicate", signal, _of_key(signal, entry.scope))
        await self._send(key, body, message_id(correlation_id, signal, "duplicate"))

    async def warn(self, signal: Signal, scope: Scope, text: str, correlation_id: str | None) -> None:
        body = messages.Warning(
            ts=self.now(),
            correlation_id=correlation_id,
            signal=signal.value,
            scope=messages.scope_body(scope),
            message=text,
        )
        own = message_id(correlation_id, signal, f"warning/{text}") if correlation_id else str(uuid.uuid4())
        await self._send(names.event_key("warning", signal, _of_key(signal, scope)), body, own)

    async def signal(
        self,
        signal: Signal,
        scope: Scope,
        args: Mapping[str, Any] | None,
        *,
        origin: str,
        correlation_id: str,
        idempotency_key: str | None = None,
    ) -> None:
        body = messages.ControlSignal(
            correlation_id=correlation_id,
            idempotency_key=idempotency_key or correlation_id,
            signal=signal.value,
            message_id=correlation_id,
            timestamp=self.now(),
            swarm_id=scope.swarm,
            role=scope.role,
            instance=scope.instance,
            args=None if args is None else dict(args),
            origin=origin,
        )
        await self._send(names.signal_key(signal, _of_key(signal, scope)), body, correlation_id)

    async def status(self, status: messages.Status) -> None:
        key = names.status_key(status.kind, status.role, status.instance)
        await self._send(key, status, status.message_id, lasting=False)

    async def up(self, swarm: str, instance: str) -> None:
        """The controller's control plane listens."""
        status = messages.Status(
            kind="status-full",
            message_id=str(uuid.uuid4()),
            timestamp=self.now(),
            role=names.CONTROLLER,
            instance=instance,
            swarm_id=swarm,
            enabled=True,
        )
        await self._send(names.controller_up_key(instance), status, status.message_id)

    async def _send(self, key: str, body: Any, own_id: str, *, lasting: bool = True) -> None:
        sent = Message(key=key, body=messages.encode(body), message_id=own_id, lasting=lasting)
        await self._bus.publish(names.CONTROL, sent)


def _of_key(signal: Signal, scope: Scope) -> Scope:
    """The part of a scope that the routing key names."""
    return Scope(role=scope.role, instance=scope.instance) if signal.of_component else Scope(swarm=scope.swarm)


def report(
    ground: Ground,
    state: SwarmState,
    told: Aggregate,
    *,
    full: bool,
    at: str,
    about: str | None,
    queues: messages.Queues,
) -> messages.Status:
    """A swarm's status, as its controller tells it."""
    data: dict[str, Any] = {"health": told.health}
    if told.reason is not None:
        data["reason"] = told.reason
    if about is not None:
        data["correlationId"] = about
    return messages.Status(
        kind="status-full" if full else "status-delta",
        message_id=str(uuid.uuid4()),
        timestamp=at,
        role=names.CONTROLLER,
        instance=ground.instance,
        swarm_id=ground.swarm,
        enabled=True,
        state=str(state),
        watermark=None if told.max_staleness_s is None else earlier(at, told.max_staleness_s),
        max_staleness_sec=told.max_staleness_s,
        totals=messages.Totals(desired=told.desired, healthy=told.healthy, running=told.running, enabled=told.enabled),
        queues=queues,
        data=data,
    )


def queues_of(wanted: SwarmPlan | None) -> messages.Queues:
    """All that its components read, and all that they write."""
    if wanted is None:
        return messages.Queues()
    reads = {names.work_queue(wanted.id, suffix) for bee in wanted.bees for suffix in bee.work.inputs}
    writes = {names.work_queue(wanted.id, suffix) for bee in wanted.bees for suffix in bee.work.outputs}
    return messages.Queues(inputs=tuple(sorted(reads)), outputs=tuple(sorted(writes)))


def earlier(at: str, seconds: float) -> str:
    return timestamp(datetime.fromisoformat(at) - timedelta(seconds=seconds))
