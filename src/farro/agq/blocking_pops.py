"""Serve blocking pops: clients wait for jobs of some roles, first come, first served.

- A client may wait for several roles; it gets jobs of one. While a claim for it runs in one role, the others skip it.
- A client that left or timed out gets none: jobs that were claimed for it meanwhile are handed back.
- No client needs a thread: each role has one that waits for all its clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from farro.agq.workers import HeldJob, RemoteWorker, RemoteWorkers

_SOON_S = 0.01
DUE_S = 0.02  # at most this long after waiting clients were served, the time of the next delayed job is read
GATHER_S = 0.005  # in a stream of small jobs, clients that take batches are woken once per this time, not for each job
FEW = 4  # jobs: if a batch was smaller, the queue was empty


class Waiter:
    """One client in a blocking pop. It ends once: with jobs, with none, or with an exception."""

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
        self.limit = limit  # most jobs that it gets, all of one role
        self.batch = batch
        self._ended = ended
        self.over = False
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
            if self.batch and queue.gathers:
                queue.notify()
            elif news_before.get(queue) != queue.news:
                queue.look()

    def expire(self) -> None:
        self._expired = True
        if not self.claiming:
            self.end([])

    def leave(self) -> None:
        """End it: its client is gone."""
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
    """The clients that wait for one role, in the order of their arrival."""

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
        self._next_due_s = next_due_s  # returns the seconds until the next delayed job
        self.news = 0  # how often a job may have arrived
        self._timer: asyncio.TimerHandle | None = None  # fires when the next delayed job is due
        self._due: asyncio.TimerHandle | None = None  # fires when that time is to be read
        self._gathering: asyncio.TimerHandle | None = None
        self._served_s = float("-inf")
        self._claiming = False  # a claim for one waiter is running
        self._round = False  # … and the other waiters follow
        self._again = False  # a job may have arrived meanwhile
        self._empty_for: set[frozenset[str]] = set()  # in this round no job is left for workers with these tags

    def served(self, jobs: int) -> None:
        """Note that a client got this many jobs."""
        self._served_s = asyncio.get_running_loop().time() if jobs < FEW else float("-inf")

    @property
    def gathers(self) -> bool:
        """Return whether a client just got a short batch: then it is worth gathering the next one for a moment."""
        return asyncio.get_running_loop().time() < self._served_s + GATHER_S

    def notify(self) -> None:
        """Note that a job may have arrived, and wake the waiters: at once after a quiet time, otherwise, if all take
        batches, a moment later for all jobs until then."""
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
        """Try to claim for the waiters."""
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
        """Set a timer for the next delayed job: when it falls due, no feed reports it."""
        due_s = await self._next_due_s(self.role)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if due_s is not None:
            self._timer = asyncio.get_running_loop().call_later(max(due_s, _SOON_S), self.look)

    def _first(self) -> Waiter | None:
        """Return the first waiter that may get a job here. One that was tried in this round is not marked as missed:
        two empty queues would keep waking each other. [test_a_client_that_waits_for_two_queues_costs_nothing]"""
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
        claimed = partial(self._claimed, waiter, worker.tags)
        self._workers.claim(worker, self.role, waiter.limit, batch=waiter.batch).then(claimed)

    def _claimed(self, waiter: Waiter, tags: frozenset[str], found: list[HeldJob] | Exception) -> None:
        self._claiming = False
        if isinstance(found, Exception):  # only this waiter gets the error; the others are still served
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
                # The queue is most likely empty: look again after gathering.
                self._round = self._again = False
                self._gather(GATHER_S)
                return
        self._serve_next()
