"""The worker: slots that repeat `claim → run → commit`, all in one process.

Each slot is an agent of the store with its own thread. Small jobs are claimed, run and committed in batches
(docs/decisions/small-jobs-go-in-batches.md); a job that takes longer is run alone, with heartbeats.

- A slot ends an attempt's processes before it releases the job (R6).
- A `stop` gives running steps five seconds to end by themselves, then their jobs are released, all within ten
  (DESIGN §12).
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from enum import Enum, auto
from typing import Protocol

from farro.errors import AgentLost, ClaimLost, DiskFull, FarroError, NoFolder, SyncFailed, TryAgain
from farro.execution.stop import Stop
from farro.host import signals, time_slices, waiting
from farro.host.clock import Clock
from farro.host.thread_turns import RESTING, Turns
from farro.host.waiting import Flag
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Released
from farro.lazy_dataclass import dataclass, field
from farro.log.structured import Log
from farro.store.port import Agent, AttemptResult, Claim, NextClaim, WorkerStore, commit_one
from farro.worker.batching import IdleWait, Pace
from farro.worker.hand_off import HandOff
from farro.worker.job_log import JobLog
from farro.worker.perform import BegunJob, Performer

IDLE_S = 10.0  # an idle slot turns at least so often: its heartbeat
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


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSetup:
    """What all slots of a worker share."""

    store: WorkerStore
    role: str
    name: str  # of its agents
    performer: Performer
    clock: Clock
    log: Log
    tags: Collection[str] = ()
    hand_off: HandOff | None = None
    on_end: Callable[[Lifecycle], None] | None = None  # called with each job that has ended
    idle_s: float = IDLE_S
    turns: Turns = field(default_factory=Turns)
    idle_wait: IdleWait = field(default_factory=IdleWait)


class _Batch:
    """The claims of one turn."""

    def __init__(self, claims: Collection[Claim]) -> None:
        self.size = len(claims)
        self.waiting = deque(claims)  # not begun
        self.ended: list[AttemptResult] = []  # to be committed
        self.small = True  # each job is a function that may be over in a moment


class Slot:
    """One agent and its loop. `run_once` does one turn; `run` repeats it."""

    def __init__(self, setup: WorkerSetup, stop: Stop, number: int = 0) -> None:
        self._setup = setup
        self._store = setup.store
        self._clock = setup.clock
        self._stop = stop
        self._number = number
        self._log = JobLog(setup.log, setup.role, setup.clock)
        self._agent: Agent | None = None
        self._next: list[Claim] | None = None  # claimed with the last commit; None: to be claimed
        self._pace = Pace(setup.clock)

    def join(self) -> Agent:
        """Return this slot's agent; a new one if it has none. InputError: the role, the name or a tag is invalid."""
        if self._agent is None:
            setup = self._setup
            self._agent = self._store.join(setup.name, role=setup.role, slot=self._number, tags=setup.tags)
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

    # --- one turn ---

    def run_once(self) -> Turn:
        """Claim a batch, run it and commit it, or find nothing to do."""
        agent = self.join()
        self._store.heartbeat(agent)
        batch = _Batch(self._claim(agent))
        self._pace.claimed(batch.size)
        if not batch.size:
            return Turn.IDLE
        try:
            self._run(agent, batch)
            if wait_s := self._pace.ran(small=batch.small):
                self._setup.turns.hold(wait_s)
            goes_on = batch.small and not batch.waiting and not self._stop.requested
            self._commit(agent, batch, then_claim=self._pace.commits() and goes_on)
            self._pace.committed()
        except AgentLost:
            raise
        except BaseException:
            with contextlib.suppress(FarroError, OSError):
                self._commit(agent, batch)
            raise
        return Turn.WORKED

    def _claim(self, agent: Agent) -> list[Claim]:
        claims, self._next = self._next, None
        if claims is None:
            claims = self._store.claim(agent, self._pace.limit)
        self._log.claimed(claims)
        return claims

    def _run(self, agent: Agent, batch: _Batch) -> None:
        """Run the batch: as many small jobs as possible at once, and each job that takes longer by itself."""
        while batch.waiting and not (batch.size > 1 and self._stop.requested):
            longer: list[tuple[Claim, BegunJob]] = []
            for begun in self._setup.performer.begin(batch.waiting, self._stop):
                claim = batch.waiting.popleft()
                if isinstance(begun, BegunJob):
                    longer.append((claim, begun))
                else:
                    batch.ended.append(AttemptResult(claim, begun))
            if longer:
                self._commit(agent, batch)  # the finished jobs do not wait for it, and other workers take the rest
                batch.small = batch.small and longer[0][1].run is not None  # else no function: a batch is useless
            for claim, begun in sorted(longer, key=lambda each: not each[1].over):
                self._run_longer(agent, batch, claim, begun)

    def _run_longer(self, agent: Agent, batch: _Batch, claim: Claim, begun: BegunJob) -> None:
        """Run one job to its end, with heartbeats, and commit it."""
        try:
            if not begun.over:
                self._log.flush()
                self._setup.idle_wait.relieve()
                self._beat(agent, claim)
            outcome = self._setup.performer.finish(begun, lambda: self._beat(agent, claim), self._stop)
        except NoFolder:
            commit_one(self._store, claim, Released(note="no folder could be made for it"))  # another machine has room
            raise
        except ClaimLost as lost:
            self._log.committed([(claim, lost)])
        else:
            batch.ended.append(AttemptResult(claim, outcome))
            self._commit(agent, batch)

    # --- ends of jobs ---

    def _commit(self, agent: Agent, batch: _Batch, *, then_claim: bool = False) -> None:
        """Commit the finished jobs, and hand back those that were not begun."""
        waiting, ended = [*batch.waiting], [*batch.ended]
        batch.waiting.clear()
        batch.ended.clear()
        if waiting:
            self._pace.handed_back()
            self._hand_back(waiting)
        hand_off = self._setup.hand_off
        ending: list[AttemptResult] = []
        going_on: list[AttemptResult] = []
        for result in ended:
            (ending if hand_off is None or hand_off.ends_here(result) else going_on).append(result)
        if ending:
            self._send(ending, NextClaim(agent, self._pace.limit) if then_claim else None)
        for result in going_on:
            assert hand_off is not None
            self._hand_on(agent, result, hand_off)

    def _hand_on(self, agent: Agent, result: AttemptResult, hand_off: HandOff) -> None:
        """Commit a job that goes on to the manager, once it is known that a manager will take it."""
        claim = result.claim
        try:
            decided = hand_off.decide(result, lambda: self._beat(agent, claim), self._stop)
        except ClaimLost as lost:
            self._log.committed([(claim, lost)])
        else:
            self._send([decided])

    def _send(self, results: list[AttemptResult], then_claim: NextClaim | None = None) -> None:
        """Commit, and again while the disk is full: if the agent left, recovery would repeat what the jobs have done.
        After any other error it may be unknown whether the commit was accepted, so the agent leaves.
        [test_a_worker_on_a_full_disk_keeps_its_results_until_there_is_room,
        test_a_commit_of_unknown_outcome_is_not_repeated]"""
        commits = self._store.commit(results, then_claim)
        if then_claim is not None:
            self._next = commits.claims
        while refused := self._report(results, commits.answers):
            self._setup.idle_wait.relieve()
            with RESTING:
                self._clock.sleep(TROUBLE_S)
            if not (results := [result for result in refused if self._is_ours(result.claim)]):
                return
            commits = self._store.commit(results)

    def _is_ours(self, claim: Claim) -> bool:
        """Send a heartbeat; return whether the job is still this agent's."""
        try:
            self._beat(claim.agent, claim)
        except ClaimLost as lost:
            self._log.committed([(claim, lost)])
            return False
        return True

    def _report(self, results: list[AttemptResult], answers: Sequence[Lifecycle | FarroError]) -> list[AttemptResult]:
        """Log the answers to a commit; return the results for which there was no room. Raises other errors."""
        answered = list(zip(results, answers, strict=True))
        self._log.committed([(result.claim, answer) for result, answer in answered])
        if (on_end := self._setup.on_end) is not None:
            for answer in answers:
                if isinstance(answer, Lifecycle) and answer.terminal:
                    on_end(answer)
        for answer in answers:
            again = isinstance(answer, DiskFull) and not self._stop.requested
            if isinstance(answer, FarroError) and not isinstance(answer, ClaimLost) and not again:
                raise answer
        refused = [(result, answer) for result, answer in answered if isinstance(answer, DiskFull)]
        if refused:
            self._log.trouble(refused[0][1])
        return [result for result, _ in refused]

    def _hand_back(self, claims: list[Claim]) -> None:
        self._store.hand_back(claims)
        self._log.handed_back(claims)

    def _beat(self, agent: Agent, claim: Claim) -> None:
        """Send a heartbeat while a job runs. An unreachable store is no reason to end the job: if its lease ran out,
        the commit reports it."""
        with contextlib.suppress(TryAgain):
            self._store.heartbeat(agent, claim)

    # --- the loop ---

    def run(self, until: Until) -> None:
        """Repeat turns until stopped, or until `until` is over."""
        setup = self._setup
        try:
            while not self._stop.requested:
                with setup.turns.turn():
                    turn, over = self._stint(until)
                if over:
                    return
                if turn is Turn.IDLE:
                    turn = self._safely(lambda: self._wait(until))
                if turn is Turn.TROUBLE:
                    setup.idle_wait.relieve()
                    self._clock.sleep(TROUBLE_S)
        finally:
            setup.idle_wait.relieve()
            self.leave()

    def _stint(self, until: Until) -> tuple[Turn, bool]:
        """Do turns for a moment while there is work; return the last one, and whether `until` is over. Switching to
        another slot after every job would cost more than a small job."""
        self._pace.begin_stint()
        while True:
            turn = self._safely(self.run_once)
            if until.over(turn):
                return turn, True
            if turn is not Turn.WORKED or self._stop.requested or self._pace.stint_is_over():
                return turn, False

    def _wait(self, until: Until) -> Turn:
        """Wait for the queue; what is claimed then is for the next turn."""
        agent, patience_s = self.join(), min(until.patience_s, self._setup.idle_s)
        if not self._stop.requested:
            self._next = self._setup.idle_wait.wait(
                lambda: self._store.claim(agent, self._pace.limit, patience_s), patience_s
            )
        return Turn.IDLE

    def _safely(self, turn: Callable[[], Turn]) -> Turn:
        """Do a turn whose errors stay in this slot. After one the agent leaves: recovery looks at what it held."""
        try:
            return turn()
        except SyncFailed:
            raise  # it is unknown what reached the disk: the worker stops, recovery decides (R7)
        except AgentLost as lost:
            self._log.agent_lost(lost)
            self.leave()
            return Turn.WORKED
        except Exception as error:  # noqa: BLE001 - the edge of the loop: one job's bug must not end the others' worker
            self._log.trouble(error)
            self.leave()
            return Turn.TROUBLE


class Worker:
    """All slots of one process, started and ended together."""

    def __init__(self, setup: WorkerSetup, *, slots: int, until: Until | None = None) -> None:
        self._setup = setup
        self._until = until or Never()
        self._stop = Stop(setup.clock)
        self._slots = [Slot(setup, self._stop, number) for number in range(slots)]
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
        """Return when stopped or when `until` is over; raise the error that ended a slot."""
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
        """Return when every slot has ended; raise the error that ended one."""
        poll = waiting.poller(self._ended.fd, self._stop.fd)
        told = False
        with signals.wakeup() as fd:
            if fd is not None:
                poll.register(fd, waiting.READABLE)
            while self._ended.fd not in (ready := [found for found, _ in poll.poll()]):
                if fd is not None and fd in ready:
                    signals.heard(fd)
                if self._stop.requested and not told:
                    poll.unregister(self._stop.fd)  # it stays readable
                    self._setup.store.wake(self._setup.role)
                    told = True
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _run_slot(self, slot: Slot) -> None:
        time_slices.take_long()
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
