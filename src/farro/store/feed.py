"""The change feed behind `Store.changes`: a ring of numbered changes, and waiting for the next one.

Changes come from a `ChangeSource` (inotify, a server) or from the store's own calls. The feed has no thread: one of the
waiting callers reads the source and wakes the others. While there is plenty of work no caller waits, and the feed costs
nothing.
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


class ChangeSource(Protocol):
    """Reports changes that other processes made."""

    def read(self, timeout_s: float) -> tuple[list[Change], bool]:
        """Return changes, and whether some were lost; wait up to `timeout_s` for the first. One caller at a time."""

    def wake(self) -> None:
        """Make a waiting `read` return at once."""

    def close(self) -> None: ...


class ChangeFeed:
    """Numbered changes for any number of readers, each with its own cursor.

    Invariant: `_ring` holds the changes numbered `_last - len(_ring) + 1` to `_last`.
    """

    def __init__(self, source: ChangeSource | None = None) -> None:
        self._source = source
        self._ring: deque[Change | None] = deque(maxlen=RING)  # None: a call of `wake`
        self._last = 0
        self._gap_at = 0  # readers with a lower cursor have missed changes
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
                self._last += 1  # the gap gets a number, so that readers waiting for a later one wake
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
                # The source is drained first, so that changes that have already happened are returned.
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
                    self._changed.notify_all()  # another waiting caller takes over the reading
            if self._last > cursor or time.monotonic() >= deadline:
                return self._after(cursor)

    def _now(self, cursor: int) -> Changes:
        """`since` without waiting: a worker calls this at every claim."""
        with self._changed:
            # The source is drained first, so that changes that have already happened are returned.
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
            # Copied from the end: a worker does this at every claim, and copying the whole ring costs more than that.
            items = tuple(self._ring) if gap else tuple(islice(reversed(self._ring), missing))[::-1] if missing else ()
            return Changes(cursor=self._last, items=tuple(item for item in items if item is not None), gap=gap)

    def wake(self) -> None:
        """Make every caller that waits from an earlier cursor return at once, even one that starts to wait only later.

        For that the call gets a number: a mere notification would be lost on a slot that is about to wait, and on the
        one that takes over the reading, and both would sleep through a stop.
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
