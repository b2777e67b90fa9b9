"""A thread that waits in `Store.changes` for everybody who wants to know, and tells the event loop.

Who is woken lives in waiting and channels. One thread a role that somebody waits for, and one for all changes: clients
that wait cost none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from farro.errors import FarroError
from farro.observe.log import Log
from farro.ports.store import Changes, Store

LOOK_S = 10.0  # at the latest: no feed tells of a dead lock, nor of what another machine's clock makes due
TROUBLE_S = 1.0
PAUSE_S = 0.005  # what comes meanwhile is told together; the first after a pause at once


class Feed:
    def __init__(
        self,
        *,
        store: Store,
        role: str | None,
        told: Callable[[Changes], None],
        log: Log,
    ) -> None:
        self._store = store
        self._role = role
        self._told = told  # called in this thread
        self._log = log
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"agq-feed-{role or 'all'}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        cursor: int | None = None
        while not self._over.is_set():
            try:
                changes = self._store.changes(cursor, role=self._role, timeout_s=LOOK_S)
                cursor = changes.cursor
                if not self._over.is_set():
                    self._told(changes)
                    self._over.wait(PAUSE_S)
            except Exception as error:  # noqa: BLE001 - without this thread nobody who waits is woken any more
                if self._over.is_set():
                    return
                why = str(error) if isinstance(error, FarroError) else f"{type(error).__name__}: {error}"
                self._log("error", "the change feed failed", {"role": self._role, "error": why})
                self._over.wait(TROUBLE_S)
                cursor = None

    def stop(self) -> None:
        self._over.set()
        self._store.wake(self._role)

    def join(self) -> None:
        self._thread.join(timeout=1.0)
