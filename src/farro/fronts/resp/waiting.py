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
from typing import Any

from farro.fronts.resp.roster import Held, Worker
from farro.fronts.resp.workers import Workers

_SOON_S = 0.01
DUE_S = 0.02  # so long after those who wait were served, at most, it is known when the next delayed job falls due
GATHER_S = 0.005  # in a stream of small jobs those who take rows are woken for what came in such a time, not for each
FEW = 4  # jobs: where a row had fewer, there was no more


class Waiter:
    """One client in a blocking pop. Ends once: with jobs, with none, or with what went wrong."""

    def __init__(
        self, connection: Any, workers: Workers, queues: Sequence[RoleQueue], limit: int = 1, *, row: bool = False
    ) -> None:
        self._connection = connection
        self._workers = workers
        self.queues = queues
        self.limit = limit  # jobs of one role that it gets at most
        self.row = row
        self.future: asyncio.Future[list[Held]] = asyncio.get_running_loop().create_future()
        self.claiming = False
        self._expired = False

    @property
    def worker(self) -> Worker:
        """Whom its client speaks for just now."""
        return self._workers.of(self._connection)

    @property
    def over(self) -> bool:
        return self.future.done()

    def enter(self, looked: Mapping[RoleQueue, int]) -> None:
        """`looked`: how much news each queue had had when a claim found nothing there for this client."""
        for queue in self.queues:
            queue.waiters[self] = None
        for queue in self.queues:
            if self.row and queue.gathers:
                queue.came()
            elif looked.get(queue) != queue.news:
                queue.kick()

    def expire(self) -> None:
        self._expired = True
        if not self.claiming:
            self.end([])

    def leave(self) -> None:
        """Its client is gone."""
        self.end([])

    def end(self, result: list[Held] | Exception) -> None:
        for queue in self.queues:
            queue.waiters.pop(self, None)
        if self.future.done():
            return
        if isinstance(result, Exception):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)

    def claimed_nothing(self, by: RoleQueue) -> None:
        self.claiming = False
        if self._expired:
            self.end([])
        for queue in self.queues:
            if queue is not by:
                queue.kick()  # it passed this one over meanwhile


class RoleQueue:
    """Those who wait for one role, in the order in which they came."""

    def __init__(
        self,
        role: str,
        workers: Workers,
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
        self._serving = False
        self._again = False

    def served(self, jobs: int) -> None:
        """Somebody was given so many."""
        self._served_s = asyncio.get_running_loop().time() if jobs < FEW else float("-inf")

    @property
    def gathers(self) -> bool:
        """Whether somebody was given a short row a moment ago: then the next one is worth a moment's wait."""
        return asyncio.get_running_loop().time() < self._served_s + GATHER_S

    def came(self) -> None:
        """Something may have come. Whoever waits is woken: at once after a quiet time, else a moment later for all that
        comes until then, if he takes rows."""
        self.news += 1
        if self._gathering is not None or not self.waiters:
            return
        loop = asyncio.get_running_loop()
        left_s = self._served_s + GATHER_S - loop.time()
        if left_s > 0 and all(waiter.row for waiter in self.waiters):
            self._gathering = loop.call_later(left_s, self.kick)
        else:
            self.kick()

    def kick(self) -> None:
        """Something may be there."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self.news += 1
        self._again = True
        if self.waiters and not self._serving:
            self._serving = True
            self._spawn(self._serve())

    async def _serve(self) -> None:
        try:
            while self._again:
                self._again = False
                dry: set[frozenset[str]] = set()  # workers of these tags find nothing more
                while (waiter := self._first(dry)) is not None:
                    tags = waiter.worker.tags
                    if not await self._try(waiter):
                        dry.add(tags)
                if self.waiters and self._due is None:
                    self._due = asyncio.get_running_loop().call_later(DUE_S, self._look_at_delayed)
        finally:
            self._serving = False

    def _look_at_delayed(self) -> None:
        self._due = None
        if self.waiters:
            self._spawn(self._wait_for_the_next())

    async def _wait_for_the_next(self) -> None:
        """A delayed job enters nobody's feed when its time comes."""
        due_s = await self._next_due_s(self.role)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if due_s is not None:
            self._timer = asyncio.get_running_loop().call_later(max(due_s, _SOON_S), self.kick)

    def _first(self, dry: set[frozenset[str]]) -> Waiter | None:
        return next((one for one in self.waiters if not one.claiming and one.worker.tags not in dry), None)

    async def _try(self, waiter: Waiter) -> bool:
        """Claim for that one. False: there is nothing more."""
        waiter.claiming = True
        try:
            found = await self._workers.claim(waiter.worker, self.role, waiter.limit, row=waiter.row)
        except Exception as error:  # noqa: BLE001 - told to the one who waits; the others are still served
            waiter.claiming = False
            waiter.end(error)
            return True
        if not found:
            waiter.claimed_nothing(self)
            return False
        if waiter.over:
            for held in found:
                await self._workers.give_back(held, "its client went away while it waited")
        else:
            self.served(len(found))
            waiter.end(found)
        return True
