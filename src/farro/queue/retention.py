"""Choose finished jobs for the archive, and archive them at intervals when `retention.archive_after` is set."""

from __future__ import annotations

import threading
from collections.abc import Collection
from datetime import datetime

from farro.errors import FarroError, Refused
from farro.host.clock import Clock
from farro.jobs.states import FINISHED, Status
from farro.log.structured import Log
from farro.queue import find_job
from farro.store.port import JobEntry, Store

EVERY_S = 600.0
MOST = 5_000  # jobs in one run: while it lasts, nobody can prune


def choose(
    store: Store,
    *,
    now: datetime,
    statuses: Collection[Status] = FINISHED,
    roles: Collection[str] = (),
    older_than_s: float | None = None,
    keep: int | None = None,
    archived: bool = False,
) -> list[JobEntry]:
    """Return the finished jobs that ended at least `older_than_s` ago, except the newest `keep` of all, oldest first.
    `archived`: those in the archive instead of those in folders. Opens no job: a job that is not final is left alone by
    the store."""
    wanted = find_job.roles(store, roles)
    found = [
        (changed_s, entry.job_id, entry)
        for entry in store.entries(roles=wanted, statuses=statuses, archived=archived)
        if entry.archived is archived and entry.role is not None and (changed_s := entry.changed_at_s()) > 0
    ]
    found.sort(key=lambda each: each[:2])
    if keep is not None:
        found = found[: max(0, len(found) - keep)]
    before_s = now.timestamp() - (older_than_s or 0.0)
    return [entry for changed_s, _, entry in found if older_than_s is None or changed_s <= before_s]


class Retention:
    """Archive the jobs that ended at least `after_s` ago, at intervals, beside the manager's own work."""

    def __init__(self, *, store: Store, after_s: float, clock: Clock, log: Log) -> None:
        self._store = store
        self._after_s = after_s
        self._clock = clock
        self._log = log
        self._due_s = 0.0
        self._thread: threading.Thread | None = None

    def turn(self, *, background: bool) -> None:
        """Start a run if one is due. `background`: return at once; the run may be cut off at any point, and the next
        one goes on."""
        now_s = self._clock.monotonic_s()
        if now_s < self._due_s or (self._thread is not None and self._thread.is_alive()):
            return
        self._due_s = now_s + EVERY_S
        if not background:
            self.run_once()
            return
        self._thread = threading.Thread(target=self.run_once, name="archive", daemon=True)
        self._thread.start()

    def run_once(self) -> int:
        """Archive what is old enough; return how many jobs that were."""
        try:
            jobs = choose(self._store, older_than_s=self._after_s, now=self._clock.now())[:MOST]
            done = self._store.archive(jobs).jobs if jobs else 0
        except Refused as error:
            self._log("warning", str(error), {})
            return 0
        except (FarroError, OSError) as error:
            self._log("error", f"not archived: {error}", {})
            return 0
        if done:
            self._log("info", "finished jobs archived", {"jobs": done})
        return done
