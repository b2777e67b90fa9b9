"""Record the workers of this server, claim jobs for them, and hand the jobs back when their workers are gone.

- A worker is a connection, or the id that connections announce. A job belongs to the worker that popped it, and a
  result is accepted only from its connections.
- An agent of the store claims the jobs of one request, and claims again when all have ended. Its lease belongs to this
  process: if this process dies, a watchdog recovers the jobs; while it lives, a job is handed back as soon as its
  worker is gone.
- A worker without an id is gone with its connection. One with an id has `ttl_s` to come back.
- If it comes back and claims on, but never names a job that a broken connection popped, the reply did not reach it: the
  job is handed back after the same time.
- Everything except calls of the store runs in the event loop.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from farro.agq import memo_jobs
from farro.agq.batcher import (
    AgentKind,
    Batcher,
    ClaimCalls,
    ClaimingAgent,
    ClaimRequest,
    CommitRequest,
    each,
)
from farro.agq.resp import CommandError
from farro.errors import FarroError, Lost
from farro.jobs import ids
from farro.lazy_dataclass import dataclass, field
from farro.log.structured import Log
from farro.plans.memo import PostedResult
from farro.store.port import Agent, Claim, Store

MOMENT_S = 0.2  # claims that last longer become visible in the store
STATUS_GRACE_S = 1.0  # how long a status waits for the result that usually follows
_IDLE = 8  # idle agents of one kind that are kept for the next claim
_REMEMBERED = 1024  # results that a worker may post again or acknowledge
ANONYMOUS = "agq"
WORKER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")


@dataclass(kw_only=True, eq=False)
class HeldJob:
    """A job that a worker holds."""

    claim: Claim
    claimer: ClaimingAgent
    text: bytes  # as the worker got it
    worker: RemoteWorker
    since_s: float = 0.0
    recorded: bool = False  # the store shows its whole claim, if it did not at once
    stdout: str = ""
    stderr: str = ""
    success: bool | None = None  # what a status said before, or instead of, a result
    timer: asyncio.TimerHandle | None = None
    busy: bool = False  # it is being committed or handed back
    dropped: bool = False  # it is no longer held here
    connection: Any = None  # the one that delivered it, or last named it; None: that connection is gone
    unconfirmed_s: float | None = None  # since when its worker claims on without having named it

    @property
    def job_id(self) -> str:
        return self.claim.job_id

    @property
    def role(self) -> str:
        return self.claimer.kind[1]

    def cancel_timer(self) -> None:
        """Cancel the timer of the job, if one is set."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


@dataclass(kw_only=True, eq=False)
class RemoteWorker:
    id: str | None
    seen_s: float
    ttl_s: float
    connections: set[Any] = field(default_factory=set)
    held: dict[str, HeldJob] = field(default_factory=dict)
    # job → digest of its result, for the latest ones
    posted: OrderedDict[str, bytes] = field(default_factory=OrderedDict)
    facts: dict[str, str] = field(default_factory=dict)  # what it announced: tools, tags, …
    gone: bool = False

    @property
    def tags(self) -> frozenset[str]:
        text = self.facts.get("tags", "")
        if not text:
            return frozenset()
        words = re.split(r"[\s,\[\]\"']+", text)
        return frozenset(tag for tag in words if ids.TAG.fullmatch(tag))

    @property
    def agent_name(self) -> str:
        if self.id is None:
            return ANONYMOUS
        return re.sub(r"[^A-Za-z0-9_-]", "-", self.id)[:32]

    def remaining_s(self, now_s: float) -> float:
        """Return how long the worker still counts as alive."""
        return self.ttl_s if self.connections else max(0.0, self.seen_s + self.ttl_s - now_s)


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
        self._call = call  # calls the store in a thread
        self._call_heartbeat = call_heartbeat  # the same, in a thread for heartbeats alone
        self._now_s = now_s
        self._ttl_s = ttl_s
        self._log = log
        self._idle: dict[AgentKind, list[ClaimingAgent]] = {}
        self.named: dict[str, RemoteWorker] = {}
        self.held: dict[str, HeldJob] = {}  # of all workers, in the order of their pops
        self.popped = self.committed = self.returned = 0

    # --- workers ---

    @staticmethod
    def is_id(word: bytes) -> bool:
        return len(word) <= 64 and WORKER_ID.fullmatch(word.decode("latin-1")) is not None

    def of(self, connection: Any) -> RemoteWorker:
        if connection.worker is None:
            connection.worker = RemoteWorker(id=None, seen_s=self._now_s(), ttl_s=self._ttl_s, connections={connection})
        elif connection.worker.gone:  # the worker was ended, but its connection remains: start anew
            known, connection.worker = connection.worker, None
            return self.of(connection) if known.id is None else self.announce(connection, known.id)
        worker: RemoteWorker = connection.worker
        return worker

    def announce(self, connection: Any, worker_id: str) -> RemoteWorker:
        """Let the connection speak for that worker from now on, also about the jobs that it popped before."""
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
        """Note that the worker is alive; create it if it is unknown."""
        if WORKER_ID.fullmatch(worker_id) is None:
            raise CommandError(f"{worker_id[:80]!a} is not a worker id: 1 to 64 of A-Z a-z 0-9 _ . : -")
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
        """Remove a closed connection; return the worker that is gone with it, if any."""
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
        """Note that the worker knows of a job, because it named it."""
        held = None if connection.worker is None else connection.worker.held.get(job_id)
        if held is not None:
            held.connection, held.unconfirmed_s = connection, None

    def unconfirmed(self) -> list[HeldJob]:
        """Return the jobs of which their workers do not seem to know."""
        now_s = self._now_s()
        return [
            held
            for held in self.held.values()
            if held.unconfirmed_s is not None and now_s - held.unconfirmed_s > held.worker.ttl_s
        ]

    async def end(self, worker: RemoteWorker, why: str) -> None:
        """End a worker, and hand its jobs back."""
        worker.gone = True
        if worker.id is not None and self.named.get(worker.id) is worker:
            del self.named[worker.id]
        await asyncio.gather(*(self.hand_back(held, why) for held in list(worker.held.values())))
        if worker.id is not None:
            await self._dismiss_agents(lambda kind: kind[0] == worker.agent_name)

    # --- claims ---

    async def claim(self, worker: RemoteWorker, role: str, limit: int = 1, *, batch: bool = False) -> list[HeldJob]:
        """Claim up to `limit` jobs of a role for this worker. `batch`: it takes several at once, and most of them end
        soon."""
        for other in worker.held.values():
            if other.connection is None and other.unconfirmed_s is None:
                other.unconfirmed_s = self._now_s()
        kind = worker.agent_name, role, worker.tags
        idle = self._idle.get(kind)
        request = ClaimRequest(kind, idle.pop() if idle else None, limit, batch)
        claimer, jobs = await self._batcher.call(self._calls.claim_all, request)
        claimer.held = len(jobs)
        if not jobs:
            self._reuse(claimer, leaves=worker.gone)
        now_s = self._now_s()
        found = [HeldJob(claim=claim, claimer=claimer, text=text, worker=worker, since_s=now_s) for claim, text in jobs]
        for held in found:
            self.held[held.job_id] = held
            worker.held[held.job_id] = held
            worker.posted.pop(held.job_id, None)  # of an earlier attempt; this one has its own result
        self.popped += len(found)
        if worker.gone:
            for held in found:
                self._spawn(self.hand_back(held, "its worker went away"))
            return []
        return found

    def _reuse(self, claimer: ClaimingAgent, *, leaves: bool) -> None:
        """Keep the agent for the next claim of its kind, or let it leave."""
        idle = self._idle.setdefault(claimer.kind, [])
        if leaves or claimer.retired or len(idle) >= (_IDLE if claimer.kind[0] == ANONYMOUS else 1):
            self._spawn(self._call(self._calls.leave, claimer.agent))
        else:
            idle.append(claimer)

    # --- commits ---

    def holding(self, worker: RemoteWorker, job_id: str) -> HeldJob:
        held = worker.held.get(job_id)
        if held is None:
            raise CommandError(f"claim lost: {job_id} is not held by this connection's worker")
        if held.busy:
            raise CommandError(f"{job_id} is being ended just now; ask again")
        return held

    async def commit(self, held: HeldJob, posted: PostedResult, document: Any, digest: bytes) -> None:
        """Commit what the worker posted. ClaimLost: the job was taken away; after a passing error it is still held."""
        held.cancel_timer()
        held.busy = True
        try:
            request = CommitRequest(held.claim, posted, document, held.worker.id)
            await self._batcher.call(self._calls.commit_all, request)
        except Lost:
            self._drop(held, lost=True)
            raise
        except Exception:
            held.success = None
            if held.worker.gone:  # no client will try again
                self._spawn(self.hand_back(held, "its result could not be kept, and its worker is gone"))
            raise
        finally:
            held.busy = False
        self.committed += 1
        remembered = held.worker.posted
        remembered[held.job_id] = digest
        while len(remembered) > _REMEMBERED:
            remembered.popitem(last=False)
        self._drop(held)

    async def commit_status(self, held: HeldJob) -> None:
        """Commit a job of which only a status came, without a result."""
        assert held.success is not None
        posted = memo_jobs.status_result(held.claim, success=held.success, stdout=held.stdout, stderr=held.stderr)
        await self.commit(held, posted, {}, b"")

    async def return_unbegun(self, unbegun: Collection[HeldJob]) -> None:
        """Put jobs that were not begun back to their old positions."""
        for held in unbegun:
            held.cancel_timer()
            held.busy = True
        lost = True
        try:
            await self._in_batcher(self._store.hand_back, [held.claim for held in unbegun])
            lost = False
            self.returned += len(unbegun)
        finally:
            for held in unbegun:
                held.busy = False
                self._drop(held, lost=lost)

    async def _in_batcher(self, function: Callable[..., Any], *args: Any) -> Any:
        """Make a call where claims are committed, so that no claim is changed by two calls at once."""
        return await self._batcher.call(each, partial(function, *args))

    async def hand_back(self, held: HeldJob, why: str) -> None:
        """Hand a job back. If its worker already posted a status, commit that instead."""
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
        except Exception as error:  # noqa: BLE001 - in any case the agent leaves, and a watchdog recovers the job
            self._log("error", "job could not be handed back", {"job_id": held.job_id, "error": str(error)})
            self._drop(held, lost=True)
            return
        finally:
            held.busy = False
        self._drop(held)

    def _drop(self, held: HeldJob, *, lost: bool = False) -> None:
        """Forget a job, once: several paths may lead here, and the agent counts the jobs that it still has."""
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

    # --- maintenance ---

    async def record_slow_claims(self) -> None:
        """Record batch claims that last longer than a moment, so that the store shows them whole."""
        late_s = self._now_s() - MOMENT_S
        slow = [held for held in self.held.values() if not (held.recorded or held.busy) and held.since_s < late_s]
        for held in slow:
            held.recorded = True
        if slow:
            await self._in_batcher(self._calls.record_claims, [held.claim for held in slow if held.claimer.batch])

    async def heartbeat(self) -> None:
        """Renew the leases of all agents, and drop jobs that were taken away."""
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
        lost = [held for held in holding if not self._beat(held.claim.agent, held.claim)]
        return lost, [agent for agent in idle if not self._beat(agent)]

    def _beat(self, agent: Agent, claim: Claim | None = None) -> bool:
        """Renew one lease; False: it is lost."""
        try:
            self._store.heartbeat(agent, claim)
        except Lost:
            return False
        except (FarroError, OSError) as error:  # the other heartbeats go on
            job_id = None if claim is None else claim.job_id
            self._log("error", "a heartbeat failed", {"agent": agent.id, "job_id": job_id, "error": str(error)})
        return True

    async def close(self, why: str) -> None:
        """Hand everything back."""
        await asyncio.gather(*(self.hand_back(held, why) for held in list(self.held.values())))
        await self._dismiss_agents(lambda kind: True)

    async def _dismiss_agents(self, which: Callable[[AgentKind], bool]) -> None:
        for kind in [kind for kind in self._idle if which(kind)]:
            for claimer in self._idle.pop(kind):
                await self._call(self._calls.leave, claimer.agent)

    def agents(self) -> set[str]:
        """Return the ids of the store's agents that belong to this server."""
        idle = {claimer.agent.id for claimers in self._idle.values() for claimer in claimers}
        return idle | {held.claim.agent.id for held in self.held.values()}
