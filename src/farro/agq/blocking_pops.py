"""Serve blocking pops: clients wait for jobs of some roles, first come, first served.

- A client may wait for several roles; it gets jobs of one. While a claim for it runs in one role, the others skip it.
- A client that left or timed out gets none: jobs that were claimed for it meanwhile are handed back.
- No client needs a thread: each role has one that waits for all its clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from farro.agq.workers import HeldJob, RemoteWorker, RemoteWorkers

_SOON_S = 0.01
DUE_S = 0.02  # at most this long after waiting clients were served, the time of the next delayed job is read


class Waiter:
    """One client in a blocking pop. It ends once: with jobs, with none, or with an exception."""

    def __init__(
        self, connection: Any, workers: RemoteWorkers, queues: Sequence[RoleQueue], *, limit: int, batch: bool
    ) -> None:
        self._connection = connection
        self._workers = workers
        self.queues = queues
        self._limit = limit  # most jobs that it gets, all of one role
        self._batch = batch
        self.found: asyncio.Future[list[HeldJob]] = asyncio.get_running_loop().create_future()
        self.claiming = False
        self.missed: set[RoleQueue] = set()  # queues that skipped it while another one claimed for it
        self._expired = False

    @property
    def worker(self) -> RemoteWorker:
        """The worker that its client speaks for now."""
        return self._workers.of(self._connection)

    def enter(self, news_before: Mapping[RoleQueue, int]) -> None:
        """Join the queues. `news_before`: the `news` count of each queue before a claim for this client found nothing
        there."""
        for queue in self.queues:
            queue.waiters[self] = None
        for queue in self.queues:
            if news_before.get(queue) != queue.news:
                queue.look()

    def expire(self) -> None:
        self._expired = True
        if not self.claiming:
            self.end([])

    def leave(self) -> None:
        """End it: its client is gone."""
        self.end([])

    def end(self, found: list[HeldJob] | Exception) -> None:
        for queue in self.queues:
            queue.waiters.pop(self, None)
        if self.found.done():
            return
        if isinstance(found, Exception):
            self.found.set_exception(found)
        else:
            self.found.set_result(found)

    async def claim(self, queue: RoleQueue) -> bool:
        """Claim for the client in one of its queues; return whether there was a job."""
        self.claiming = True
        try:
            found = await self._workers.claim(self.worker, queue.role, self._limit, batch=self._batch)
        finally:
            self.claiming = False
        if found and self.found.done():
            for held in found:
                await self._workers.hand_back(held, "its client went away while it waited")
        elif found or self._expired:
            self.end(found)
        missed, self.missed = self.missed, set()
        for other in missed:
            other.look()
        return bool(found)


class RoleQueue:
    """The clients that wait for one role, in the order of their arrival."""

    def __init__(
        self,
        role: str,
        spawn: Callable[[Any], object],
        next_due_s: Callable[[str], Awaitable[float | None]],
    ) -> None:
        self.role = role
        self.waiters: dict[Waiter, None] = {}
        self._spawn = spawn
        self._next_due_s = next_due_s  # returns the seconds until the next delayed job
        self.news = 0  # how often a job may have arrived
        self._timer: asyncio.TimerHandle | None = None  # fires when the next delayed job is due
        self._due: asyncio.TimerHandle | None = None  # fires when that time is to be read
        self._serving = False
        self._again = False  # a job may have arrived since the waiters were last tried

    def look(self) -> None:
        """Try to claim for the waiters: a job may have arrived."""
        self.news += 1
        self._again = True
        if self.waiters and not self._serving:
            self._serving = True
            self._spawn(self._serve())

    async def _serve(self) -> None:
        """Claim for one waiter after the other, and once more if a job may have arrived meanwhile."""
        try:
            while self._again and self.waiters:
                self._again = False
                await self._serve_round()
        finally:
            self._serving = False
        if self.waiters and self._due is None:
            self._due = asyncio.get_running_loop().call_later(DUE_S, self._find_next_due)

    async def _serve_round(self) -> None:
        empty_for: set[frozenset[str]] = set()  # no job is left for workers with these tags
        while (waiter := self._first(empty_for)) is not None:
            tags = waiter.worker.tags
            try:
                there = await waiter.claim(self)
            except Exception as error:  # noqa: BLE001 - only this waiter gets the error; the others are still served
                waiter.end(error)
                continue
            if not there:
                empty_for.add(tags)

    def _first(self, empty_for: set[frozenset[str]]) -> Waiter | None:
        """Return the first waiter that may get a job here. One that was tried in this round is not marked as missed:
        two empty queues would keep waking each other. [test_a_client_that_waits_for_two_queues_costs_nothing]"""
        for waiter in self.waiters:
            if waiter.worker.tags in empty_for:
                continue
            if not waiter.claiming:
                return waiter
            waiter.missed.add(self)
        return None

    def _find_next_due(self) -> None:
        self._due = None
        if self.waiters:
            self._spawn(self._set_due_timer())

    async def _set_due_timer(self) -> None:
        """Set a timer for the next delayed job: when it falls due, no feed reports it."""
        due_s = await self._next_due_s(self.role)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if due_s is not None:
            self._timer = asyncio.get_running_loop().call_later(max(due_s, _SOON_S), self.look)
