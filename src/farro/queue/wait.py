"""Waiting for jobs to end: told by the change feed, checked by a bounded rescan. What is printed lives in cli.

A job has ended when nothing moves it on any more: a failed one that is not final is still waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from farro.host.clock_port import Clock
from farro.jobs.diagnosis import STANDS, diagnose
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.queue import tree
from farro.queue.explain import facts
from farro.store.port import Store

RESCAN_S = 2.0  # the feed may lose changes, and tells nothing of a job that somebody removed
_LOOKED_AT = 8  # jobs of which is told what keeps them
_FEW = 64  # jobs that are looked up one by one; more are found by listing what is finished


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    job_id: str
    lifecycle: Lifecycle | None  # None: it is not there any more

    @property
    def good(self) -> bool:
        return self.lifecycle is not None and self.lifecycle.status is Status.SUCCEEDED


class Lookout:
    """Looks out for the ends of jobs, turn by turn. One thread looks; others may add jobs meanwhile, or drop them."""

    def __init__(self, store: Store, root: str, *, clock: Clock) -> None:
        self._store, self._root, self._clock = store, root, clock
        self._cursor = store.changes(None).cursor  # before the first look, so that nothing falls between
        self._left: dict[str, None] = {}
        self._suspects: dict[str, None] = {}  # which of them may have ended
        self._missed: set[str] = set()  # not found at the last look; a job on the move can be overlooked once
        self._rescan_at_s = 0.0
        self._lock = threading.Lock()

    @property
    def left(self) -> list[str]:
        with self._lock:
            return list(self._left)

    def add(self, job_ids: Iterable[str]) -> None:
        """Jobs that may have ended already: the next turn looks. Whoever waits in this one is to be woken."""
        with self._lock:
            self._left.update(dict.fromkeys(job_ids))
            self._rescan_at_s = 0.0

    def drop(self, job_id: str) -> None:
        with self._lock:
            self._left.pop(job_id, None)

    def look(self, timeout_s: float | None) -> Iterator[Ended]:
        """Those that have ended. Then, while some are left, waits for a reason to look again: `timeout_s` at most."""
        if self._now_s() >= self._rescan_at_s:
            self._rescan()
        yield from self._ended()
        if not self._left:
            return
        wait_s = self._rescan_at_s - self._now_s()
        wait_s = wait_s if timeout_s is None else min(wait_s, timeout_s)
        changes = self._store.changes(self._cursor, timeout_s=max(0.0, wait_s))
        self._cursor = changes.cursor
        with self._lock:
            if changes.gap:
                self._rescan_at_s = min(self._rescan_at_s, self._now_s() + 0.05)  # not at once: some feeds only poll
            self._suspects.update((change.job_id, None) for change in changes.items if change.job_id in self._left)
        yield from self._ended()

    def _rescan(self) -> None:
        began_s = self._now_s()
        with self._lock:
            self._rescan_at_s = began_s + RESCAN_S
            left = list(self._left)
        suspects = _suspects(self._store, self._root, left)
        # A look at everything may be dear; it may not become what this process does all day.
        longer_s = 20 * (self._now_s() - began_s)
        with self._lock:
            self._suspects.update(dict.fromkeys(suspects))
            if self._rescan_at_s:  # else some were added meanwhile
                self._rescan_at_s = max(self._rescan_at_s, self._now_s() + longer_s)

    def _ended(self) -> Iterator[Ended]:
        with self._lock:
            suspects, self._suspects = self._suspects, {}
        for job_id in suspects:
            view = self._store.find(job_id)
            with self._lock:
                if view is None and job_id not in self._missed:
                    self._missed.add(job_id)
                    self._rescan_at_s = min(self._rescan_at_s, self._now_s() + 0.05)
                    continue
                over = (view is None or view.lifecycle.terminal) and job_id in self._left
                if over:
                    del self._left[job_id]
            if over:
                yield Ended(job_id=job_id, lifecycle=None if view is None else view.lifecycle)

    def _now_s(self) -> float:
        return self._clock.monotonic_s()


def ends(
    store: Store, root: str, job_ids: Sequence[str], *, clock: Clock, timeout_s: float | None = None
) -> Iterator[Ended]:
    """Each of the jobs as it ends; over when all have ended, or after `timeout_s`."""
    deadline_s = None if timeout_s is None else clock.monotonic_s() + timeout_s
    lookout = Lookout(store, root, clock=clock)
    lookout.add(job_ids)
    while lookout.left:
        left_s = None if deadline_s is None else max(0.0, deadline_s - clock.monotonic_s())
        yield from lookout.look(left_s)
        if left_s == 0:
            return


def standing(store: Store, root: str, job_ids: Sequence[str], *, now: datetime) -> list[str]:
    """What keeps jobs from starting until somebody does something, in words, with the command that helps: once for
    each cause, and of the first few jobs. Whoever waits would else wait for nothing, and not know."""
    told: dict[str, str] = {}
    for job_id in job_ids[:_LOOKED_AT]:
        view = store.find(job_id)
        if view is None or view.lifecycle.terminal:
            continue
        found = diagnose(facts(store, root, view, now=now))
        if found.reason in STANDS:
            told.setdefault(found.message, f"{job_id} waits: {found.message}. What helps: {found.fix}")
    return list(told.values())


def _suspects(store: Store, root: str, job_ids: list[str]) -> list[str]:
    """Which of them may have ended."""
    if len(job_ids) <= _FEW:
        return job_ids
    alive = {entry.job_id for entry in tree.entries(store, {Status.QUEUED, Status.IN_PROGRESS, Status.STALE})}
    return [job_id for job_id in job_ids if job_id not in alive]
