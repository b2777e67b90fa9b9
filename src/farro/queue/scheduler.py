"""Fire schedules when they are due: as part of the manager, or as a separate daemon.

Any number of processes may run this: each due time has one job id.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

from farro.errors import CapacityReached, FarroError, SyncFailed
from farro.host.clock import Clock
from farro.log.structured import Log
from farro.queue import schedules
from farro.queue.admission import Gate
from farro.queue.schedules import Fired, ScheduleFile
from farro.store.port import Store
from farro.worker.daemon import Daemon

_NEVER = datetime.max.replace(tzinfo=UTC)
REREAD_S = 60.0  # even if no schedule changed: a plan_file or the machine's time zones may have


class Timetable:
    """The schedules of a root as one process knows them; read again when a file changes."""

    def __init__(self, *, store: Store, root: str, clock: Clock, log: Log, gate: Gate | None = None) -> None:
        self._store = store
        self._root = root
        self._clock = clock
        self._log = log
        self._gate = gate
        self._entries: list[ScheduleFile] = []
        self._seen: Any = None
        self._read_s = float("-inf")
        self._reported: dict[str, tuple[str, ...]] = {}
        self._upcoming: dict[str, datetime] = {}  # cleared with every reading: a clock may have been set back

    def turn(self) -> list[Fired]:
        """Fire what is due. A problem with one schedule is logged and affects it alone."""
        self._refresh()
        fired: list[Fired] = []
        for entry in self._entries:
            if not entry.active:
                continue
            if entry.name not in self._upcoming or self._upcoming[entry.name] <= self._clock.now():
                fired += self._fire(entry)
                due = schedules.next_due(entry, self._clock.now())
                self._upcoming[entry.name] = due or _NEVER
        return fired

    def patience_s(self, longest_s: float) -> float:
        """Return how long a loop may sleep: until the next due time, at most its usual interval."""
        waits_s = [(due - self._clock.now()).total_seconds() for due in self._upcoming.values()]
        return min(longest_s, max(0.0, min(waits_s, default=longest_s)))

    def _refresh(self) -> None:
        seen, now_s = self._fingerprint(), self._clock.monotonic_s()
        if seen == self._seen and now_s - self._read_s < REREAD_S:
            return
        self._seen, self._read_s = seen, now_s
        self._upcoming.clear()
        self._entries = schedules.read(self._root, list(self._store.roles())) if seen else []
        for entry in self._entries:
            if self._reported.get(entry.file, ()) != entry.problems:
                self._reported[entry.file] = entry.problems
                for problem in entry.problems:
                    self._log("error", problem, {"event": {"type": "schedule_trouble"}})

    def _fingerprint(self) -> Any:
        """Return what shows that a file was added, removed or changed, without reading it."""
        try:
            with os.scandir(f"{self._root}/{schedules.FOLDER}") as found:
                return sorted((entry.name, entry.stat().st_mtime_ns, entry.stat().st_size) for entry in found)
        except OSError:
            return []

    def _fire(self, entry: ScheduleFile) -> list[Fired]:
        try:
            fired = schedules.fire_due(self._store, entry, self._clock.now(), self._gate)
        except SyncFailed:
            raise
        except (FarroError, OSError) as error:
            level = "warning" if isinstance(error, CapacityReached) else "error"
            self._log(level, f"schedule {entry.name}: {error}", {"event": {"type": "schedule_trouble"}})
            return []  # tried again after the next reading, not every turn
        for run in fired:
            event = {"type": "scheduled", "schedule": run.schedule, "due": f"{run.due:%Y-%m-%dT%H:%M:%SZ}"}
            self._log("info", f"schedule {run.schedule} queued {run.job_id}", {"job_id": run.job_id, "event": event})
        return fired


class Scheduler(Daemon):
    """A daemon that only fires schedules."""

    def __init__(self, *, store: Store, log: Log, timetable: Timetable) -> None:
        super().__init__(store=store, name="scheduler", log=log)
        self._timetable = timetable

    def run_once(self) -> list[Fired]:
        return self._timetable.turn()

    def patience_s(self, every_s: float) -> float:
        return self._timetable.patience_s(every_s)
