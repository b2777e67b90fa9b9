"""Firing schedules by themselves: the timetable that the manager carries, and a keeper of its own for who has none.

Reading and firing one schedule live in operations.schedules. Any number may run: a due time has one job id.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

from farro.errors import CapacityReached, FarroError, SyncFailed
from farro.host.clock_port import Clock
from farro.log.structured import Log
from farro.queue import schedules
from farro.queue.admission import Gate
from farro.queue.schedules import Entry, Fired
from farro.store.port import Store
from farro.worker.daemon import Keeper

_NEVER = datetime.max.replace(tzinfo=UTC)
REREAD_S = 60.0  # also when no file changed: a plan_file, or the zones of the machine, may have


class Timetable:
    """The schedules of a root as one process knows them; read again when a file changes."""

    def __init__(self, *, store: Store, root: str, clock: Clock, log: Log, gate: Gate | None = None) -> None:
        self._store = store
        self._root = root
        self._clock = clock
        self._log = log
        self._gate = gate
        self._entries: list[Entry] = []
        self._seen: Any = None
        self._read_s = float("-inf")
        self._told: dict[str, tuple[str, ...]] = {}
        self._upcoming: dict[str, datetime] = {}  # forgotten with every reading: a clock may have been set back

    def turn(self) -> list[Fired]:
        """Fire what is due. Trouble with one schedule is logged and affects it alone."""
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
        """How long a loop may sleep: until the next due time, at most its usual interval."""
        waits_s = [(due - self._clock.now()).total_seconds() for due in self._upcoming.values()]
        return min(longest_s, max(0.0, min(waits_s, default=longest_s)))

    def _refresh(self) -> None:
        seen, now_s = self._look(), self._clock.monotonic_s()
        if seen == self._seen and now_s - self._read_s < REREAD_S:
            return
        self._seen, self._read_s = seen, now_s
        self._upcoming.clear()
        self._entries = schedules.read(self._root, list(self._store.roles())) if seen else []
        for entry in self._entries:
            if self._told.get(entry.file, ()) != entry.problems:
                self._told[entry.file] = entry.problems
                for problem in entry.problems:
                    self._log("error", problem, {"event": {"type": "schedule_trouble"}})

    def _look(self) -> Any:
        """What tells that a file came, went or changed, without reading it."""
        try:
            with os.scandir(f"{self._root}/{schedules.FOLDER}") as found:
                return sorted((entry.name, entry.stat().st_mtime_ns, entry.stat().st_size) for entry in found)
        except OSError:
            return []

    def _fire(self, entry: Entry) -> list[Fired]:
        try:
            fired = schedules.fire_due(self._store, self._root, entry, self._clock.now(), self._gate)
        except SyncFailed:
            raise
        except (FarroError, OSError) as error:
            level = "warning" if isinstance(error, CapacityReached) else "error"
            self._log(level, f"schedule {entry.name}: {error}", {"event": {"type": "schedule_trouble"}})
            return []  # tried again with the next reading, not with every turn
        for run in fired:
            event = {"type": "scheduled", "schedule": run.schedule, "due": f"{run.due:%Y-%m-%dT%H:%M:%SZ}"}
            self._log("info", f"schedule {run.schedule} queued {run.job_id}", {"job_id": run.job_id, "event": event})
        return fired


class Scheduler(Keeper):
    """A keeper that only fires schedules."""

    def __init__(self, *, store: Store, log: Log, timetable: Timetable) -> None:
        super().__init__(store=store, name="scheduler", log=log)
        self._timetable = timetable

    def run_once(self) -> list[Fired]:
        return self._timetable.turn()

    def patience_s(self, every_s: float) -> float:
        return self._timetable.patience_s(every_s)
