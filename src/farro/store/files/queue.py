"""A worker's view of one queue: listed once, then kept current by the change feed. Each job is examined once.

The view writes nothing. The cost of a claim does not grow with the backlog: the listing is paid once per job, and a
rescan (needed because inotify reports neither a due time nor a dead lock) lists names only.
[test_each_worker_examines_a_job_once, test_a_claim_does_not_list_the_queue]
"""

from __future__ import annotations

import heapq
import os
import threading
from collections.abc import Sequence
from datetime import datetime

from farro.host import fs
from farro.jobs import ids
from farro.jobs.states import Status
from farro.store.feed import ChangeFeed
from farro.store.files.context import FilesContext

LOCKED_RETRY_S = 1.0  # a lock is held for an instant; one that stays belongs to a dead agent


class QueueView:
    """The candidates of one queue, shared by the slots of a process.

    `_lock` guards everything and is held only for queries, never during a claim. Jobs are ordered by their time of
    entry, even if they became due later or came back; a plain list of names would put those at its end.

    Invariant: no name is in two of `_ready`, `_delayed` and `_skipped`; heap entries that disagree with them are
    ignored.
    """

    def __init__(self, context: FilesContext, role: str, feed: ChangeFeed) -> None:
        self._context = context
        self._role = role
        self._folder = context.incoming(role)
        self.feed = feed
        self.cursor = feed.cursor  # read before the first listing, so that no change is missed
        self._ready: dict[str, int] = {}  # name → time of entry
        self._order: list[tuple[int, str]] = []  # a heap over `_ready`
        self._delayed: dict[str, tuple[float, int]] = {}  # name → due time, time of entry
        self._dues: list[tuple[float, str]] = []  # a heap over `_delayed`
        self._skipped: set[str] = set()
        self._locked: dict[str, int] = {}  # name → time of entry; examined again at `_locked_until_s`
        self._locked_until_s = float("inf")
        self._rescan_at_s = self._poll_at_s = float("-inf")
        self._lock = threading.Lock()

    def next(self, *, known: bool = False) -> tuple[str, int] | None:
        """Remove and return the next job to examine with its time of entry. The caller puts it back with `enter`,
        `delay` or `skip`. With `known`, do not look for jobs that arrived since the last call."""
        with self._lock:
            if known and (found := self._first()) is not None:
                return found
            now_s = self._context.clock.monotonic_s()
            if now_s >= (self._rescan_at_s if self._ready else self._poll_at_s):
                self._rescan()
            if now_s >= self._locked_until_s:
                self._retry_locked()
            self._pull_due()
            self._pull_feed()  # always: the latest job may have a higher priority than all known ones
            return self._first()

    def _first(self) -> tuple[str, int] | None:
        while self._order:
            entered_ns, name = heapq.heappop(self._order)
            if self._ready.get(name) == entered_ns:
                del self._ready[name]
                return name, entered_ns
        return None

    def __len__(self) -> int:
        """Return the number of jobs known to be ready."""
        return len(self._ready)

    def enter(self, name: str, entered_ns: int) -> None:
        """Sort in a job that left the queue and came back, behind the jobs that entered before its return."""
        with self._lock:
            self._enter(name, entered_ns)
            self._pull_feed()

    def put_back(self, entries: Sequence[tuple[str, int]]) -> None:
        """Put back jobs that `next` returned and the caller did not examine."""
        with self._lock:
            for name, entered_ns in entries:
                self._enter(name, entered_ns)

    def delay(self, name: str, until: datetime, entered_ns: int) -> None:
        """Hold the job back until then. The clock is read again at each turn, so that a jump leaves no delay stuck."""
        due_s = until.timestamp()
        with self._lock:
            self._ready.pop(name, None)
            self._delayed[name] = (due_s, entered_ns)
            heapq.heappush(self._dues, (due_s, name))

    def skip(self, name: str) -> None:
        """Exclude a job that this worker can never run: its tags do not match, or its schema is unknown."""
        with self._lock:
            self._ready.pop(name, None)
            self._skipped.add(name)

    def locked(self, name: str, entered_ns: int) -> None:
        """Examine a queued job again soon whose lock is held by another agent. Listing the whole queue for it instead
        would cost more the longer the queue is."""
        with self._lock:
            self._locked[name] = entered_ns
            self._locked_until_s = min(self._locked_until_s, self._context.clock.monotonic_s() + LOCKED_RETRY_S)

    def _retry_locked(self) -> None:
        for name, entered_ns in self._locked.items():
            if name not in self._ready and name not in self._delayed and name not in self._skipped:
                self._enter(name, entered_ns)
        self._locked.clear()
        self._locked_until_s = float("inf")

    def next_due_s(self) -> float | None:
        """Unix time of the next delayed job."""
        with self._lock:
            return self._due_s()

    def _due_s(self) -> float | None:
        while self._dues and self._delayed.get(self._dues[0][1], (None, 0))[0] != self._dues[0][0]:
            heapq.heappop(self._dues)
        return self._dues[0][0] if self._dues else None

    def _enter(self, name: str, entered_ns: int) -> None:
        self._delayed.pop(name, None)  # it left and came back: its delay may have changed
        self._ready[name] = entered_ns
        heapq.heappush(self._order, (entered_ns, name))

    def _pull_due(self) -> None:
        if not self._dues:
            return
        now_s = self._context.due_now().timestamp()
        while (due_s := self._due_s()) is not None and due_s <= now_s:
            _, name = heapq.heappop(self._dues)
            self._enter(name, self._delayed[name][1])

    def _pull_feed(self) -> None:
        changes = self.feed.since(self.cursor, 0)
        self.cursor = changes.cursor
        if changes.gap:
            self._rescan()
        for change in changes.items:
            if change.status is Status.QUEUED and change.role == self._role:
                self._add_arrival(change.job_id)

    def _add_arrival(self, name: str) -> None:
        """Add a job that entered the queue, unless it has left already or this worker skips it."""
        if name not in self._skipped and (entered_ns := self._entered_ns(name)) is not None:
            self._enter(name, entered_ns)

    def _rescan(self) -> None:
        now_s, policy = self._context.clock.monotonic_s(), self._context.policy
        self._rescan_at_s = now_s + policy.rescan_s
        self._poll_at_s = now_s + min(policy.rescan_s, policy.poll_s)
        present = set(fs.listdir(self._folder))
        self._skipped &= present
        for name in [name for name in self._delayed if name not in present]:
            del self._delayed[name]
        for name in present - self._skipped - self._delayed.keys() - self._ready.keys():
            if ids.is_job_id(name):
                self._enter(name, self._entered_ns(name) or 0)

    def _entered_ns(self, name: str) -> int | None:
        """Return when the job entered this queue: the time of its job.json (see draft.keep_order)."""
        try:
            return os.stat(f"{self._folder}/{name}/job.json").st_mtime_ns
        except OSError:
            return None
