"""The watchdog: recovers the jobs of dead agents, as soon as one dies and at intervals. Any number may run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from farro.errors import Lost
from farro.host import waiting
from farro.host.clock import Clock, SystemClock
from farro.lazy_dataclass import dataclass, field
from farro.log.structured import Log
from farro.store.port import Agent, DeathWatch, RecoveryAction, Store
from farro.worker.daemon import Daemon

Sweep = Callable[[], Iterable[Mapping[str, Any]]]  # frees what dead runners held, and returns their records


@dataclass(kw_only=True)
class Recovery:
    """Recovery passes of a process that has other work, too. After a death one is due at once; otherwise at intervals,
    because a pass looks at every agent, and a busy manager has many turns a second."""

    sweep: Sweep = tuple
    clock: Clock = field(default_factory=SystemClock)
    every_s: float = 5.0
    _last_s: float = float("-inf")

    def is_due(self) -> bool:
        return self.clock.monotonic_s() - self._last_s >= self.every_s

    def run_once(self, store: Store, agent: Agent, log: Log) -> list[RecoveryAction]:
        """Do one pass, log what it did, and return it. Lost: another watchdog declared this agent dead."""
        self._last_s = self.clock.monotonic_s()
        done = store.recover(agent)
        for record in self.sweep():
            log("info", "runner's record removed", {"job_id": record.get("job_id"), "pid": record.get("pid")})
        for item in done:
            log("warning", f"recovered: {item.what}", {"job_id": item.job_id, "agent": item.agent})
        return done


class Watchdog(Daemon):
    def __init__(self, *, store: Store, log: Log, sweep: Sweep = tuple) -> None:
        super().__init__(store=store, name="watchdog", log=log)
        self._recovery = Recovery(sweep=sweep)
        self._deaths: DeathWatch | None = None

    def run(self, every_s: float) -> None:
        self._deaths = self._store.watch_deaths()  # before the first pass, so that no death is missed
        try:
            super().run(every_s)
        finally:
            if self._deaths is not None:
                self._deaths.close()

    def rest(self, seconds: float) -> None:
        """Sleep between two passes, until stopped, or until an agent dies."""
        if self._deaths is None:
            super().rest(seconds)
            return
        clock = SystemClock()
        until_s = clock.monotonic_s() + seconds
        while ready := waiting.readable([self._flag.fd, self._deaths.fileno()], until_s - clock.monotonic_s()):
            if self._flag.fd in ready or self._deaths.read():
                return

    def run_once(self) -> list[RecoveryAction]:
        """Do one recovery pass and return what it did."""
        try:
            return self._recovery.run_once(self._store, self.agent(), self._log)
        except Lost as lost:  # declared dead by another watchdog: it hung, or was stopped
            self._log("warning", str(lost), {})
            self.leave()
            return []
