"""How a controller takes signals and confirms them: noted first, confirmed once each, unless they were given up.

What a command does lives in the controller; who gives one up, in commanding (the orchestrator).
"""

from __future__ import annotations

from collections.abc import Sequence

from farro.jobs.times import parse_timestamp
from farro.swarm.audit import Trail
from farro.swarm.controller.state import GivenUp
from farro.swarm.ledger import CommandLedger, End, Entry
from farro.swarm.publish import Voice
from farro.swarm.wire.messages import ControlSignal
from farro.swarm.wire.names import Signal


class Answers:
    def __init__(self, ledger: CommandLedger, voice: Voice, trail: Trail, given_up: GivenUp) -> None:
        self._ledger = ledger
        self._voice = voice
        self._trail = trail
        self._given_up = given_up

    async def receive(self, signal: ControlSignal) -> bool:
        """Note it, and answer what was asked before as it was; whether anything is to be done."""
        if signal.correlation_id in self._given_up.read():
            self._trail.note("ignored", signal.correlation_id, signal=signal.signal, reason="it was given up")
            return False
        known = self._ledger.find(signal)
        again = known is not None and signal.correlation_id in known.correlations  # the same message, sent once more
        kind, entry = self._ledger.receive(signal, self._voice.now())
        if not again:
            what = "received" if kind == "new" else "duplicate"
            self._trail.note(what, signal.correlation_id, signal=signal.signal, scope=signal.scope.words)
        if kind != "new" and not again:
            await self._voice.duplicate(entry, signal.correlation_id)
        if kind == "done":
            await self.confirm(entry)
        return True

    async def end(self, entry: Entry, end: End) -> None:
        """The end is written, then told."""
        what, about = "ready" if end.good else "error", entry.scope.words
        self._trail.note(what, entry.correlations[0], signal=entry.signal, scope=about, code=end.code, state=end.state)
        self._ledger.end(entry, end, self._voice.now())
        await self.confirm(entry)

    async def confirm(self, entry: Entry) -> None:
        for correlation_id in list(entry.unsent):
            if correlation_id not in self._given_up.read():
                await self._voice.confirm(entry, correlation_id)
            self._ledger.sent(entry, correlation_id)

    def forget(self) -> list[Signal]:
        """End what the orchestrator gave up, and confirmed as errors itself; nothing is said. What those were."""
        given_up = self._given_up.read()
        gone = [entry for entry in self._ledger.open() if entry.correlations[0] in given_up] if given_up else []
        for entry in gone:
            end = End(good=False, code="GIVEN_UP", message="the orchestrator waits for it no more")
            self._ledger.end(entry, end, self._voice.now(), confirmed=entry.correlations)
        return [Signal(entry.signal) for entry in gone]

    def spent_s(self, entry: Entry) -> float:
        """Of a command that a controller before us began: its time goes on."""
        if entry.started_at is None:
            return 0.0
        began, now = parse_timestamp(entry.started_at), parse_timestamp(self._voice.now())
        return max(0.0, (now - began).total_seconds())


def superseded(commands: Sequence[Entry]) -> bool:
    """A start, or a template, after which a stop or a remove was asked for: nobody wants it any more."""
    hasty = any(Signal(later.signal) in (Signal.STOP, Signal.REMOVE) for later in commands[1:])
    return hasty and Signal(commands[0].signal) in (Signal.TEMPLATE, Signal.START)
