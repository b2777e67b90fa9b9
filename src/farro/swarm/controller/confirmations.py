"""Receive the signals of a controller and confirm them: each is noted first, and each correlation id confirmed once.

- The same signal once more gets ev.duplicate; another signal of a known command gets it, too, and then its own
  confirmation.
- What the orchestrator gave up is not confirmed. A lifecycle signal waits until the orchestrator says that it sent it.
  [test_a_lifecycle_signal_of_somebody_else_is_refused]
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Sequence

from farro.jobs.times import parse_timestamp
from farro.swarm.files import read_given_up
from farro.swarm.ledger import CommandEnd, CommandLedger, LedgerEntry
from farro.swarm.publish import ControlPublisher, SwarmAudit
from farro.swarm.wire.messages import ControlSignal, StatusReport
from farro.swarm.wire.names import ORCHESTRATOR, Scope, Signal

ASK_AGAIN_S = 2.0  # between two questions to the orchestrator about one signal
ASK_S = 60.0  # without an answer for so long, a signal is refused


class Confirmations:
    def __init__(self, ledger: CommandLedger, publisher: ControlPublisher, audit: SwarmAudit, folder: str) -> None:
        self._ledger = ledger
        self._publisher = publisher
        self._audit = audit
        self._folder = folder  # of the swarm
        self._sending = asyncio.Lock()  # looking which confirmations are owed, and sending them, is one step
        self._expected: set[str] = set()  # correlation ids of own signals, which come back once
        self._asked_s: dict[str, tuple[float, float]] = {}  # correlation id → first and last question about it

    async def receive(self, signal: ControlSignal, *, allowed: bool = True, refusal: CommandEnd | None = None) -> bool:
        """Note a signal, and report a repeated one. Return whether there is work to do.

        `allowed` is False for a signal that the orchestrator must have sent. With a `refusal` the command has ended
        when it is noted: a turn between the two would carry it out.
        [test_a_signal_that_cannot_be_read_is_never_begun]
        """
        if signal.correlation_id in self._expected:
            self._expected.discard(signal.correlation_id)
            return False
        if signal.correlation_id in read_given_up(self._folder):
            self._audit.note("ignored", signal.correlation_id, signal=signal.signal, reason="it was given up")
            return False
        with self._ledger.batch():
            kind, entry = self._ledger.receive(signal, self._publisher.now(), allowed=allowed)
            if refusal is not None and kind == "new":
                self._ledger.end(entry, refusal, self._publisher.now())
        what = "received" if kind == "new" else "duplicate"
        self._audit.note(what, signal.correlation_id, signal=signal.signal, scope=signal.scope.words)
        if kind != "new":
            await self._publisher.duplicate(entry, signal.correlation_id)
        elif refusal is not None:
            self._note_end(entry, refusal)
        await self.confirm()
        return True

    async def refuse(self, signal: ControlSignal, code: str, message: str) -> None:
        """Confirm a signal that cannot be obeyed as an error."""
        await self.receive(signal, refusal=CommandEnd(good=False, code=code, message=message))

    def begin_own(self, signals: Sequence[ControlSignal]) -> None:
        """Note config updates that the controller is about to send."""
        now = self._publisher.now()
        with self._ledger.batch():
            for signal in signals:
                self._ledger.receive(signal, now, own=True)
                self._expected.add(signal.correlation_id)
        for signal in signals:
            self._audit.note(
                "sent", signal.correlation_id, signal=signal.signal, scope=signal.scope.words, **(signal.args or {})
            )

    async def end_all(self, ends: Sequence[tuple[LedgerEntry, CommandEnd]]) -> None:
        """Write the ends of commands, then publish them."""
        with self._ledger.batch():
            for entry, end in ends:
                self._ledger.end(entry, end, self._publisher.now())
        for entry, end in ends:
            self._note_end(entry, end)
        await self.confirm()

    def _note_end(self, entry: LedgerEntry, end: CommandEnd) -> None:
        self._audit.note(
            "ready" if end.good else "error",
            entry.correlations[0],
            signal=entry.signal,
            scope=entry.scope.words,
            code=end.code,
            state=end.state,
        )

    async def confirm(self) -> None:
        """Publish all confirmations that are owed."""
        async with self._sending:
            owed = self._ledger.owed()
            given_up = read_given_up(self._folder) if owed else []
            wanted = [pair for pair in owed if pair[1] not in given_up]
            results = await asyncio.gather(*(self._publisher.confirm(*pair) for pair in wanted), return_exceptions=True)
            errors = {id(pair): error for pair, error in zip(wanted, results, strict=True) if error is not None}
            with self._ledger.batch():
                for pair in owed:
                    if id(pair) not in errors:
                        self._ledger.sent(*pair)
            for error in errors.values():
                raise error

    def end_given_up(self) -> list[Signal]:
        """End the commands that the orchestrator gave up, without a confirmation, and return their signals."""
        open_commands = self._ledger.open()
        given_up = read_given_up(self._folder) if open_commands else []
        gone = [entry for entry in open_commands if entry.correlations[0] in given_up]
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

    # --- whose signal is it ---

    async def ask(self, entry: LedgerEntry, controller: str, origin: str, now_s: float) -> bool:
        """Ask the orchestrator whether it sent a signal. Return whether it has not answered for too long."""
        correlation_id = entry.correlations[0]
        first_s, last_s = self._asked_s.get(correlation_id, (now_s, -math.inf))
        if now_s - last_s >= ASK_AGAIN_S:
            self._asked_s[correlation_id] = first_s, now_s
            scope = Scope(swarm=entry.swarm, role=ORCHESTRATOR, instance=controller)
            args = {"correlationId": correlation_id, "signal": entry.signal}
            own_id = str(uuid.uuid4())
            await self._publisher.signal(Signal.STATUS, scope, args, origin=origin, correlation_id=own_id)
        return now_s - first_s >= ASK_S

    def answered(self, report: StatusReport) -> LedgerEntry | None:
        """Take the orchestrator's answer. Return the command if it is to be refused."""
        entry = self._ledger.by_correlation(str(report.data.get("asked")))
        if entry is None or entry.allowed or entry.end is not None:
            return None
        self._asked_s.pop(entry.correlations[0], None)
        if report.data.get("known") is not True:
            return entry
        self._ledger.allow(entry)
        return None
