"""Wait for changes in the store, in a thread, and report them to the event loop.

There is one thread for each role that a client waits for, and one for all changes: waiting clients cost none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from farro.errors import FarroError
from farro.log.structured import Log
from farro.store.port import Changes, Store

LOOK_S = 10.0  # longest wait: no feed reports a dead lock, or a job that another machine's clock makes due
RETRY_S = 1.0
PAUSE_S = 0.005  # changes in this time are reported together; the first one after a pause at once
OWN_PAUSE_S = 0.02  # … if all of them are this server's own pushes, which need no report
OWN_S = 0.25  # … but are reported after this time, in case they were not
MAX_EXPECTED = 4096  # own jobs whose feed entries are awaited


class OwnPushes:
    """The jobs that this server is about to queue. The push itself wakes waiting clients, so the feed need not wake
    them again. A job is added before it is queued, so the feed cannot be faster."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._expected: dict[str, None] = {}

    def expect(self, job_ids: Iterable[str]) -> None:
        with self._lock:
            self._expected.update(dict.fromkeys(job_ids))
            while len(self._expected) > MAX_EXPECTED:
                del self._expected[next(iter(self._expected))]

    def covers(self, changes: Changes) -> bool:
        """Return whether all changes are own pushes. Each job counts once: a second entry is not ours."""
        if changes.gap or not changes.items:
            return False
        with self._lock:
            known = [item.job_id in self._expected for item in changes.items]
            for item in changes.items:
                self._expected.pop(item.job_id, None)
        return all(known)


class FeedThread:
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
        late_s: float | None = None  # when held-back changes are reported
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
            except Exception as error:  # noqa: BLE001 - without this thread no waiting client would be woken
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
