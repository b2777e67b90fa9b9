"""The change feed behind `Store.changes`: a ring of numbered changes, and waiting for the next one.

Where changes come from (inotify, or the store's own calls) is a `Source`; which jobs are due lives in the stores.

No thread of its own: of those who wait, one reads the source and wakes the others. While work is plentiful nobody
waits, and the feed costs nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Protocol

from farro.store.port import Change, Changes

RING = 65536


class Source(Protocol):
    """Something that tells of changes that happened outside."""

    def read(self, timeout_s: float) -> tuple[list[Change], bool]:
        """Changes, and whether some were lost; waits up to `timeout_s` for the first. One caller at a time."""

    def wake(self) -> None:
        """A waiting `read` returns at once."""

    def close(self) -> None: ...


class ChangeFeed:
    """Invariant: `_ring` holds the changes numbered `_last - len(_ring) + 1` to `_last`."""

    def __init__(self, source: Source | None = None) -> None:
        self._source = source
        self._ring: deque[Change | None] = deque(maxlen=RING)  # None: somebody called `wake`
        self._last = 0
        self._gap_at = 0  # cursors below this have missed something
        self._changed = threading.Condition()
        self._reading = False
        self._closed = False

    @property
    def cursor(self) -> int:
        return self._last

    def publish(self, changes: Iterable[Change], *, gap: bool = False) -> None:
        with self._changed:
            for change in changes:
                self._ring.append(change)
                self._last += 1
            if gap:
                self._last += 1  # a number of its own, so that waiting for "after the cursor" ends
                self._ring.clear()
                self._gap_at = self._last
            self._changed.notify_all()

    def since(self, cursor: int | None, timeout_s: float) -> Changes:
        if cursor is None:
            return Changes(cursor=self._last, items=(), gap=False)
        if timeout_s <= 0:
            return self._now(cursor)
        deadline = time.monotonic() + timeout_s
        while True:
            with self._changed:
                # The source is drained first, so that a poll (timeout 0) sees what has happened already.
                if self._source is None or self._reading or self._closed:
                    left = deadline - time.monotonic()
                    if self._last > cursor or left <= 0 or self._closed:
                        return self._after(cursor)
                    self._changed.wait(left)
                    continue
                self._reading = True
            try:
                left = 0.0 if self._last > cursor else max(0.0, deadline - time.monotonic())
                changes, gap = self._source.read(left)
            finally:
                with self._changed:
                    self._reading = False
            if changes or gap:
                self.publish(changes, gap=gap)
            else:
                with self._changed:
                    self._changed.notify_all()  # another waiter takes over the reading
            if self._last > cursor or time.monotonic() >= deadline:
                return self._after(cursor)

    def _now(self, cursor: int) -> Changes:
        """As `since` without waiting: a worker asks this at every claim."""
        with self._changed:
            # The source is drained first, so that what has happened already is seen.
            if self._source is not None and not self._reading and not self._closed:
                changes, gap = self._source.read(0)
                if changes or gap:
                    self.publish(changes, gap=gap)
            return self._after(cursor)

    def _after(self, cursor: int) -> Changes:
        with self._changed:
            missing = self._last - cursor
            if missing == 0 and cursor >= self._gap_at:
                return Changes(cursor=cursor, items=(), gap=False)
            gap = missing > len(self._ring) or cursor < self._gap_at
            # From its end: a worker asks at every claim, and a copy of the whole ring costs more than the claim.
            items = tuple(self._ring) if gap else tuple(islice(reversed(self._ring), missing))[::-1] if missing else ()
            return Changes(cursor=self._last, items=tuple(item for item in items if item is not None), gap=gap)

    def wake(self) -> None:
        """Whoever waits from a cursor of before returns at once, also when it begins to wait only after this.

        Hence a number of its own: a mere notification is lost on a slot that is just about to wait, and on the one that
        takes over the reading, and both would sleep through a stop.
        """
        with self._changed:
            self._ring.append(None)
            self._last += 1
            self._changed.notify_all()
        if self._source is not None:
            self._source.wake()

    def close(self) -> None:
        with self._changed:
            self._closed = True
        self.wake()
        if self._source is not None:
            self._source.close()
