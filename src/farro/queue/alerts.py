"""Compute the alerts from the newest part of the audit log, the depth of the queues, and whether the log is writable.

Nothing is sampled and no state is kept (docs/decisions/alerts-are-computed-from-the-audit-log.md). The past depth of a
queue is computed backwards, from its present depth and the transitions of the last half hour. If no queue is deep, only
the few lines that matter are parsed; otherwise at most `LIMIT` bytes are read.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from farro.config.settings import Settings
from farro.host import fs
from farro.lazy_dataclass import dataclass
from farro.log import alert_rules as triggers
from farro.log.alert_rules import Alert, QueueDepth
from farro.log.audit import files
from farro.log.audit_reader import RecentEvents
from farro.queue import find_job, fleet
from farro.store.port import Store

LIMIT = 64 << 20  # bytes of the log that are read
_PROBE = b"farro\n" * 700  # more than a page: a full disk often still accepts a few bytes
_FEW = (b'"requeued"', b'"audit_missed"', b'"audit_deleted"')


@dataclass(frozen=True, kw_only=True, slots=True)
class AlertReport:
    """Every alert, firing or not."""

    alerts: Sequence[Alert]
    bounded: bool  # the log holds more than was read: the windows are shorter than they should be

    @property
    def firing(self) -> int:
        return sum(alert.firing for alert in self.alerts)


def alerts(
    store: Store, settings: Settings, *, now: datetime, roles: Collection[str] = (), limit: int = LIMIT
) -> AlertReport:
    """Evaluate every trigger; those of a role once for each role with a cap."""
    wanted = find_job.roles(store, roles)
    aside = [entry.job_id for entry in store.waiting()]
    loads = {role: store.load(role) for role in wanted if settings.cap_of(role)}
    if "Manager" in loads:
        loads["Manager"] = max(0, loads["Manager"] - len(aside))  # they count towards its cap, but are in no queue
    hot = [role for role, load in loads.items() if load > triggers.DEPTH * (settings.cap_of(role) or 0)]
    folder = f"{store.root}/logs"
    since = now - timedelta(seconds=triggers.LOOKBACK_S)
    read = fleet.recent(store, since=since, holding=_FEW if not hot else (), limit=limit)
    trouble = _unwritable(folder)
    judged = [triggers.requeues(read.lines, now)]
    judged += [triggers.depth(queue, now) for queue in _depths(settings, loads, hot, read, set(aside), now)]
    judged.append(triggers.audit_errors(read.lines, trouble, now))
    judged.append(triggers.log_quota(read.lines, _size(folder), settings.audit.quota_bytes, now))
    return AlertReport(alerts=judged, bounded=not read.whole)


def _depths(
    settings: Settings, loads: dict[str, int], hot: Sequence[str], read: RecentEvents, aside: set[str], now: datetime
) -> list[QueueDepth]:
    """Compute each queue's depth now and its lowest depth inside the window."""
    begin = now - timedelta(seconds=triggers.DEPTH_S)
    since = begin if read.whole or read.since is None else max(begin, read.since)
    changed = triggers.changes(read.lines, hot, aside) if hot else []
    return [
        QueueDepth(
            role=role,
            cap=settings.cap_of(role) or 0,
            now=load,
            least=triggers.least(load, role, changed, since) if role in hot else load,
            since=since,
        )
        for role, load in loads.items()
    ]


def _unwritable(folder: str) -> str | None:
    """Return why the log folder cannot be written, or None. Probes with its own file: a probe line in the log itself
    would add one for each check of a monitor."""
    path = f"{folder}/.probe-{os.getpid()}"
    try:
        try:
            fs.create(path, _PROBE)
        finally:
            if fs.exists(path):
                fs.unlink(path)
        log = f"{folder}/audit.log"
        if fs.exists(log):
            os.close(fs.open_append(log))
    except OSError as error:
        return f"{os.path.basename(folder)}: {error.strerror or error}"
    return None


def _size(folder: str) -> int:
    total = 0
    try:
        for name in files(folder):
            total += fs.lstat(f"{folder}/{name}").st_size
    except OSError:  # no log yet, rotated meanwhile, or unreadable: `_unwritable` reports that
        pass
    return total
