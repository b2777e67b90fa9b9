"""A worker's view of one queue: listed once, then kept by the change feed. Each job is examined once.

Claiming what it names lives in claim. Nothing here writes.

The cost of a claim does not grow with the backlog: the listing is paid once per job, and a rescan (inotify tells
neither a due time nor a dead lock) lists names only. [test_each_worker_examines_a_job_once,
test_a_claim_does_not_list_the_queue]
"""

from __future__ import annotations

import heapq
import os
import threading
from collections import deque
from datetime import datetime

from farro.kernel import ids
from farro.kernel.states import Status
from farro.stores.feed import Feed
from farro.stores.files.ground import Ground
from farro.system import fs

LOCKED_RETRY_S = 1.0  # a lock is held for an instant; one that stays is a dead agent's


class QueueView:
    """Shared by the slots of a process: `_lock` guards everything, and is held for looking only, never while claiming.

    Invariant: `_known` is exactly the names in `_ready`, `_delayed` and `_skipped`; no name is in two of them.
    """

    def __init__(self, ground: Ground, role: str, feed: Feed) -> None:
        self._ground = ground
        self._role = role
        self._folder = ground.incoming(role)
        self._feed = feed
        self._cursor = feed.cursor  # before the first listing, so that nothing falls between
        self._ready: deque[str] = deque()
        self._delayed: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._skipped: set[str] = set()
        self._known: set[str] = set()
        self._rescan_at_s = float("-inf")
        self._lock = threading.Lock()

    def next(self) -> str | None:
        """The name of the next job to examine. It is forgotten here: put it back with `delay` or `skip`."""
        with self._lock:
            if self._ground.clock.monotonic_s() >= self._rescan_at_s:
                self._rescan()
            self._pull_due()
            if not self._ready:
                self._pull_feed()
                if not self._ready:
                    return None
            name = self._ready.popleft()
            self._known.discard(name)
            return name

    def delay(self, name: str, until: datetime) -> None:
        """Not before then. The wall clock is looked at again at each turn, so that a jump leaves no delay stuck."""
        due_s = until.timestamp()
        with self._lock:
            self._delayed[name] = due_s
            self._known.add(name)
            heapq.heappush(self._heap, (due_s, name))

    def skip(self, name: str) -> None:
        """Never for this worker: its tags do not fit, or its schema is unknown."""
        with self._lock:
            self._skipped.add(name)
            self._known.add(name)

    def locked(self) -> None:
        """Somebody holds the lock of a job that is still queued: look again soon."""
        with self._lock:
            self._rescan_at_s = min(self._rescan_at_s, self._ground.clock.monotonic_s() + LOCKED_RETRY_S)

    def next_due_s(self) -> float | None:
        """Unix time of the next delayed job."""
        with self._lock:
            return self._due_s()

    def _due_s(self) -> float | None:
        while self._heap and self._delayed.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _add(self, name: str) -> None:
        if name in self._delayed:  # it left and came back: its delay may be another now
            del self._delayed[name]
        elif name in self._known:
            return
        self._known.add(name)
        self._ready.append(name)

    def _pull_due(self) -> None:
        now_s = self._ground.clock.now().timestamp()
        while (due_s := self._due_s()) is not None and due_s <= now_s:
            _, name = heapq.heappop(self._heap)
            del self._delayed[name]
            self._ready.append(name)

    def _pull_feed(self) -> None:
        changes = self._feed.since(self._cursor, 0)
        self._cursor = changes.cursor
        if changes.gap:
            self._rescan()
        for change in changes.items:
            if change.status is Status.QUEUED and change.role == self._role:
                self._add(change.job_id)

    def _rescan(self) -> None:
        self._rescan_at_s = self._ground.clock.monotonic_s() + self._ground.policy.rescan_s
        present = set(fs.listdir(self._folder))
        self._skipped &= present
        for name in [name for name in self._delayed if name not in present]:
            del self._delayed[name]
        self._known = self._skipped | self._delayed.keys() | set(self._ready)
        fresh = [name for name in present - self._known if ids.is_job_id(name)]
        entered = sorted((self._entry_ns(name), name) for name in fresh)
        for _, name in entered:
            self._add(name)

    def _entry_ns(self, name: str) -> int:
        """When the job entered this queue: the time of its job.json (see submit.keep_order)."""
        try:
            return os.stat(f"{self._folder}/{name}/job.json").st_mtime_ns
        except OSError:
            return 0
