"""Blocking pops: clients that wait for a job of some roles, first come, first served.

Claiming lives in workers; where wake-ups come from lives in feeds.

- A client may wait for several roles; it gets jobs of one, and while a claim is tried for it in one role the others
  pass it over.
- A client that went away, or whose time is over, gets none: what was claimed for it meanwhile is handed back.
- Nobody waits in a thread: a role has one that waits for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from farro.agq.roster import HeldJob, RemoteWorker
from farro.agq.workers import RemoteWorkers

_SOON_S = 0.01
DUE_S = 0.02  # so long after those who wait were served, at most, it is known when the next delayed job falls due
GATHER_S = 0.005  # in a stream of small jobs those who take rows are woken for what came in such a time, not for each
FEW = 4  # jobs: where a batch had fewer, there was no more


class Waiter:
    """One client in a blocking pop. Ends once: with jobs, with none, or with what went wrong."""

    def __init__(
        self,
        connection: Any,
        workers: RemoteWorkers,
        queues: Sequence[RoleQueue],
        ended: Callable[[list[HeldJob] | Exception], None],
        *,
        limit: int,
        batch: bool,
    ) -> None:
        self._connection = connection
        self._workers = workers
        self.queues = queues
        self.limit = limit  # jobs of one role that it gets at most
        self.batch = batch
        self._ended = ended
        self.over = False
        self.claiming = False
        self.missed: set[RoleQueue] = set()  # that passed it over while another claimed for it
        self._expired = False

    @property
    def worker(self) -> RemoteWorker:
        """Whom its client speaks for just now."""
        return self._workers.of(self._connection)

    def enter(self, news_before: Mapping[RoleQueue, int]) -> None:
        """`news_before`: how much news each queue had had when a claim found nothing there for this client."""
        for queue in self.queues:
            queue.waiters[self] = None
        for queue in self.queues:
            if self.batch and queue.gathers:
                queue.notify()
            elif news_before.get(queue) != queue.news:
                queue.look()

    def expire(self) -> None:
        self._expired = True
        if not self.claiming:
            self.end([])

    def leave(self) -> None:
        """Its client is gone."""
        self.end([])

    def end(self, result: list[HeldJob] | Exception) -> None:
        for queue in self.queues:
            queue.waiters.pop(self, None)
        if not self.over:
            self.over = True
            self._ended(result)

    def claimed_nothing(self) -> None:
        self.claiming = False
        if self._expired:
            self.end([])
        missed, self.missed = self.missed, set()
        for queue in missed:
            queue.look()


class RoleQueue:
    """Those who wait for one role, in the order in which they came."""

    def __init__(
        self,
        role: str,
        workers: RemoteWorkers,
        spawn: Callable[[Any], object],
        next_due_s: Callable[[str], Awaitable[float | None]],
    ) -> None:
        self.role = role
        self.waiters: dict[Waiter, None] = {}
        self._workers = workers
        self._spawn = spawn
        self._next_due_s = next_due_s  # in so many seconds
        self.news = 0  # how often something may have come
        self._timer: asyncio.TimerHandle | None = None  # when the next delayed job falls due
        self._due: asyncio.TimerHandle | None = None  # when that is asked for
        self._gathering: asyncio.TimerHandle | None = None
        self._served_s = float("-inf")
        self._claiming = False  # for one of them
        self._round = False  # … and for the others after that
        self._again = False  # something may have come meanwhile
        self._empty_for: set[frozenset[str]] = set()  # workers of these tags find nothing more in this round

    def served(self, jobs: int) -> None:
        """Somebody was given so many."""
        self._served_s = asyncio.get_running_loop().time() if jobs < FEW else float("-inf")

    @property
    def gathers(self) -> bool:
        """Whether somebody was given a short batch a moment ago: then the next one is worth a moment's wait."""
        return asyncio.get_running_loop().time() < self._served_s + GATHER_S

    def notify(self) -> None:
        """Something may have come. Whoever waits is woken: at once after a quiet time, else a moment later for all that
        comes until then, if he takes rows."""
        self.news += 1
        if self._gathering is not None or not self.waiters:
            return
        left_s = self._served_s + GATHER_S - asyncio.get_running_loop().time()
        if left_s > 0 and all(waiter.batch for waiter in self.waiters):
            self._gather(left_s)
        else:
            self.look()

    def _gather(self, seconds: float) -> None:
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(seconds, self.look)

    def look(self) -> None:
        """Something may be there."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self.news += 1
        self._again = True
        self._serve_next()

    def _serve_next(self) -> None:
        if self._claiming:
            return
        while True:
            if self._round and (waiter := self._first()) is not None:
                self._claim(waiter)
                return
            self._round = self._again and bool(self.waiters)
            if not self._round:
                break
            self._again = False
            self._empty_for.clear()
        if self.waiters and self._due is None:
            self._due = asyncio.get_running_loop().call_later(DUE_S, self._find_next_due)

    def _find_next_due(self) -> None:
        self._due = None
        if self.waiters:
            self._spawn(self._set_due_timer())

    async def _set_due_timer(self) -> None:
        """A delayed job enters nobody's feed when its time comes."""
        due_s = await self._next_due_s(self.role)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if due_s is not None:
            self._timer = asyncio.get_running_loop().call_later(max(due_s, _SOON_S), self.look)

    def _first(self) -> Waiter | None:
        """Who may have something here. Who was news_before for already in this round is not missed: two queues that find
        nothing would send each other looking for ever. [test_a_client_that_waits_for_two_queues_costs_nothing]"""
        for waiter in self.waiters:
            if waiter.worker.tags in self._empty_for:
                continue
            if not waiter.claiming:
                return waiter
            waiter.missed.add(self)
        return None

    def _claim(self, waiter: Waiter) -> None:
        worker = waiter.worker
        self._claiming = waiter.claiming = True
        self._workers.claim_then(
            worker, self.role, waiter.limit, partial(self._claimed, waiter, worker.tags), batch=waiter.batch
        )

    def _claimed(self, waiter: Waiter, tags: frozenset[str], found: list[HeldJob] | Exception) -> None:
        self._claiming = False
        if isinstance(found, Exception):  # told to the one who waits; the others are still served
            waiter.claiming = False
            waiter.end(found)
        elif not found:
            self._empty_for.add(tags)
            waiter.claimed_nothing()
        elif waiter.over:
            for held in found:
                self._spawn(self._workers.hand_back(held, "its client went away while it waited"))
        else:
            self.served(len(found))
            waiter.end(found)
            if self.waiters and len(found) < FEW and all(other.batch for other in self.waiters):
                # Most likely nothing is left: the next look is for what comes until then.
                self._round = self._again = False
                self._gather(GATHER_S)
                return
        self._serve_next()
