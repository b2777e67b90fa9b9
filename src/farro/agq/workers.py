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
from farro.agq.batch_calls import ClaimCalls, ClaimedJobs, ClaimRequest, CommitRequest
from farro.agq.batcher import Batcher, each
from farro.agq.replies import CommandError, DeferredReply
from farro.agq.roster import ANONYMOUS, WORKER_ID, AgentKind, ClaimingAgent, HeldJob, RemoteWorker
from farro.errors import FarroError, Lost
from farro.log.structured import Log
from farro.plans.memo import PostedResult
from farro.store.port import Agent, Store

MOMENT_S = 0.2  # what takes longer is recorded to whoever looks at the store
STATUS_GRACE_S = 1.0  # how long a status waits for the result that usually comes with it
_IDLE = 8  # agents of one kind that are kept for the next claim
_REMEMBERED = 1024  # results of a worker that it may post again, or acknowledge


class RemoteWorkers:
    def __init__(
        self,
        *,
        store: Store,
        call: Callable[..., Any],
        call_heartbeat: Callable[..., Any],
        batcher: Batcher,
        spawn: Callable[[Any], object],
        now_s: Callable[[], float],
        ttl_s: float,
        log: Log,
    ) -> None:
        self._store = store
        self._calls = ClaimCalls(store)
        self._batcher = batcher
        self._spawn = spawn
        self._call = call  # of the store, in a thread
        self._call_heartbeat = call_heartbeat  # the same, in a thread that heartbeats share with nobody
        self._now_s = now_s
        self._ttl_s = ttl_s
        self._log = log
        self._idle: dict[AgentKind, list[ClaimingAgent]] = {}
        self.named: dict[str, RemoteWorker] = {}
        self.held: dict[str, HeldJob] = {}  # of all workers, in the order of their pops
        self.popped = self.committed = self.returned = 0

    # --- who ---

    @staticmethod
    def is_id(word: bytes) -> bool:
        return len(word) <= 64 and WORKER_ID.fullmatch(word.decode("latin-1")) is not None

    def of(self, connection: Any) -> RemoteWorker:
        if connection.worker is None:
            connection.worker = RemoteWorker(id=None, seen_s=self._now_s(), ttl_s=self._ttl_s, connections={connection})
        elif connection.worker.gone:  # it was ended, and its connection is still here: a new beginning
            known, connection.worker = connection.worker, None
            return self.of(connection) if known.id is None else self.announce(connection, known.id)
        worker: RemoteWorker = connection.worker
        return worker

    def announce(self, connection: Any, worker_id: str) -> RemoteWorker:
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

    def touch(self, worker_id: str, ttl_s: float | None = None) -> RemoteWorker:
        """That worker is alive; a new one when it was not known."""
        if WORKER_ID.fullmatch(worker_id) is None:
            raise CommandError(f"{worker_id[:80]!a} is no worker id: 1 to 64 of A-Z a-z 0-9 _ . : -")
        worker = self.named.get(worker_id)
        if worker is None:
            if len(self.named) >= 10_000:
                raise CommandError("too many workers; those that are gone are forgotten after their time")
            worker = self.named[worker_id] = RemoteWorker(id=worker_id, seen_s=0.0, ttl_s=self._ttl_s)
        worker.seen_s = self._now_s()
        if ttl_s is not None:
            worker.ttl_s = min(max(ttl_s, 0.0), 86_400.0)
        return worker

    def disconnect(self, connection: Any, *, said_bye: bool) -> RemoteWorker | None:
        """A connection is over. The worker that is gone with it, if one is."""
        worker: RemoteWorker | None = connection.worker
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

    def overdue(self) -> list[RemoteWorker]:
        now_s = self._now_s()
        return [worker for worker in self.named.values() if worker.remaining_s(now_s) <= 0]

    def confirm(self, connection: Any, job_id: str) -> None:
        """Who speaks of a job that it holds knows of it."""
        held = None if connection.worker is None else connection.worker.held.get(job_id)
        if held is not None:
            held.connection, held.unconfirmed_s = connection, None

    def unconfirmed(self) -> list[HeldJob]:
        """Jobs whose workers do not seem to know of them."""
        now_s = self._now_s()
        return [
            held
            for held in self.held.values()
            if held.unconfirmed_s is not None and now_s - held.unconfirmed_s > held.worker.ttl_s
        ]

    async def end(self, worker: RemoteWorker, why: str) -> None:
        """Its jobs go back to where they came from."""
        worker.gone = True
        if worker.id is not None and self.named.get(worker.id) is worker:
            del self.named[worker.id]
        await asyncio.gather(*(self.hand_back(held, why) for held in list(worker.held.values())))
        if worker.id is not None:
            await self._dismiss_agents(lambda kind: kind[0] == worker.agent_name)

    # --- claiming ---

    async def claim(self, worker: RemoteWorker, role: str, limit: int = 1, *, batch: bool = False) -> list[HeldJob]:
        """The next jobs of that role for this worker, up to so many; none where there is none. `batch`: it takes several
        in a batch, and most of them are over in a moment."""
        later = DeferredReply()
        self.claim_then(worker, role, limit, later.answer, batch=batch)
        held: list[HeldJob] = await later.wait()
        return held

    def claim_then(
        self,
        worker: RemoteWorker,
        role: str,
        limit: int,
        callback: Callable[[list[HeldJob] | Exception], None],
        *,
        batch: bool,
    ) -> None:
        """The same; `callback` has them, or what went wrong."""
        for other in worker.held.values():
            if other.connection is None and other.unconfirmed_s is None:
                other.unconfirmed_s = self._now_s()
        kind = worker.agent_name, role, worker.tags
        waiting = self._idle.get(kind)
        claimer = waiting.pop() if waiting else None
        self._batcher.submit(
            self._calls.claim_all, ClaimRequest(kind, claimer, limit, batch), partial(self._claimed, worker, callback)
        )

    def _claimed(
        self,
        worker: RemoteWorker,
        callback: Callable[[list[HeldJob] | Exception], None],
        answer: ClaimedJobs | Exception,
    ) -> None:
        if isinstance(answer, Exception):
            callback(answer)
            return
        claimer, jobs = answer
        claimer.held = len(jobs)
        if not jobs:
            self._reuse(claimer, leaves=worker.gone)
        now_s = self._now_s()
        found = [HeldJob(claim=claim, claimer=claimer, text=text, worker=worker, since_s=now_s) for claim, text in jobs]
        for held in found:
            self.held[held.job_id] = held
            worker.held[held.job_id] = held
            worker.posted.pop(held.job_id, None)  # an earlier attempt's: this one has its own result
        self.popped += len(found)
        if worker.gone:
            for held in found:
                self._spawn(self.hand_back(held, "its worker went away"))
            found = []
        callback(found)

    def _reuse(self, claimer: ClaimingAgent, *, leaves: bool) -> None:
        """For the next claim of that kind."""
        idle = self._idle.setdefault(claimer.kind, [])
        if leaves or claimer.retired or len(idle) >= (_IDLE if claimer.kind[0] == ANONYMOUS else 1):
            self._spawn(self._call(self._calls.leave, claimer.agent))
        else:
            idle.append(claimer)

    # --- ending ---

    def holding(self, worker: RemoteWorker, job_id: str) -> HeldJob:
        held = worker.held.get(job_id)
        if held is None:
            raise CommandError(f"claim lost: {job_id} is not held by this connection's worker")
        if held.busy:
            raise CommandError(f"{job_id} is being ended just now; ask again")
        return held

    def commit(
        self, held: HeldJob, posted: PostedResult, document: Any, digest: bytes, callback: Callable[[Any], None]
    ) -> None:
        """End it as its worker says. `callback` has None, or what went wrong: ClaimLost, it was taken away; a passing
        trouble, it is still held."""
        held.cancel_timer()
        held.busy = True
        ending = CommitRequest(held.claim, posted, document, held.worker.id)
        self._batcher.submit(self._calls.commit_all, ending, partial(self._committed, held, digest, callback))

    def _committed(
        self, held: HeldJob, digest: bytes, callback: Callable[[Any], None], answer: Exception | None
    ) -> None:
        held.busy = False
        if isinstance(answer, Lost):
            self._drop(held, lost=True)
        elif answer is not None:
            held.success = None
            if held.worker.gone:  # nobody will try again
                self._spawn(self.hand_back(held, "its result could not be kept, and its worker is gone"))
        else:
            self.committed += 1
            remembered = held.worker.posted
            remembered[held.job_id] = digest
            while len(remembered) > _REMEMBERED:
                remembered.popitem(last=False)
            self._drop(held)
        callback(answer)

    async def commit_status(self, held: HeldJob) -> None:
        """A status said how it ended, and no result came."""
        assert held.success is not None
        posted = memo_jobs.status_result(held.claim, success=held.success, stdout=held.stdout, stderr=held.stderr)
        later = DeferredReply()
        self.commit(held, posted, {}, b"", later.answer)
        await later.wait()

    async def return_unbegun(self, unbegun: Collection[HeldJob]) -> None:
        """Its worker has not begun them: back to their places, as if nobody had had them."""
        for held in unbegun:
            held.cancel_timer()
            held.busy = True
        lost = True
        try:
            await self._in_batcher(self._calls.hand_back, [held.claim for held in unbegun])
            lost = False
            self.returned += len(unbegun)
        finally:
            for held in unbegun:
                held.busy = False
                self._drop(held, lost=lost)

    async def _in_batcher(self, function: Callable[..., Any], *args: Any) -> Any:
        """What is done to a claim is done where claims are committed: never two things to one at once."""
        later = DeferredReply()
        self._batcher.submit(each, partial(function, *args), later.answer)
        return await later.wait()

    async def hand_back(self, held: HeldJob, why: str) -> None:
        """Hand it back; a worker that said how it ended has done its part, though."""
        if held.busy or self.held.get(held.job_id) is not held:
            return
        held.cancel_timer()
        try:
            if held.success is not None:
                await self.commit_status(held)
                return
            held.busy = True
            await self._in_batcher(memo_jobs.release, self._store, held.claim, why)
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

    def _drop(self, held: HeldJob, *, lost: bool = False) -> None:
        """Once: several ways may lead here for one job, and its claimer counts those that it still has."""
        if held.dropped:
            return
        held.dropped = True
        if self.held.get(held.job_id) is held:
            del self.held[held.job_id]
        if held.worker.held.get(held.job_id) is held:
            del held.worker.held[held.job_id]
        claimer = held.claimer
        claimer.held -= 1
        claimer.retired = claimer.retired or lost
        if claimer.held == 0:
            self._reuse(claimer, leaves=held.worker.gone)

    # --- keeping ---

    async def record_slow_claims(self) -> None:
        """Jobs of a batch that are not over in a moment: from here on the store shows all that it knows of them."""
        late_s = self._now_s() - MOMENT_S
        slow = [held for held in self.held.values() if not (held.recorded or held.busy) and held.since_s < late_s]
        for held in slow:
            held.recorded = True
        if slow:
            await self._in_batcher(self._calls.record_claim, [held.claim for held in slow if held.claimer.batch])

    async def heartbeat(self) -> None:
        """Tell the store that all of them are alive; learn what was taken away."""
        holding = [held for held in self.held.values() if not held.busy]
        idle = [claimer for claimers in self._idle.values() for claimer in claimers]
        lost: list[HeldJob]
        dead: list[Agent]
        lost, dead = await self._call_heartbeat(self._send_heartbeats, holding, [claimer.agent for claimer in idle])
        for taken in lost:
            if self.held.get(taken.job_id) is taken and not taken.busy:
                self._log("warning", "a job was taken from its worker", {"job_id": taken.job_id})
                taken.cancel_timer()
                self._drop(taken, lost=True)
        for claimer in idle:
            if claimer.agent in dead and claimer in self._idle.get(claimer.kind, ()):
                self._idle[claimer.kind].remove(claimer)
                await self._call(self._calls.leave, claimer.agent)

    def _send_heartbeats(self, holding: list[HeldJob], idle: list[Agent]) -> tuple[list[HeldJob], list[Agent]]:
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
        await asyncio.gather(*(self.hand_back(held, why) for held in list(self.held.values())))
        await self._dismiss_agents(lambda kind: True)

    async def _dismiss_agents(self, which: Callable[[AgentKind], bool]) -> None:
        for kind in [kind for kind in self._idle if which(kind)]:
            for claimer in self._idle.pop(kind):
                await self._call(self._calls.leave, claimer.agent)

    def agents(self) -> set[str]:
        """The store's agents that are this front's."""
        idle = {claimer.agent.id for claimers in self._idle.values() for claimer in claimers}
        return idle | {held.claim.agent.id for held in self.held.values()}
