"""Read the change feed in a thread and report changes, or that the store does not answer, to the screen."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from farro.errors import FarroError
from farro.store.port import Changes, Store

_WAIT_S = 1.0
_AGAIN_S = 1.0


class Feed:
    """Calls `heard` on the event loop with the changes, or with the reason why they are unknown."""

    def __init__(self, store: Store, heard: Callable[[Changes | Exception], None]) -> None:
        self._store = store
        self._heard = heard
        self._over = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="farro-top-feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._store.wake(None)

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        cursor: int | None = None
        while not self._over.is_set():
            try:
                told = self._store.changes(cursor, timeout_s=0 if cursor is None else _WAIT_S)
            except (FarroError, OSError) as error:
                self._tell(error)
                self._over.wait(_AGAIN_S)
                continue
            if told.items or told.gap or cursor is None:
                self._tell(told)
            if told.gap:
                self._over.wait(_AGAIN_S)  # a polling feed reports this each time
            cursor = told.cursor

    def _tell(self, what: Changes | Exception) -> None:
        if not self._over.is_set():
            self._loop.call_soon_threadsafe(self._heard, what)
