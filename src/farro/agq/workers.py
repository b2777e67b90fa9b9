"""Who holds which job: workers of this front, the agents that claim for them, and what happens when they are gone.

Blocking pops live in waiting, the calls of the store in hands; what is committed lives in operations.memo.

- A worker is a connection, or the id that connections announce. A job belongs to the worker that popped it, and only
  from its connections a result of it is taken.
- An agent of the store claims what one request asks for, and again when all of that is over. Its lease is this
  process's: when that dies, a watchdog recovers what it held; while it lives, a job is handed back as soon as its
  worker is gone.
- A worker without an id is gone with its connection. One with an id has `ttl_s` to come back.
- When it is back and pops on without a word of what a broken connection of it popped, the answer never reached it: such
  a job goes back after as long.
- Everything here runs in the event loop, but for the calls of the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from farro.agq import memo_jobs
from farro.agq.batch_calls import Ending, Hands, Take, Taken
from farro.agq.batcher import Desk, each
from farro.agq.deferred_reply import Later
from farro.agq.replies import CommandError
from farro.agq.roster import ANONYMOUS, WORKER_ID, Held, Kind, Seat, Worker
from farro.errors import FarroError, Lost
from farro.log.structured import Log
from farro.plans.memo import PostedResult
from farro.store.port import Agent, Store

MOMENT_S = 0.2  # what takes longer is shown to whoever looks at the store
STATUS_GRACE_S = 1.0  # how long a status waits for the result that usually comes with it
_IDLE = 8  # agents of one kind that are kept for the next claim
_REMEMBERED = 1024  # results of a worker that it may post again, or acknowledge


class Workers:
    def __init__(
        self,
        *,
        store: Store,
        call: Callable[..., Any],
        pulse: Callable[..., Any],
        desk: Desk,
        spawn: Callable[[Any], object],
        now_s: Callable[[], float],
        ttl_s: float,
        log: Log,
    ) -> None:
        self._store = store
        self._hands = Hands(store)
        self._desk = desk
        self._spawn = spawn
        self._call = call  # of the store, in a thread
        self._pulse = pulse  # the same, in a thread that heartbeats share with nobody
        self._now_s = now_s
        self._ttl_s = ttl_s
        self._log = log
        self._idle: dict[Kind, list[Seat]] = {}
        self.named: dict[str, Worker] = {}
        self.held: dict[str, Held] = {}  # of all workers, in the order of their pops
        self.popped = self.committed = self.returned = 0

    # --- who ---

    @staticmethod
    def is_id(word: bytes) -> bool:
        return len(word) <= 64 and WORKER_ID.fullmatch(word.decode("latin-1")) is not None

    def of(self, connection: Any) -> Worker:
        if connection.worker is None:
            connection.worker = Worker(id=None, seen_s=self._now_s(), ttl_s=self._ttl_s, connections={connection})
        elif connection.worker.gone:  # it was ended, and its connection is still here: a new beginning
            known, connection.worker = connection.worker, None
            return self.of(connection) if known.id is None else self.announce(connection, known.id)
        worker: Worker = connection.worker
        return worker

    def announce(self, connection: Any, worker_id: str) -> Worker:
        """The connection speaks for that worker from here on, also of what it popped before."""
        worker = self.touch(worker_id)
        before = connection.worker
        if before is not worker:
            connection.worker = worker
            worker.connections.add(connection)
            if before is not None:
                before.connections.discard(connection)
                if before.id is None:
                    for held in before.held.values():
                        held.worker = worker
                    worker.held.update(before.held)
                    worker.posted.update(before.posted)
                    before.held.clear()
                before.seen_s = self._now_s()
        return worker

    def touch(self, worker_id: str, ttl_s: float | None = None) -> Worker:
        """That worker is alive; a new one when it was not known."""
        if WORKER_ID.fullmatch(worker_id) is None:
            raise CommandError(f"{worker_id[:80]!a} is no worker id: 1 to 64 of A-Z a-z 0-9 _ . : -")
        worker = self.named.get(worker_id)
        if worker is None:
            if len(self.named) >= 10_000:
                raise CommandError("too many workers; those that are gone are forgotten after their time")
            worker = self.named[worker_id] = Worker(id=worker_id, seen_s=0.0, ttl_s=self._ttl_s)
        worker.seen_s = self._now_s()
        if ttl_s is not None:
            worker.ttl_s = min(max(ttl_s, 0.0), 86_400.0)
        return worker

    def left(self, connection: Any, *, said_bye: bool) -> Worker | None:
        """A connection is over. The worker that is gone with it, if one is."""
        worker: Worker | None = connection.worker
        connection.worker = None
        if worker is None:
            return None
        worker.connections.discard(connection)
        worker.seen_s = self._now_s()
        for held in worker.held.values():
            if held.connection is connection:
                held.connection = None
        if worker.connections or (worker.id is not None and not said_bye):
            return None
        return worker

    def overdue(self) -> list[Worker]:
        now_s = self._now_s()
        return [worker for worker in self.named.values() if worker.left_s(now_s) <= 0]

    def mentioned(self, connection: Any, job_id: str) -> None:
        """Who speaks of a job that it holds knows of it."""
        held = None if connection.worker is None else connection.worker.held.get(job_id)
        if held is not None:
            held.connection, held.doubted_s = connection, None

    def unheard(self) -> list[Held]:
        """Jobs whose workers do not seem to know of them."""
        now_s = self._now_s()
        return [
            held
            for held in self.held.values()
            if held.doubted_s is not None and now_s - held.doubted_s > held.worker.ttl_s
        ]

    async def end(self, worker: Worker, why: str) -> None:
        """Its jobs go back to where they came from."""
        worker.gone = True
        if worker.id is not None and self.named.get(worker.id) is worker:
            del self.named[worker.id]
        await asyncio.gather(*(self.give_back(held, why) for held in list(worker.held.values())))
        if worker.id is not None:
            await self._dismiss(lambda kind: kind[0] == worker.agent_name)

    # --- claiming ---

    async def claim(self, worker: Worker, role: str, limit: int = 1, *, row: bool = False) -> list[Held]:
        """The next jobs of that role for this worker, up to so many; none where there is none. `row`: it takes several
        in a row, and most of them are over in a moment."""
        later = Later()
        self.take(worker, role, limit, later.answer, row=row)
        held: list[Held] = await later.wait()
        return held

    def take(
        self, worker: Worker, role: str, limit: int, told: Callable[[list[Held] | Exception], None], *, row: bool
    ) -> None:
        """The same; `told` has them, or what went wrong."""
        for other in worker.held.values():
            if other.connection is None and other.doubted_s is None:
                other.doubted_s = self._now_s()
        kind = worker.agent_name, role, worker.tags
        waiting = self._idle.get(kind)
        seat = waiting.pop() if waiting else None
        self._desk.ask(self._hands.take_all, Take(kind, seat, limit, row), partial(self._taken, worker, told))

    def _taken(self, worker: Worker, told: Callable[[list[Held] | Exception], None], answer: Taken | Exception) -> None:
        if isinstance(answer, Exception):
            told(answer)
            return
        seat, jobs = answer
        seat.held = len(jobs)
        if not jobs:
            self._keep(seat, leaves=worker.gone)
        now_s = self._now_s()
        found = [Held(claim=claim, seat=seat, text=text, worker=worker, since_s=now_s) for claim, text in jobs]
        for held in found:
            self.held[held.job_id] = held
            worker.held[held.job_id] = held
            worker.posted.pop(held.job_id, None)  # an earlier attempt's: this one has its own result
        self.popped += len(found)
        if worker.gone:
            for held in found:
                self._spawn(self.give_back(held, "its worker went away"))
            found = []
        told(found)

    def _keep(self, seat: Seat, *, leaves: bool) -> None:
        """For the next claim of that kind."""
        idle = self._idle.setdefault(seat.kind, [])
        if leaves or seat.retired or len(idle) >= (_IDLE if seat.kind[0] == ANONYMOUS else 1):
            self._spawn(self._call(self._hands.leave, seat.agent))
        else:
            idle.append(seat)

    # --- ending ---

    def holding(self, worker: Worker, job_id: str) -> Held:
        held = worker.held.get(job_id)
        if held is None:
            raise CommandError(f"claim lost: {job_id} is not held by this connection's worker")
        if held.busy:
            raise CommandError(f"{job_id} is being ended just now; ask again")
        return held

    def commit(
        self, held: Held, posted: PostedResult, document: Any, digest: bytes, told: Callable[[Any], None]
    ) -> None:
        """End it as its worker says. `told` has None, or what went wrong: ClaimLost, it was taken away; a passing
        trouble, it is still held."""
        held.calm()
        held.busy = True
        ending = Ending(held.claim, posted, document, held.worker.id)
        self._desk.ask(self._hands.end_all, ending, partial(self._ended, held, digest, told))

    def _ended(self, held: Held, digest: bytes, told: Callable[[Any], None], answer: Exception | None) -> None:
        held.busy = False
        if isinstance(answer, Lost):
            self._drop(held, lost=True)
        elif answer is not None:
            held.success = None
            if held.worker.gone:  # nobody will try again
                self._spawn(self.give_back(held, "its result could not be kept, and its worker is gone"))
        else:
            self.committed += 1
            remembered = held.worker.posted
            remembered[held.job_id] = digest
            while len(remembered) > _REMEMBERED:
                remembered.popitem(last=False)
            self._drop(held)
        told(answer)

    async def commit_status(self, held: Held) -> None:
        """A status said how it ended, and no result came."""
        assert held.success is not None
        posted = memo_jobs.of_status(held.claim, success=held.success, stdout=held.stdout, stderr=held.stderr)
        later = Later()
        self.commit(held, posted, {}, b"", later.answer)
        await later.wait()

    async def put_back(self, unbegun: Collection[Held]) -> None:
        """Its worker has not begun them: back to their places, as if nobody had had them."""
        for held in unbegun:
            held.calm()
            held.busy = True
        lost = True
        try:
            await self._at_desk(self._hands.hand_back, [held.claim for held in unbegun])
            lost = False
            self.returned += len(unbegun)
        finally:
            for held in unbegun:
                held.busy = False
                self._drop(held, lost=lost)

    async def _at_desk(self, function: Callable[..., Any], *args: Any) -> Any:
        """What is done to a claim is done where claims are committed: never two things to one at once."""
        later = Later()
        self._desk.ask(each, partial(function, *args), later.answer)
        return await later.wait()

    async def give_back(self, held: Held, why: str) -> None:
        """Hand it back; a worker that said how it ended has done its part, though."""
        if held.busy or self.held.get(held.job_id) is not held:
            return
        held.calm()
        try:
            if held.success is not None:
                await self.commit_status(held)
                return
            held.busy = True
            await self._at_desk(memo_jobs.let_go, self._store, held.claim, why)
            self.returned += 1
            self._log("info", "job handed back", {"job_id": held.job_id, "why": why})
        except Lost:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, the agent leaves: then a watchdog recovers it
            self._log("error", "job could not be handed back", {"job_id": held.job_id, "error": str(error)})
            self._drop(held, lost=True)
            return
        finally:
            held.busy = False
        self._drop(held)

    def _drop(self, held: Held, *, lost: bool = False) -> None:
        """Once: several ways may lead here for one job, and its seat counts those that it still has."""
        if held.dropped:
            return
        held.dropped = True
        if self.held.get(held.job_id) is held:
            del self.held[held.job_id]
        if held.worker.held.get(held.job_id) is held:
            del held.worker.held[held.job_id]
        seat = held.seat
        seat.held -= 1
        seat.retired = seat.retired or lost
        if seat.held == 0:
            self._keep(seat, leaves=held.worker.gone)

    # --- keeping ---

    async def record_claim(self) -> None:
        """Jobs of a row that are not over in a moment: from here on the store shows all that it knows of them."""
        late_s = self._now_s() - MOMENT_S
        slow = [held for held in self.held.values() if not (held.shown or held.busy) and held.since_s < late_s]
        for held in slow:
            held.shown = True
        if slow:
            await self._at_desk(self._hands.record_claim, [held.claim for held in slow if held.seat.row])

    async def beat(self) -> None:
        """Tell the store that all of them are alive; learn what was taken away."""
        holding = [held for held in self.held.values() if not held.busy]
        idle = [seat for seats in self._idle.values() for seat in seats]
        lost: list[Held]
        dead: list[Agent]
        lost, dead = await self._pulse(self._beat, holding, [seat.agent for seat in idle])
        for taken in lost:
            if self.held.get(taken.job_id) is taken and not taken.busy:
                self._log("warning", "a job was taken from its worker", {"job_id": taken.job_id})
                taken.calm()
                self._drop(taken, lost=True)
        for seat in idle:
            if seat.agent in dead and seat in self._idle.get(seat.kind, ()):
                self._idle[seat.kind].remove(seat)
                await self._call(self._hands.leave, seat.agent)

    def _beat(self, holding: list[Held], idle: list[Agent]) -> tuple[list[Held], list[Agent]]:
        lost, dead = [], []
        for held in holding:
            try:
                self._store.heartbeat(held.claim.agent, held.claim)
            except Lost:
                lost.append(held)
            except (FarroError, OSError) as error:  # the others' hearts go on
                self._log("error", "a heartbeat failed", {"job_id": held.job_id, "error": str(error)})
        for agent in idle:
            try:
                self._store.heartbeat(agent)
            except Lost:
                dead.append(agent)
            except (FarroError, OSError) as error:
                self._log("error", "a heartbeat failed", {"agent": agent.id, "error": str(error)})
        return lost, dead

    async def close(self, why: str) -> None:
        """Everything goes back."""
        await asyncio.gather(*(self.give_back(held, why) for held in list(self.held.values())))
        await self._dismiss(lambda kind: True)

    async def _dismiss(self, which: Callable[[Kind], bool]) -> None:
        for kind in [kind for kind in self._idle if which(kind)]:
            for seat in self._idle.pop(kind):
                await self._call(self._hands.leave, seat.agent)

    def agents(self) -> set[str]:
        """The store's agents that are this front's."""
        idle = {seat.agent.id for seats in self._idle.values() for seat in seats}
        return idle | {held.claim.agent.id for held in self.held.values()}
