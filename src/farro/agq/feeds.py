"""A thread that waits in `Store.changes` for everybody who wants to know, and tells the event loop.

Who is woken lives in waiting and channels. One thread a role that somebody waits for, and one for all changes: clients
that wait cost none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from farro.errors import FarroError
from farro.log.structured import Log
from farro.store.port import Changes, Store

LOOK_S = 10.0  # at the latest: no feed tells of a dead lock, nor of what another machine's clock makes due
RETRY_S = 1.0
PAUSE_S = 0.005  # what comes meanwhile is told together; the first after a pause at once
OWN_PAUSE_S = 0.02  # … where all of it was this front's own doing, which nobody need be told of
OWN_S = 0.25  # … and yet is, so late, in case it was not
MAX_EXPECTED = 4096  # own jobs whose entries are awaited


class OwnPushes:
    """Jobs that this front is about to queue: whoever waits for them is woken by the push itself, and by the feed again
    when it tells of them. Noted before they are queued, so that the feed is never faster."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._expected: dict[str, None] = {}

    def expect(self, job_ids: Iterable[str]) -> None:
        with self._lock:
            self._expected.update(dict.fromkeys(job_ids))
            while len(self._expected) > MAX_EXPECTED:
                del self._expected[next(iter(self._expected))]

    def covers(self, changes: Changes) -> bool:
        """Whether it tells of nothing else. Each is its own once: a job that comes back was sent by somebody."""
        if changes.gap or not changes.items:
            return False
        with self._lock:
            known = [item.job_id in self._expected for item in changes.items]
            for item in changes.items:
                self._expected.pop(item.job_id, None)
        return all(known)


class ChangeWatcher:
    def __init__(
        self,
        *,
        store: Store,
        role: str | None,
        on_changes: Callable[[Changes], None],
        log: Log,
        own: OwnPushes | None = None,
    ) -> None:
        self._store = store
        self._role = role
        self._on_changes = on_changes  # called in this thread
        self._log = log
        self._own = own
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"agq-feed-{role or 'all'}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        cursor: int | None = None
        late_s: float | None = None  # when what was not told is told
        while not self._stopped.is_set():
            try:
                timeout_s = LOOK_S if late_s is None else max(0.0, late_s - time.monotonic())
                changes = self._store.changes(cursor, role=self._role, timeout_s=timeout_s)
                cursor = changes.cursor
                if self._own is not None and self._own.covers(changes):
                    late_s = late_s or time.monotonic() + OWN_S
                    if time.monotonic() < late_s:
                        self._stopped.wait(OWN_PAUSE_S)
                        continue
                late_s = None
                if not self._stopped.is_set():
                    self._on_changes(changes)
                    self._stopped.wait(PAUSE_S)
            except Exception as error:  # noqa: BLE001 - without this thread nobody who waits is woken any more
                if self._stopped.is_set():
                    return
                why = str(error) if isinstance(error, FarroError) else f"{type(error).__name__}: {error}"
                self._log("error", "the change feed failed", {"role": self._role, "error": why})
                self._stopped.wait(RETRY_S)
                cursor = None

    def stop(self) -> None:
        self._stopped.set()
        self._store.wake(self._role)

    def join(self) -> None:
        self._thread.join(timeout=1.0)
