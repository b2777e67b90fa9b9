"""Publish signals, confirmations, warnings and status messages on the control exchange, and write the audit log."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from farro.host import fs, leases
from farro.jobs.times import timestamp
from farro.log.audit import repair
from farro.log.structured import Log, redacted
from farro.swarm.bus.port import Bus, BusMessage
from farro.swarm.ledger import LedgerEntry, message_id
from farro.swarm.lifecycle import SwarmState
from farro.swarm.wire import messages, names
from farro.swarm.wire.names import Scope, Signal


class ControlPublisher:
    """Publish messages of the orchestrator or of a controller. `now` returns a timestamp in the wire's format."""

    def __init__(self, bus: Bus, now: Callable[[], str]) -> None:
        self._bus = bus
        self.now = now

    async def confirm(self, entry: LedgerEntry, correlation_id: str) -> None:
        """Publish the end of a command as the confirmation of one of its signals."""
        end = entry.end
        assert end is not None
        if end.good:
            # A swarm without a plan is Creating; the document's confirmation of a create says Ready (§12).
            state: Any = "Ready" if end.state == SwarmState.CREATING else end.state
            ready = messages.Ready(**self._reply(entry, correlation_id), state=state, notes=end.notes)
            await self._about(entry, "ready", correlation_id, ready)
            return
        phase: Any = end.phase or Signal(entry.signal).phase
        error = messages.Error(
            **self._reply(entry, correlation_id),
            phase=phase,
            code=end.code or "FAILED",
            message=end.message or "",
            retryable=end.retryable,
            details=end.details,
        )
        await self._about(entry, "error", correlation_id, error)

    async def duplicate(self, entry: LedgerEntry, correlation_id: str) -> None:
        """Publish that a signal repeats a known command."""
        original = next((other for other in entry.correlations if other != correlation_id), correlation_id)
        body = messages.Duplicate(**self._reply(entry, correlation_id), original_correlation_id=original)
        await self._about(entry, "duplicate", correlation_id, body)

    def _reply(self, entry: LedgerEntry, correlation_id: str) -> dict[str, Any]:
        return {
            "ts": self.now(),
            "correlation_id": correlation_id,
            "idempotency_key": entry.key,
            "signal": entry.signal,
            "scope": messages.scope_body(entry.scope),
        }

    async def _about(self, entry: LedgerEntry, kind: names.Outcome, correlation_id: str, body: messages.Reply) -> None:
        signal = Signal(entry.signal)
        key = names.event_key(kind, signal, _key_scope(signal, entry.scope))
        await self.send(key, body, message_id(correlation_id, signal, kind))

    async def warn(self, signal: Signal, scope: Scope, text: str, correlation_id: str | None) -> None:
        body = messages.Warning(
            ts=self.now(),
            correlation_id=correlation_id,
            signal=signal.value,
            scope=messages.scope_body(scope),
            message=text,
        )
        own_id = message_id(correlation_id, signal, f"warning/{text}") if correlation_id else str(uuid.uuid4())
        await self.send(names.event_key("warning", signal, _key_scope(signal, scope)), body, own_id)

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
        await self.send(names.signal_key(signal, _key_scope(signal, scope)), body, correlation_id)

    async def status(self, status: messages.StatusReport) -> None:
        key = names.status_key(status.kind, status.role, status.instance)
        await self.send(key, status, status.message_id, lasting=False)

    async def controller_up(self, swarm: str, instance: str) -> None:
        """Publish that a controller listens on its control queue."""
        status = messages.StatusReport(
            kind="status-full",
            message_id=str(uuid.uuid4()),
            timestamp=self.now(),
            role=names.CONTROLLER,
            instance=instance,
            swarm_id=swarm,
            enabled=True,
        )
        await self.send(names.controller_up_key(instance), status, status.message_id)

    async def send(self, key: str, body: Any, own_id: str, *, lasting: bool = True) -> None:
        message = BusMessage(key=key, body=messages.encode(body), message_id=own_id, lasting=lasting)
        await self._bus.publish(names.CONTROL, message)


def _key_scope(signal: Signal, scope: Scope) -> Scope:
    """Return the part of a scope that the routing key names."""
    return Scope(role=scope.role, instance=scope.instance) if signal.of_component else Scope(swarm=scope.swarm)


def earlier(at: str, seconds: float) -> str:
    """Return the timestamp `seconds` before `at`."""
    return timestamp(datetime.fromisoformat(at) - timedelta(seconds=seconds))


# --- the audit log ---

NAME = "audit.jsonl"
LIMIT = 8 << 20  # bytes of one file
KEEP = 4  # files, including the current one


class SwarmAudit:
    """Append to the audit log in a swarm's folder: a line for each action and event, with its correlation id. `who`
    names the writing process.

    The orchestrator and the controller append to the same file; a lock orders them. A file of 8 MiB is rotated, and
    four are kept. A line that cannot be written is reported in the log and stops nothing: commands go on when the disk
    is full.
    """

    def __init__(self, folder: str, who: str, now: Callable[[], str], log: Log) -> None:
        self._path = f"{folder}/{NAME}"
        self._lock = f"{folder}/.audit.lock"
        self._who = who
        self._now = now
        self._log = log

    def note(self, what: str, correlation_id: str | None = None, **fields: object) -> None:
        entry = {"ts": self._now(), "by": self._who, "what": what, "correlationId": correlation_id, **fields}
        line = json.dumps({name: value for name, value in entry.items() if value is not None}, default=str)
        try:
            with leases.exclusively(self._lock):
                self._append(redacted(line).encode() + b"\n")
        except OSError as error:
            self._log("error", f"{self._path}: {error.strerror or error}", {"what": what})

    def _append(self, line: bytes) -> None:
        fd = fs.open_append(self._path)
        try:
            if repair(fd) + len(line) > LIMIT:
                os.close(fd)
                self._rotate()
                fd = fs.open_append(self._path)
            fs.write(fd, line)
        finally:
            os.close(fd)

    def _rotate(self) -> None:
        for number in range(KEEP - 1, 0, -1):
            before = self._path if number == 1 else f"{self._path}.{number - 1}"
            with contextlib.suppress(FileNotFoundError):
                fs.replace(before, f"{self._path}.{number}")
