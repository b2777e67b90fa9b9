"""Wait for jobs to end, using the change feed and a bounded rescan.

A job has ended when nothing will move it any more: a failed job that is not final is still waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from farro.host.clock import Clock
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.store.port import Store

RESCAN_S = 2.0  # the feed may lose changes, and does not report removed jobs
_LOOKED_AT = 8  # jobs that are explained
_FEW = 64  # jobs that are looked up one by one; for more, the unfinished jobs are listed


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedJob:
    """A job that has ended or is gone."""

    job_id: str
    lifecycle: Lifecycle | None  # None: it no longer exists

    @property
    def good(self) -> bool:
        return self.lifecycle is not None and self.lifecycle.status is Status.SUCCEEDED


class EndWatcher:
    """Watch for the ends of jobs. One thread calls `look`; others may add or drop jobs meanwhile."""

    def __init__(self, store: Store, *, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._cursor = store.changes(None).cursor  # before the first look, so that no change is missed
        self._left: dict[str, None] = {}
        self._suspects: dict[str, None] = {}  # jobs that may have ended
        self._missed: set[str] = set()  # not found last time; a moving job can be overlooked once
        self._rescan_at_s = 0.0
        self._lock = threading.Lock()

    @property
    def left(self) -> list[str]:
        with self._lock:
            return list(self._left)

    def add(self, job_ids: Iterable[str]) -> None:
        """Watch more jobs. They may have ended already: the next call checks. Wake a thread that is waiting."""
        with self._lock:
            self._left.update(dict.fromkeys(job_ids))
            self._rescan_at_s = 0.0

    def drop(self, job_id: str) -> None:
        """Stop watching a job."""
        with self._lock:
            self._left.pop(job_id, None)

    def look(self, timeout_s: float | None) -> Iterator[EndedJob]:
        """Yield jobs that have ended. While some are left, wait up to `timeout_s` for a change and check again."""
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
        suspects = _suspects(self._store, left)
        # A rescan may be expensive; it must not become most of this process's work.
        longer_s = 20 * (self._now_s() - began_s)
        with self._lock:
            self._suspects.update(dict.fromkeys(suspects))
            if self._rescan_at_s:  # 0: jobs were added meanwhile
                self._rescan_at_s = max(self._rescan_at_s, self._now_s() + longer_s)

    def _ended(self) -> Iterator[EndedJob]:
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
                yield EndedJob(job_id=job_id, lifecycle=None if view is None else view.lifecycle)

    def _now_s(self) -> float:
        return self._clock.monotonic_s()


def ends(store: Store, job_ids: Sequence[str], *, clock: Clock, timeout_s: float | None = None) -> Iterator[EndedJob]:
    """Yield each job as it ends, until all have, or until `timeout_s` has passed."""
    deadline_s = None if timeout_s is None else clock.monotonic_s() + timeout_s
    watcher = EndWatcher(store, clock=clock)
    watcher.add(job_ids)
    while watcher.left:
        left_s = None if deadline_s is None else max(0.0, deadline_s - clock.monotonic_s())
        yield from watcher.look(left_s)
        if left_s == 0:
            return


def stuck_jobs(store: Store, job_ids: Sequence[str], *, now: datetime) -> list[str]:
    """Explain what keeps jobs from starting until a person acts, with the command that helps: once for each cause.

    Only the first few jobs are checked. Without this, a caller could wait forever without knowing why.
    """
    told: dict[str, str] = {}
    for job_id in job_ids[:_LOOKED_AT]:
        view = store.find(job_id)
        if view is None or view.lifecycle.terminal:
            continue
        from farro.jobs.explain_rules import STANDS, diagnose  # imported here: most jobs have ended by then
        from farro.queue.explain import facts

        found = diagnose(facts(store, view, now=now))
        if found.reason in STANDS:
            told.setdefault(found.message, f"{job_id} waits: {found.message}. What helps: {found.fix}")
    return list(told.values())


def _suspects(store: Store, job_ids: list[str]) -> list[str]:
    """Return the jobs that may have ended."""
    if len(job_ids) <= _FEW:
        return job_ids
    alive = {entry.job_id for entry in store.entries(statuses={Status.QUEUED, Status.IN_PROGRESS, Status.STALE})}
    return [job_id for job_id in job_ids if job_id not in alive]
