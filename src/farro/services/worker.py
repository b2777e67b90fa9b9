"""The worker: N slots in a process, each an agent with a loop of its own: claim, perform, commit.

Performing lives in perform, the end of a drain in drain; what a crash leaves is the watchdog's.

Signals (DESIGN §12): `stop` gives running steps five seconds to end by themselves, then their jobs are released, all
within ten. A slot ends an attempt's process tree before it lets go of the job (R6).
"""

from __future__ import annotations

import contextlib
import select
import threading
import traceback
from collections.abc import Callable, Collection, Mapping
from enum import Enum, auto
from typing import Any, Protocol

from farro.errors import AgentLost, FarroError, Lost, NoFolder, SyncFailed, TryAgain
from farro.execution.stop import Flag, Stop
from farro.observe.log import Log
from farro.ports.clock import Clock
from farro.ports.store import Agent, Claim, Working
from farro.services.handover import Handover
from farro.services.perform import Performer
from farro.system import signals
from farro.system.turns import Turns

IDLE_S = 10.0  # an idle slot turns at least so often: its heartbeat
STINT_S = 0.005  # how long a slot works before others of its process have a turn, if it never has to wait
TROUBLE_S = 1.0  # after a failure of the store itself: not a busy loop


class Turn(Enum):
    WORKED = auto()
    IDLE = auto()
    TROUBLE = auto()  # the store failed; the agent has left, and the next turn joins anew


class Until(Protocol):
    """When a slot ends by itself."""

    patience_s: float  # how long an idle slot waits at most before it asks again

    def over(self, turn: Turn) -> bool:
        """Asked after each turn."""


class Never:
    """A worker that is only ended from outside."""

    patience_s = IDLE_S

    def over(self, turn: Turn) -> bool:
        return False


class Slot:
    """One slot. `run_once` does one turn; `run` only repeats it."""

    def __init__(
        self,
        *,
        store: Working,
        role: str,
        name: str,
        number: int,
        tags: Collection[str],
        performer: Performer,
        stop: Stop,
        clock: Clock,
        log: Log,
        idle_s: float = IDLE_S,
        turns: Turns | None = None,
        handover: Handover | None = None,
    ) -> None:
        self._store = store
        self._role = role
        self._name = name
        self._idle_s = idle_s
        self._number = number
        self._tags = tags
        self._performer = performer
        self._stop = stop
        self._clock = clock
        self._log = log
        self._turns = turns or Turns()
        self._handover = handover
        self._agent: Agent | None = None

    def join(self) -> Agent:
        """This slot's agent; a new one when it has none. InputError when the role, the name or a tag cannot be."""
        if self._agent is None:
            self._agent = self._store.join(self._name, role=self._role, slot=self._number, tags=self._tags)
        return self._agent

    def leave(self) -> None:
        agent, self._agent = self._agent, None
        if agent is not None:
            with contextlib.suppress(TryAgain):  # nobody can be told: recovery finds its lease free, or over
                self._store.leave(agent)

    def run_once(self) -> Turn:
        """Claim a job, perform it, commit what came of it; or find that there is nothing to do."""
        agent = self.join()
        self._store.heartbeat(agent)
        claim = self._store.claim(agent)
        if claim is None:
            return Turn.IDLE
        self._say(claim, "info", "job claimed", {"type": "state_transition", "from": "queued", "to": "in_progress"})
        try:
            tick = lambda: self._beat(agent, claim)  # noqa: E731
            outcome = self._performer.perform(claim, tick, self._stop)
            if self._handover is None:
                told = self._store.commit(claim, outcome)
            else:
                told = self._handover.commit(claim, outcome, tick, self._stop)
        except NoFolder:
            self._store.release(claim, "no folder could be made for it")  # another machine may have room
            raise
        except AgentLost:
            raise
        except Lost as lost:
            self._say(claim, "warning", str(lost), {"type": "claim_lost"})
        else:
            event = {"type": "state_transition", "from": "in_progress", "to": str(told.status)}
            extra = {"error": told.error["category"]} if told.error else {}
            self._say(claim, "info", "job status changed", {**event, **extra})
        return Turn.WORKED

    def _beat(self, agent: Agent, claim: Claim) -> None:
        """While a job runs. A store that cannot be reached is no reason to end it: where its lease ran out meanwhile,
        the commit is told."""
        with contextlib.suppress(TryAgain):
            self._store.heartbeat(agent, claim)

    def run(self, until: Until) -> None:
        """Turn until told to stop, or until `until` says that it is over."""
        try:
            cursor = self._store.changes(None, role=self._role).cursor
            while not self._stop.requested:
                with self._turns.turn():
                    turn, over = self._stint(until)
                if over:
                    return
                if turn is Turn.TROUBLE:
                    self._clock.sleep(TROUBLE_S)
                elif turn is Turn.IDLE:
                    cursor = self._waited(cursor, until)
        finally:
            self.leave()

    def _waited(self, cursor: int, until: Until) -> int:
        """Until something comes, or for as long as an idle slot waits."""
        try:
            return self._store.changes(cursor, role=self._role, timeout_s=self._patience_s(until)).cursor
        except TryAgain as error:  # a server that is away
            self._trouble(f"{type(error).__name__}: {error}")
            self._clock.sleep(TROUBLE_S)
            return cursor

    def _stint(self, until: Until) -> tuple[Turn, bool]:
        """Turns for a moment, while there is work: the last of them, and whether it is over. To let another slot work
        after every job, however small, costs more than a small job."""
        end_s = self._clock.monotonic_s() + STINT_S
        while True:
            turn = self._safe_turn()
            if until.over(turn):
                return turn, True
            if turn is not Turn.WORKED or self._stop.requested or self._clock.monotonic_s() >= end_s:
                return turn, False

    def _safe_turn(self) -> Turn:
        """A turn whose trouble is this slot's alone. After it the agent leaves: recovery looks at what it held."""
        try:
            return self.run_once()
        except SyncFailed:
            raise  # nobody knows what reached the disk: the worker stops, recovery decides (R7)
        except AgentLost as lost:
            self._log("warning", str(lost), {"event": {"type": "agent_lost"}})
            self.leave()
            return Turn.WORKED
        except (FarroError, OSError) as error:
            self._trouble(f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - the edge of the loop: one job's bug must not end the others' worker
            self._trouble(f"{type(error).__name__}: {error}", {"traceback": traceback.format_exc()})
        return Turn.TROUBLE

    def _trouble(self, message: str, more: Mapping[str, Any] | None = None) -> None:
        self._log("error", message, {"event": {"type": "slot_trouble"}, **(more or {})})
        self.leave()

    def _patience_s(self, until: Until) -> float:
        longest_s = min(until.patience_s, self._idle_s)
        due = self._store.next_due(self._role)
        if due is None:
            return longest_s
        return min(longest_s, max(0.0, (due - self._clock.now()).total_seconds()))

    def _say(self, claim: Claim, level: str, message: str, event: Mapping[str, Any]) -> None:
        lifecycle = claim.envelope.lifecycle
        fields = {
            "job_id": lifecycle.job_id,
            "role": self._role,
            "attempt": claim.attempt,
            "agent": claim.agent.id,
            "correlation_id": lifecycle.correlation_id,
            "event": event,
        }
        self._log(level, message, fields)


class Worker:
    """All slots of one process."""

    def __init__(
        self,
        *,
        store: Working,
        role: str,
        slots: int,
        make_slot: Callable[[int, Stop], Slot],
        clock: Clock,
        until: Until | None = None,
    ) -> None:
        self._store = store
        self._role = role
        self._until = until or Never()
        self._stop = Stop(clock)
        self._slots = [make_slot(number, self._stop) for number in range(slots)]
        self._threads = [
            threading.Thread(target=self._run_slot, args=(slot,), name=f"slot-{number}")
            for number, slot in enumerate(self._slots)
        ]
        self._failure: BaseException | None = None
        self._ending = threading.Lock()  # guards _running
        self._running = slots
        self._ended = Flag()  # set when _running is 0

    def stop(self, grace_s: float = 5.0) -> None:
        """Start nothing more; running steps have `grace_s`. From any thread or signal handler; again: at once.

        Takes no lock: a second signal may interrupt the handler of the first, and would wait for its own thread. Slots
        that sleep are woken by `wait`.
        """
        self._stop.request(grace_s)

    def run(self) -> None:
        """Return when told to stop, or when `until` says that it is over; raise what ended a slot."""
        self.start()
        self.wait()

    def start(self) -> None:
        """Start every slot. A wrong role, name or tag is raised here, and then nothing was started."""
        try:
            for slot in self._slots:
                slot.join()
        except BaseException:
            for slot in self._slots:
                slot.leave()
            raise
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        """Return when every slot has ended; raise what ended one."""
        poll = select.poll()
        poll.register(self._ended.fd, select.POLLIN)
        poll.register(self._stop.fd, select.POLLIN)
        told = False
        with signals.wakeup() as fd:
            if fd is not None:
                poll.register(fd, select.POLLIN)
            while self._ended.fd not in (ready := [found for found, _ in poll.poll()]):
                if fd is not None and fd in ready:
                    signals.heard(fd)
                if self._stop.requested and not told:
                    poll.unregister(self._stop.fd)  # it stays readable
                    self._store.wake(self._role)
                    told = True
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _run_slot(self, slot: Slot) -> None:
        try:
            slot.run(self._until)
        except BaseException as failure:  # noqa: BLE001 - handed to the thread that waits for the slots
            self._failure = self._failure or failure
            self.stop(0.0)
        finally:
            with self._ending:
                self._running -= 1
                if self._running == 0:
                    self._ended.set()
