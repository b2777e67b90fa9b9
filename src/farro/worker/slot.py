"""One slot of a worker: an agent with its own loop that claims, performs and commits jobs.

A slot ends an attempt's processes before it releases the job (R6).
"""

from __future__ import annotations

import contextlib
import traceback
from collections import deque
from collections.abc import Callable, Collection, Mapping
from enum import Enum, auto
from typing import Any, Protocol

from farro.errors import AgentLost, FarroError, Lost, NoFolder, SyncFailed, TryAgain
from farro.execution.step import BegunCall
from farro.execution.stop import Stop
from farro.host.clock import Clock
from farro.host.thread_turns import Turns
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Outcome
from farro.jobs.times import timestamp
from farro.log.structured import Log, LogEvent, together
from farro.store.port import Agent, BatchStore, Claim, PipelinedStore, WorkerStore
from farro.worker.batch_wait import BatchWait
from farro.worker.hand_off import HandOff
from farro.worker.idle_wait import IdleWait
from farro.worker.perform import Performer

IDLE_S = 10.0  # an idle slot turns at least so often: its heartbeat
STINT_S = 0.005  # how long a slot works without waiting before it lets other slots of its process work
ROW = 16  # jobs that a slot claims and commits together at most …
ROW_S = 0.02  # … and about how long that may take
NOTHING: Mapping[str, Any] = {}
CHANGED = "job status changed"  # the message that a slot logs for each committed job
TROUBLE_S = 1.0  # after a failure of the store itself: not a busy loop


class Turn(Enum):
    WORKED = auto()
    IDLE = auto()
    TROUBLE = auto()  # the store failed; the agent has left, and the next turn joins anew


class Until(Protocol):
    """Decide when a slot ends without being stopped."""

    patience_s: float  # how long an idle slot waits at most before it asks again

    def over(self, turn: Turn) -> bool:
        """Return whether the slot ends. Called after each turn."""


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
        store: WorkerStore,
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
        idle_wait: IdleWait | None = None,
        hand_off: HandOff | None = None,
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
        self._log = together(log)
        self._turns = turns or Turns()
        self._idle_wait = idle_wait or IdleWait()
        self._hand_off = hand_off
        self._agent: Agent | None = None
        self._bulk = store if isinstance(store, BatchStore) else None
        self._one_trip = store if isinstance(store, PipelinedStore) else None
        self._untold: list[LogEvent] = []  # claims that are logged together with their outcomes
        self._next: list[Claim] | None = None  # claimed already, for the next turn; None: to be claimed
        self._end_s = 0.0  # of this stint
        self._reach = 1  # jobs that are claimed at once: grows while they are small
        self._gathering = BatchWait(trips=self._one_trip is not None)

    def join(self) -> Agent:
        """Return this slot's agent; a new one if it has none. InputError: the role, the name or a tag is invalid."""
        if self._agent is None:
            self._agent = self._store.join(self._name, role=self._role, slot=self._number, tags=self._tags)
        return self._agent

    def leave(self) -> None:
        claims, self._next = self._next, None
        if claims:  # claimed for a turn that will not happen
            with contextlib.suppress(FarroError, OSError):  # recovery finds them
                self._hand_back(claims)
        agent, self._agent = self._agent, None
        if agent is not None:
            with contextlib.suppress(TryAgain):  # the store is unreachable: recovery finds the lease free, or expired
                self._store.leave(agent)

    def run_once(self) -> Turn:
        """Claim a job, perform it and commit its outcome, or find nothing to do. If the store supports it, several
        small jobs at once."""
        agent = self.join()
        self._store.heartbeat(agent)
        claims = deque(self._claimed(agent))
        began_s, number = self._clock.monotonic_s(), len(claims)
        self._gathering.count(began_s, number)
        if not claims:
            return Turn.IDLE
        scant = number < self._reach
        stream = scant and self._gathering.in_stream()
        ended: list[tuple[Claim, Outcome]] = []
        small = True
        try:
            while claims and not (number > 1 and self._stop.requested):
                small = self._go_on(agent, claims, ended) and small
            # Not counting the last commit: if commits are slow, larger batches help.
            now_s = self._clock.monotonic_s()
            took_s = now_s - began_s
            if took_s >= ROW_S:
                self._reach = max(1, self._reach // 2)
            elif small and number == self._reach and self._bulk is not None:
                self._reach = min(2 * self._reach, ROW)
            if stream and self._one_trip is not None:
                self._gather(took_s)
            asked_s = self._clock.monotonic_s()
            ahead = small and not claims and not self._stop.requested and (scant or now_s < self._end_s)
            self._settle(agent, ended, claims, ahead=ahead)
            self._gathering.over(asked_s, self._clock.monotonic_s())
            if stream and self._one_trip is None:
                self._gather(took_s)
        except AgentLost:
            raise
        except BaseException:
            with contextlib.suppress(FarroError, OSError):
                self._settle(agent, ended, claims)
            raise
        return Turn.WORKED

    def _gather(self, took_s: float) -> None:
        """Wait for more jobs before the next claim, if they come in a stream."""
        self._turns.hold(self._gathering.wait_s(took_s))

    def _claimed(self, agent: Agent) -> list[Claim]:
        claimed, self._next = self._next, None
        if claimed is not None:
            claims = claimed
        elif self._bulk is None or self._reach == 1:
            claim = self._store.claim(agent)
            claims = [] if claim is None else [claim]
        else:
            claims = self._bulk.claim_batch(agent, self._reach)
        if claims:
            event = {"type": "state_transition", "from": "queued", "to": "in_progress"}
            then = {"timestamp": timestamp(self._clock.now())}
            self._untold += [self._line(claim, "info", "job claimed", event, then) for claim in claims]
        return claims

    def _go_on(self, agent: Agent, claims: deque[Claim], ended: list[tuple[Claim, Outcome]]) -> bool:
        """Perform the next claims: as many small jobs as possible in one batch, or else one job.

        Before a job that takes longer, the finished ones are committed, and those not begun are released to other
        workers. Returns whether there was a batch: if not, claiming several jobs is useless.
        """
        row = [] if self._stop.requested else self._performer.run_batch(claims)
        begun: list[tuple[Claim, BegunCall | None]] = []
        for came in row:
            claim = claims.popleft()
            if isinstance(came, BegunCall):
                begun.append((claim, came))
            else:
                ended.append((claim, came))
        if not row:
            begun.append((claims.popleft(), None))
        if begun:
            self._settle(agent, ended, claims)
        for claim, way in sorted(begun, key=lambda one: one[1] is None or not one[1].over):
            self._perform(agent, claim, way)
        return bool(row)

    def _perform(self, agent: Agent, claim: Claim, begun: BegunCall | None) -> None:
        """Perform one job to its end, with heartbeats, and commit it."""
        try:
            if begun is None or begun.run.exit is None:
                self._say()
                self._idle_wait.relieve()
                if self._bulk is not None:
                    self._bulk.record_claim(claim)
            tick = lambda: self._beat(agent, claim)  # noqa: E731
            outcome = self._performer.perform(claim, tick, self._stop, begun)
            self._say(self._committed(claim, self._commit(agent, claim, outcome)))
        except NoFolder:
            self._store.release(claim, "no folder could be made for it")  # another machine may have room
            raise
        except AgentLost:
            raise
        except Lost as lost:
            self._say(self._committed(claim, lost))

    def _settle(
        self, agent: Agent, ended: list[tuple[Claim, Outcome]], claims: deque[Claim], *, ahead: bool = False
    ) -> None:
        """Commit the finished jobs, and release those that were not begun. `ahead`: claim for the next turn, if the
        store can do it in the same request."""
        if claims:
            waiting = list(claims)
            claims.clear()
            self._reach = 1
            self._hand_back(waiting)
        done, ended[:] = list(ended), []
        told: list[Lifecycle | Lost]
        if done and self._bulk is not None and all(self._ends_here(*one) for one in done):
            if ahead and self._one_trip is not None:
                told, self._next = self._one_trip.commit_and_claim(agent, done, self._reach)
            else:
                told = self._bulk.commit_batch(done)
        else:
            told = [self._tried(agent, claim, outcome) for claim, outcome in done]
        self._say(*(self._committed(claim, what) for (claim, _), what in zip(done, told, strict=True)))
        for what in told:
            if isinstance(what, AgentLost):
                raise what

    def _hand_back(self, claims: list[Claim]) -> None:
        if self._bulk is not None:
            self._bulk.hand_back(claims)
            event = {"type": "state_transition", "from": "in_progress", "to": "queued"}
            self._say(*(self._line(claim, "info", "job handed back, not begun", event) for claim in claims))

    def _ends_here(self, claim: Claim, outcome: Outcome) -> bool:
        return self._hand_off is None or self._hand_off.ends_here(claim, outcome)

    def _tried(self, agent: Agent, claim: Claim, outcome: Outcome) -> Lifecycle | Lost:
        try:
            return self._commit(agent, claim, outcome)
        except Lost as lost:
            return lost

    def _commit(self, agent: Agent, claim: Claim, outcome: Outcome) -> Lifecycle:
        if self._hand_off is None:
            return self._store.commit(claim, outcome)
        return self._hand_off.commit(claim, outcome, lambda: self._beat(agent, claim), self._stop)

    def _committed(self, claim: Claim, told: Lifecycle | Lost) -> LogEvent:
        if isinstance(told, Lost):
            return self._line(claim, "warning", str(told), {"type": "claim_lost"})
        event = {"type": "state_transition", "from": "in_progress", "to": str(told.status)}
        extra = {"error": told.error["category"]} if told.error else {}
        return self._line(claim, "info", CHANGED, {**event, **extra})

    def _beat(self, agent: Agent, claim: Claim) -> None:
        """Send a heartbeat while a job runs. An unreachable store is no reason to end the job: if its lease ran out,
        the commit reports it."""
        with contextlib.suppress(TryAgain):
            self._store.heartbeat(agent, claim)

    def run(self, until: Until) -> None:
        """Repeat turns until stopped, or until `until` is over."""
        try:
            cursor = 0 if self._one_trip else self._store.changes(None, role=self._role).cursor
            while not self._stop.requested:
                with self._turns.turn():
                    turn, over = self._stint(until)
                if over:
                    return
                if turn is Turn.IDLE and self._one_trip is not None:
                    turn = self._safely(lambda: self._rung(until))
                elif turn is Turn.IDLE:
                    cursor = self._waited(cursor, until)
                if turn is Turn.TROUBLE:
                    self._idle_wait.relieve()
                    self._clock.sleep(TROUBLE_S)
        finally:
            self._idle_wait.relieve()
            self.leave()

    def _rung(self, until: Until) -> Turn:
        """Wait like `_waited` in a store that can wait and claim in one request; the claims are for the next turn."""
        agent, one_trip = self.join(), self._one_trip
        assert one_trip is not None
        patience_s = min(until.patience_s, self._idle_s)
        if not self._stop.requested:
            self._next = self._idle_wait.wait(
                lambda: one_trip.claim_or_wait(agent, self._reach, patience_s), patience_s
            )
        return Turn.IDLE

    def _waited(self, cursor: int, until: Until) -> int:
        """Wait until the queue changes, or for as long as an idle slot waits; return the new cursor."""
        patience_s = self._patience_s(until)
        try:
            seen = self._idle_wait.wait(
                lambda: self._store.changes(cursor, role=self._role, timeout_s=patience_s), patience_s
            )
            return (seen or self._store.changes(None, role=self._role)).cursor
        except TryAgain as error:  # a server that is away
            self._trouble(f"{type(error).__name__}: {error}")
            self._idle_wait.relieve()
            self._clock.sleep(TROUBLE_S)
            return cursor

    def _stint(self, until: Until) -> tuple[Turn, bool]:
        """Do turns for a moment while there is work; return the last one, and whether `until` is over. Switching to
        another slot after every job would cost more than a small job."""
        self._end_s = self._clock.monotonic_s() + STINT_S
        while True:
            turn = self._safely(self.run_once)
            if until.over(turn):
                return turn, True
            if turn is not Turn.WORKED or self._stop.requested:
                return turn, False
            if self._clock.monotonic_s() >= self._end_s:
                return turn, False

    def _safely(self, turn: Callable[[], Turn]) -> Turn:
        """Do a turn whose errors stay in this slot. After one the agent leaves: recovery looks at what it held."""
        try:
            return turn()
        except SyncFailed:
            raise  # it is unknown what reached the disk: the worker stops, recovery decides (R7)
        except AgentLost as lost:
            self._say(("warning", str(lost), {"event": {"type": "agent_lost"}}))
            self.leave()
            return Turn.WORKED
        except (FarroError, OSError) as error:
            self._trouble(f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - the edge of the loop: one job's bug must not end the others' worker
            self._trouble(f"{type(error).__name__}: {error}", {"traceback": traceback.format_exc()})
        return Turn.TROUBLE

    def _trouble(self, message: str, more: Mapping[str, Any] | None = None) -> None:
        self._say(("error", message, {"event": {"type": "slot_trouble"}, **(more or {})}))
        self.leave()

    def _patience_s(self, until: Until) -> float:
        longest_s = min(until.patience_s, self._idle_s)
        due = self._store.next_due(self._role)
        if due is None:
            return longest_s
        return min(longest_s, max(0.0, (due - self._clock.now()).total_seconds()))

    def _say(self, *events: LogEvent) -> None:
        """Flush deferred log events, then these."""
        untold, self._untold = self._untold, []
        self._log.many([*untold, *events])

    def _line(
        self, claim: Claim, level: str, message: str, event: Mapping[str, Any], more: Mapping[str, Any] = NOTHING
    ) -> LogEvent:
        lifecycle = claim.envelope.lifecycle
        fields = {
            "job_id": lifecycle.job_id,
            "role": self._role,
            "attempt": claim.attempt,
            "agent": claim.agent.id,
            "correlation_id": lifecycle.correlation_id,
            "event": event,
            **more,
        }
        return level, message, fields
