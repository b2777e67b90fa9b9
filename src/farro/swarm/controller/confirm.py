"""Receive signals and confirm them: each is noted first and confirmed once, unless the orchestrator gave it up."""

from __future__ import annotations

import json
from collections.abc import Sequence

from farro.host import fs
from farro.jobs.times import parse_timestamp
from farro.swarm.audit import SwarmAudit
from farro.swarm.ledger import CommandEnd, CommandLedger, LedgerEntry
from farro.swarm.publish import ControlPublisher
from farro.swarm.wire.messages import ControlSignal
from farro.swarm.wire.names import Signal

_LIMIT = 16 << 20


class Confirmations:
    def __init__(
        self, ledger: CommandLedger, publisher: ControlPublisher, audit: SwarmAudit, given_up: GivenUpCommands
    ) -> None:
        self._ledger = ledger
        self._publisher = publisher
        self._audit = audit
        self._given_up = given_up

    async def receive(self, signal: ControlSignal) -> bool:
        """Note a signal, and answer a repeated one as before. Return whether there is work to do."""
        if signal.correlation_id in self._given_up.read():
            self._audit.note("ignored", signal.correlation_id, signal=signal.signal, reason="it was given up")
            return False
        known = self._ledger.find(signal)
        again = known is not None and signal.correlation_id in known.correlations  # the same message, sent once more
        kind, entry = self._ledger.receive(signal, self._publisher.now())
        if not again:
            what = "received" if kind == "new" else "duplicate"
            self._audit.note(what, signal.correlation_id, signal=signal.signal, scope=signal.scope.words)
        if kind != "new" and not again:
            await self._publisher.duplicate(entry, signal.correlation_id)
        if kind == "done":
            await self.confirm(entry)
        return True

    async def end(self, entry: LedgerEntry, end: CommandEnd) -> None:
        """Write the end of a command, then publish it."""
        self._audit.note(
            "ready" if end.good else "error",
            entry.correlations[0],
            signal=entry.signal,
            scope=entry.scope.words,
            code=end.code,
            state=end.state,
        )
        self._ledger.end(entry, end, self._publisher.now())
        await self.confirm(entry)

    async def confirm(self, entry: LedgerEntry) -> None:
        for correlation_id in list(entry.unsent):
            if correlation_id not in self._given_up.read():
                await self._publisher.confirm(entry, correlation_id)
            self._ledger.sent(entry, correlation_id)

    def end_given_up(self) -> list[Signal]:
        """End the commands that the orchestrator gave up, without a confirmation, and return their signals."""
        given_up = self._given_up.read()
        gone = [entry for entry in self._ledger.open() if entry.correlations[0] in given_up] if given_up else []
        for entry in gone:
            end = CommandEnd(good=False, code="GIVEN_UP", message="the orchestrator no longer waits for it")
            self._ledger.end(entry, end, self._publisher.now(), confirmed=entry.correlations)
        return [Signal(entry.signal) for entry in gone]

    def spent_s(self, entry: LedgerEntry) -> float:
        """Return the time that a command which an earlier controller process began has already used."""
        if entry.started_at is None:
            return 0.0
        began, now = parse_timestamp(entry.started_at), parse_timestamp(self._publisher.now())
        return max(0.0, (now - began).total_seconds())


class GivenUpCommands:
    """The correlation ids of commands that a controller must not confirm.

    The orchestrator writes them here before it confirms the commands of a silent controller itself.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._version: tuple[int, int] | None = None
        self._known: frozenset[str] = frozenset()

    def read(self) -> frozenset[str]:
        try:
            status = fs.lstat(self._path)
            if (status.st_ino, status.st_mtime_ns) != self._version:
                self._known = frozenset(map(str, json.loads(fs.read_bytes(self._path, _LIMIT))))
                self._version = status.st_ino, status.st_mtime_ns
        except FileNotFoundError:
            return frozenset()
        return self._known


def superseded(commands: Sequence[LedgerEntry]) -> bool:
    """Return whether the first command is a start or template that a later stop or remove makes pointless."""
    overtaken = any(Signal(later.signal) in (Signal.STOP, Signal.REMOVE) for later in commands[1:])
    return overtaken and Signal(commands[0].signal) in (Signal.TEMPLATE, Signal.START)
