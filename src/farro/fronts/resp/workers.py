"""Who holds which job: workers of this front, the agents that claim for them, and what happens when they are gone.

Blocking pops live in waiting; what is committed lives in operations.memo.

- A worker is a connection, or the id that connections announce. A job belongs to the worker that popped it, and only
  from its connections a result of it is taken.
- An agent of the store claims for one job at a time. Its lease is this process's: when that dies, a watchdog recovers
  what it held; while it lives, a job is handed back as soon as its worker is gone.
- A worker without an id is gone with its connection. One with an id has `ttl_s` to come back.
- When it is back and pops on without a word of what a broken connection of it popped, the answer never reached it: such
  a job goes back after as long.
- Everything here runs in the event loop, but for the calls of the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from farro.errors import AgentLost, BadDocument, FarroError, Lost
from farro.fronts.resp.replies import CommandError
from farro.kernel import ids
from farro.observe.log import Log
from farro.operations import memo
from farro.plans.memo import PostedResult
from farro.ports.store import Agent, Claim, Store

ANONYMOUS = "agq"
STATUS_GRACE_S = 1.0  # how long a status waits for the result that usually comes with it
_IDLE = 8  # agents of one kind that are kept for the next claim
_REMEMBERED = 1024  # results of a worker that it may post again, or acknowledge
WORKER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")

Kind = tuple[str, str, frozenset[str]]  # name, role, tags


@dataclass(kw_only=True, eq=False)
class Held:
    """A job in the hands of a worker."""

    claim: Claim
    kind: Kind
    text: bytes  # as it was given out
    worker: Worker
    stdout: str = ""
    stderr: str = ""
    success: bool | None = None  # what a status said, before or without a result
    timer: asyncio.TimerHandle | None = None
    busy: bool = False  # it is being committed or handed back
    connection: Any = None  # over which its worker was told of it, or last spoke of it; None: that one is gone
    doubted_s: float | None = None  # since when its worker pops on as if it had never heard of it

    @property
    def job_id(self) -> str:
        return self.claim.job_id


@dataclass(kw_only=True, eq=False)
class Worker:
    id: str | None
    seen_s: float
    ttl_s: float
    connections: set[Any] = field(default_factory=set)
    held: dict[str, Held] = field(default_factory=dict)
    posted: OrderedDict[str, bytes] = field(default_factory=OrderedDict)  # job → its result, as far as remembered
    facts: dict[str, str] = field(default_factory=dict)  # what it says of itself: tools, tags, …
    gone: bool = False

    @property
    def tags(self) -> frozenset[str]:
        said = re.split(r"[\s,\[\]\"']+", self.facts.get("tags", ""))
        return frozenset(tag for tag in said if ids.TAG.fullmatch(tag))

    @property
    def agent_name(self) -> str:
        if self.id is None:
            return ANONYMOUS
        return re.sub(r"[^A-Za-z0-9_-]", "-", self.id)[:32]

    def left_s(self, now_s: float) -> float:
        """How long it counts as alive."""
        return self.ttl_s if self.connections else max(0.0, self.seen_s + self.ttl_s - now_s)


class Workers:
    def __init__(
        self,
        *,
        store: Store,
        call: Callable[..., Any],
        pulse: Callable[..., Any],
        now_s: Callable[[], float],
        ttl_s: float,
        log: Log,
    ) -> None:
        self._store = store
        self._call = call  # of the store, in a thread
        self._pulse = pulse  # the same, in a thread that heartbeats share with nobody
        self._now_s = now_s
        self._ttl_s = ttl_s
        self._log = log
        self._idle: dict[Kind, list[Agent]] = {}
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

    async def claim(self, worker: Worker, role: str) -> Held | None:
        """The next job of that role for this worker; None: there is none."""
        for other in worker.held.values():
            if other.connection is None and other.doubted_s is None:
                other.doubted_s = self._now_s()
        kind = worker.agent_name, role, worker.tags
        waiting = self._idle.get(kind)
        agent = waiting.pop() if waiting else None
        agent, claim, text = await self._call(self._claim, kind, agent)
        if claim is None:
            await (self._call(self._leave, agent) if worker.gone else self._keep(kind, agent))
            return None
        held = Held(claim=claim, kind=kind, text=text, worker=worker)
        self.held[held.job_id] = held
        worker.held[held.job_id] = held
        worker.posted.pop(held.job_id, None)  # an earlier attempt's: this one has its own result
        self.popped += 1
        if worker.gone:
            await self.give_back(held, "its worker went away")
            return None
        return held

    def _claim(self, kind: Kind, agent: Agent | None) -> tuple[Agent, Claim | None, bytes]:
        name, role, tags = kind
        for again in (True, False):
            if agent is None:
                agent = self._store.join(name, role=role, tags=tags)
            try:
                while (claim := self._store.claim(agent)) is not None:
                    try:
                        return agent, claim, memo.job_text(claim)
                    except BadDocument as error:
                        self._store.commit(claim, memo.unfit(claim, error))
                return agent, None, b""
            except BaseException as error:
                self._leave(agent)  # what it may have claimed is recovered by a watchdog
                agent = None
                if not (again and isinstance(error, AgentLost)):
                    raise
        raise AssertionError("unreachable")

    async def _keep(self, kind: Kind, agent: Agent) -> None:
        """For the next claim of that kind."""
        idle = self._idle.setdefault(kind, [])
        if len(idle) < (_IDLE if kind[0] == ANONYMOUS else 1):
            idle.append(agent)
        else:
            await self._call(self._leave, agent)

    def _leave(self, agent: Agent) -> None:
        with contextlib.suppress(FarroError):
            self._store.leave(agent)

    # --- ending ---

    def holding(self, worker: Worker, job_id: str) -> Held:
        held = worker.held.get(job_id)
        if held is None:
            raise CommandError(f"claim lost: {job_id} is not held by this connection's worker")
        if held.busy:
            raise CommandError(f"{job_id} is being ended just now; ask again")
        return held

    async def commit(self, held: Held, posted: PostedResult, document: Any, digest: bytes) -> None:
        """End it as its worker says. ClaimLost: it was taken away; a passing trouble: it is still held."""
        self._cancel(held)
        held.busy = True
        try:
            await self._call(memo.commit, self._store, held.claim, posted, document, worker=held.worker.id)
        except Lost:
            await self._drop(held, lost=True)
            raise
        except Exception:
            held.busy, held.success = False, None
            if held.worker.gone:  # nobody will try again
                await self.give_back(held, "its result could not be kept, and its worker is gone")
            raise
        finally:
            held.busy = False
        self.committed += 1
        remembered = held.worker.posted
        remembered[held.job_id] = digest
        while len(remembered) > _REMEMBERED:
            remembered.popitem(last=False)
        await self._drop(held)

    async def commit_status(self, held: Held) -> None:
        """A status said how it ended, and no result came."""
        assert held.success is not None
        posted = memo.of_status(held.claim, success=held.success, stdout=held.stdout, stderr=held.stderr)
        await self.commit(held, posted, {}, b"")

    async def give_back(self, held: Held, why: str) -> None:
        """Hand it back; a worker that said how it ended has done its part, though."""
        if held.busy or self.held.get(held.job_id) is not held:
            return
        self._cancel(held)
        try:
            if held.success is not None:
                await self.commit_status(held)
                return
            held.busy = True
            await self._call(memo.let_go, self._store, held.claim, why)
            self.returned += 1
            self._log("info", "job handed back", {"job_id": held.job_id, "why": why})
        except Lost:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, the agent leaves: then a watchdog recovers it
            self._log("error", "job could not be handed back", {"job_id": held.job_id, "error": str(error)})
            await self._drop(held, lost=True)
            return
        finally:
            held.busy = False
        await self._drop(held)

    async def _drop(self, held: Held, *, lost: bool = False) -> None:
        self.held.pop(held.job_id, None)
        held.worker.held.pop(held.job_id, None)
        if lost or held.worker.gone:
            await self._call(self._leave, held.claim.agent)
        else:
            await self._keep(held.kind, held.claim.agent)

    @staticmethod
    def _cancel(held: Held) -> None:
        if held.timer is not None:
            held.timer.cancel()
            held.timer = None

    # --- keeping ---

    async def beat(self) -> None:
        """Tell the store that all of them are alive; learn what was taken away."""
        holding = [held for held in self.held.values() if not held.busy]
        idle = [(kind, agent) for kind, agents in self._idle.items() for agent in agents]
        lost: list[Held]
        dead: list[Agent]
        lost, dead = await self._pulse(self._beat, holding, [agent for _, agent in idle])
        for taken in lost:
            if self.held.get(taken.job_id) is taken and not taken.busy:
                self._log("warning", "a job was taken from its worker", {"job_id": taken.job_id})
                self._cancel(taken)
                await self._drop(taken, lost=True)
        for kind, agent in idle:
            if agent in dead and agent in self._idle.get(kind, ()):
                self._idle[kind].remove(agent)
                await self._call(self._leave, agent)

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
            for agent in self._idle.pop(kind):
                await self._call(self._leave, agent)

    def agents(self) -> set[str]:
        """The store's agents that are this front's."""
        idle = {agent.id for agents in self._idle.values() for agent in agents}
        return idle | {held.claim.agent.id for held in self.held.values()}
