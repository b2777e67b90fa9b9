"""The watchdog: repeats the store's recovery. Any number may run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from farro.errors import Lost
from farro.log.structured import Log
from farro.store.port import RecoveryAction, Store
from farro.worker.daemon import Daemon


class Watchdog(Daemon):
    def __init__(self, *, store: Store, log: Log, sweep: Callable[[], Iterable[Mapping[str, Any]]] = tuple) -> None:
        super().__init__(store=store, name="watchdog", log=log)
        self._sweep = sweep  # what dead runners left

    def run_once(self) -> list[RecoveryAction]:
        """Do one recovery pass and return what it did."""
        try:
            done = self._store.recover(self.agent())
        except Lost as lost:  # declared dead by another watchdog: it hung, or was stopped
            self._log("warning", str(lost), {})
            self.leave()
            return []
        for record in self._sweep():
            self._log("info", "runner's record removed", {"job_id": record.get("job_id"), "pid": record.get("pid")})
        for item in done:
            self._log("warning", f"recovered: {item.what}", {"job_id": item.job_id, "agent": item.agent})
        return done
