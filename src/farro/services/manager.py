"""The manager's loop, as far as it decides stale jobs (again while attempts remain, else killed) and fires schedules.

Routing, workflows and auto-plan come with the manager's own issue; finding dead agents is the watchdog's.
"""

from __future__ import annotations

from farro.errors import FarroError, Lost, SyncFailed
from farro.kernel.envelope import Lifecycle
from farro.observe.log import Log
from farro.operations.schedules import Fired
from farro.ports.store import Store
from farro.services.keeper import Keeper
from farro.services.scheduler import Timetable


class Manager(Keeper):
    def __init__(self, *, store: Store, log: Log, timetable: Timetable | None = None) -> None:
        super().__init__(store=store, name="manager", log=log)
        self._timetable = timetable
        self._shows = False  # whether others are to see it also when it has nothing to decide

    def run(self, every_s: float) -> None:
        """As every keeper; and an agent from the start, so that `farro status` and `explain` see that it lives."""
        self._shows = True
        super().run(every_s)

    def patience_s(self, every_s: float) -> float:
        return every_s if self._timetable is None else self._timetable.patience_s(every_s)

    def run_once(self) -> list[Lifecycle | Fired]:
        """Decide every job that is stale now, and fire the schedules that are due; answers what was done."""
        done: list[Lifecycle | Fired] = [*self._settle()]
        if self._timetable is not None:
            done += self._timetable.turn()
        return done

    def _settle(self) -> list[Lifecycle]:
        done: list[Lifecycle] = []
        if self._agent is not None or self._shows:
            self.agent()  # a heartbeat: without it a manager with nothing to decide for `stale_after` is taken for hung
        for job_id in self._store.stale():
            try:
                told = self._store.settle_stale(self.agent(), job_id)
            except Lost as lost:
                self._log("warning", str(lost), {"job_id": job_id})
                self.leave()
                continue
            except SyncFailed:
                raise
            except FarroError as error:  # that job alone (RELIABILITY 26)
                self._log("error", str(error), {"job_id": job_id})
                self.leave()  # the job may lie in our folder: without a lease a watchdog takes it from there
                continue
            if told is not None:
                event = {"type": "state_transition", "from": "stale", "to": str(told.status)}
                self._log("info", "stale job decided", {"job_id": job_id, "event": event})
                done.append(told)
        return done
