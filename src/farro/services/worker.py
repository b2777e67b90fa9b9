"""The worker: N slots in a process, each an agent with a loop of its own: claim, perform, commit.

Performing lives in perform; what a crash leaves is the watchdog's.

Signals (DESIGN §12): `stop` gives running steps five seconds to end by themselves, then their jobs are released, all
within ten. A slot ends an attempt's process tree before it lets go of the job (R6).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from enum import Enum, auto
from typing import Any

from farro.errors import AgentLost, FarroError, Lost, SyncFailed
from farro.execution.stop import Stop
from farro.observe.log import Log
from farro.ports.clock import Clock
from farro.ports.store import Agent, Claim, Store
from farro.services.perform import Performer

IDLE_S = 10.0  # an idle slot turns at least so often: its heartbeat
DRAIN_IDLE_S = 0.5
TROUBLE_S = 1.0  # after a failure of the store itself: not a busy loop


class Turn(Enum):
    WORKED = auto()
    IDLE = auto()


class Slot:
    """One slot. `run_once` does one turn; `run` only repeats it."""

    def __init__(
        self,
        *,
        store: Store,
        role: str,
        name: str,
        number: int,
        tags: Collection[str],
        performer: Performer,
        stop: Stop,
        clock: Clock,
        log: Log,
    ) -> None:
        self._store = store
        self._role = role
        self._name = name
        self._number = number
        self._tags = tags
        self._performer = performer
        self._stop = stop
        self._clock = clock
        self._log = log
        self._agent: Agent | None = None

    def run_once(self) -> Turn:
        """Claim a job, perform it, commit what came of it; or find that there is nothing to do."""
        agent = self._joined()
        claim = self._store.claim(agent)
        if claim is None:
            return Turn.IDLE
        self._say(claim, "info", "job claimed", {"type": "state_transition", "from": "queued", "to": "in_progress"})
        try:
            outcome = self._performer.perform(claim, lambda: self._store.heartbeat(agent, claim), self._stop)
            told = self._store.commit(claim, outcome)
        except Lost as lost:
            self._say(claim, "warning", str(lost), {"type": "claim_lost"})
        else:
            event = {"type": "state_transition", "from": "in_progress", "to": str(told.status)}
            extra = {"error": told.error["category"]} if told.error else {}
            self._say(claim, "info", "job status changed", {**event, **extra})
        return Turn.WORKED

    def run(self, until: Callable[[Turn], bool]) -> None:
        """Turn until told to stop, or until `until` says so after a turn."""
        cursor = self._store.changes(None, role=self._role).cursor
        try:
            while not self._stop.requested:
                turn = self._safe_turn()
                if until(turn):
                    return
                if turn is Turn.IDLE:
                    cursor = self._store.changes(cursor, role=self._role, timeout_s=self._patience_s(until)).cursor
        finally:
            self._leave()

    def _safe_turn(self) -> Turn:
        """A turn whose trouble is this slot's alone. After it the agent leaves: recovery looks at what it held."""
        try:
            return self.run_once()
        except SyncFailed:
            raise  # nobody knows what reached the disk: the worker stops, recovery decides (R7)
        except AgentLost as lost:
            self._log("warning", str(lost), {})
            self._leave()
            return Turn.WORKED
        except (FarroError, OSError) as error:
            self._log("error", f"{type(error).__name__}: {error}", {"event": {"type": "slot_trouble"}})
            self._leave()
            self._clock.sleep(TROUBLE_S)
            return Turn.WORKED

    def _joined(self) -> Agent:
        if self._agent is None:
            self._agent = self._store.join(self._name, role=self._role, slot=self._number, tags=self._tags)
        self._store.heartbeat(self._agent)
        return self._agent

    def _leave(self) -> None:
        agent, self._agent = self._agent, None
        if agent is not None:
            self._store.leave(agent)

    def _patience_s(self, until: Callable[[Turn], bool]) -> float:
        longest = DRAIN_IDLE_S if getattr(until, "impatient", False) else IDLE_S
        due = self._store.next_due(self._role)
        if due is None:
            return longest
        return min(longest, max(0.0, (due - self._clock.now()).total_seconds()))

    def _say(self, claim: Claim, level: str, message: str, event: Mapping[str, Any]) -> None:
        lifecycle = claim.envelope.lifecycle
        fields = {"job_id": claim.job_id, "role": self._role, "attempt": claim.attempt, "agent": claim.agent.id}
        self._log(level, message, {**fields, "correlation_id": lifecycle.correlation_id, "event": event})


class Worker:
    """All slots of one process."""

    def __init__(self, *, store: Store, role: str, slots: int, drain: bool, make_slot: Callable[[int, Stop], Slot], clock: Clock) -> None:
        self._store = store
        self._role = role
        self._drain = drain
        self._stop = Stop(clock)
        self._slots = [make_slot(number, self._stop) for number in range(slots)]
        self._failure: BaseException | None = None

    def stop(self, grace_s: float = 5.0) -> None:
        """Start nothing more; running steps have `grace_s`. From any thread or signal handler; again: at once."""
        self._stop.request(grace_s)
        self._store.wake(self._role)

    def run(self) -> None:
        """Return when told to stop, or, with `drain`, when nothing is queued, running or due in the queue."""
        until = _Drained(self._store, self._role) if self._drain else _never
        threads = [threading.Thread(target=self._run_slot, args=(slot, until), name=f"slot-{n}") for n, slot in enumerate(self._slots)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(timeout=3600)  # in pieces, so that signals are handled meanwhile
        if self._failure is not None:
            raise self._failure

    def _run_slot(self, slot: Slot, until: Callable[[Turn], bool]) -> None:
        try:
            slot.run(until)
        except BaseException as failure:  # noqa: BLE001 - handed to the thread that waits for the slots
            self._failure = self._failure or failure
            self.stop(0.0)


class _Drained:
    impatient = True

    def __init__(self, store: Store, role: str) -> None:
        self._store = store
        self._role = role

    def __call__(self, turn: Turn) -> bool:
        return turn is Turn.IDLE and self._store.pending(self._role) == 0


def _never(turn: Turn) -> bool:
    return False
