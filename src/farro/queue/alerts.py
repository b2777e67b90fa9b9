"""Compute the alerts from the newest part of the audit log, the depth of the queues, and whether the log is writable.

Nothing is sampled and no state is kept (docs/decisions/alerts-are-computed-from-the-audit-log.md). The past depth of a
queue is computed backwards, from its present depth and the transitions of the last half hour. If no queue is deep, only
the few lines that matter are parsed; otherwise at most `LIMIT` bytes are read.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from farro.config.settings import Settings
from farro.host import fs
from farro.jobs.times import moment_or_none
from farro.lazy_dataclass import dataclass
from farro.log.audit import DELETED, MISSED, files
from farro.log.audit_reader import RecentEvents
from farro.queue import find_job
from farro.queue.accounts import PausedAccount, paused_accounts
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
    hot = [role for role, load in loads.items() if load > DEPTH * (settings.cap_of(role) or 0)]
    folder = f"{store.root}/logs"
    since = now - timedelta(seconds=LOOKBACK_S)
    read = store.audit_events().recent(since=since, holding=_FEW if not hot else (), limit=limit)
    trouble = _unwritable(folder)
    judged = [requeues(read.lines, now)]
    judged += [depth(queue, now) for queue in _depths(settings, loads, hot, read, set(aside), now)]
    judged.append(accounts(paused_accounts(store), now))
    judged.append(audit_errors(read.lines, trouble, now))
    judged.append(log_quota(read.lines, _size(folder), settings.audit.quota_bytes, now))
    return AlertReport(alerts=judged, bounded=not read.whole)


def _depths(
    settings: Settings, loads: dict[str, int], hot: Sequence[str], read: RecentEvents, aside: set[str], now: datetime
) -> list[QueueDepth]:
    """Compute each queue's depth now and its lowest depth inside the window."""
    begin = now - timedelta(seconds=DEPTH_S)
    since = begin if read.whole or read.since is None else max(begin, read.since)
    changed = changes(read.lines, hot, aside) if hot else []
    return [
        QueueDepth(
            role=role,
            cap=settings.cap_of(role) or 0,
            now=load,
            least=least(load, role, changed, since) if role in hot else load,
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


REQUEUES, REQUEUES_S = 20, 300.0  # fires above so many requeued stale jobs within so many seconds
DEPTH, DEPTH_S = 0.8, 1800.0  # fires above this share of a role's cap for so many seconds
ERRORS_PER_MIN, ERRORS_S = 3, 300.0  # fires above so many unwritten lines a minute, within so many seconds
QUOTA_S = 3600.0  # a deletion for the quota fires for so many seconds
LOOKBACK_S = max(REQUEUES_S, DEPTH_S, ERRORS_S, QUOTA_S)

_IN_QUEUE = ("queued", "in_progress")


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """One trigger and its present state."""

    name: str
    firing: bool
    what: str  # a sentence
    value: float
    bar: float  # it fires above this
    role: str | None = None
    next: tuple[str, ...] = ()  # what to do, where it fires


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueDepth:
    """A role's queue: its depth, its cap, and its smallest depth since `since`."""

    role: str
    cap: int
    now: int
    least: int
    since: datetime


def requeues(events: Iterable[Mapping[str, Any]], now: datetime) -> Alert:
    """Judge the jobs that recovery requeued; what a person requeues is no sign of trouble."""
    by_itself = [
        event
        for event in events
        if event.get("event") == "requeued"
        and event.get("from") == "stale"
        and str(event.get("actor")).startswith(("manager.", "watchdog."))
        and _within(event, now, REQUEUES_S)
    ]
    count = len(by_itself)
    return Alert(
        name="requeues",
        firing=count > REQUEUES,
        what=f"{_many(count, 'stale job was', 'stale jobs were')} queued again in the last 5 minutes",
        value=count,
        bar=REQUEUES,
        next=(
            "workers die or hang: farro status; farro ps and logs/farro-supervisor.log say how services ended",
            "which jobs: farro ls --status stale, then farro history JOB",
            "a job that kills its workers: farro kill JOB",
        ),
    )


def changes(
    events: Iterable[Mapping[str, Any]], roles: Collection[str], aside: Collection[str] = ()
) -> list[tuple[datetime, str, int]]:
    """Return how the depth of the roles' queues changed, in order of time: when, which role, by how many. A job counts
    for the role whose queue or worker has it. `aside`: jobs that are in no queue now, such as waiting ones."""
    where: dict[str, str | None] = {}
    found: list[tuple[datetime, str, int]] = []
    for moment, event in sorted(_timed(events), key=lambda pair: pair[0]):
        job_id, role, status = event.get("job_id"), event.get("role"), event.get("status")
        if not isinstance(job_id, str) or not isinstance(role, str) or not isinstance(status, str) or job_id in aside:
            continue
        before = where.get(job_id, role if event.get("from") in _IN_QUEUE else None)
        after = str(event.get("next") or role) if status in _IN_QUEUE else None
        where[job_id] = after
        if before != after:
            found += [(moment, each, by) for each, by in ((before, -1), (after, 1)) if each in roles]  # type: ignore[misc]
    return found


def least(depth_now: int, role: str, changed: Iterable[tuple[datetime, str, int]], since: datetime) -> int:
    """Return the smallest depth between `since` and now, computed backwards from the present depth."""
    lowest = depth = depth_now
    for moment, which, by in sorted(changed, key=lambda item: item[0], reverse=True):
        if which == role and moment >= since:
            depth -= by
            lowest = min(lowest, depth)
    return max(0, lowest)


def depth(queue: QueueDepth, now: datetime) -> Alert:
    bar = DEPTH * queue.cap
    minutes = (now - queue.since).total_seconds() / 60
    firing = queue.least > bar
    share = f"{queue.now} of at most {queue.cap} jobs"
    return Alert(
        name="depth",
        role=queue.role,
        firing=firing,
        what=f"{queue.role} has {share}"
        + (f", and had more than {bar:g} all the last {minutes:.0f} minutes" if firing else ""),
        value=queue.least,
        bar=bar,
        next=(
            f"is it worked at all: farro status, farro ls --role {queue.role} --status in_progress",
            f"more workers: farro worker --role {queue.role}; or pause auto-plan: farro manager --auto-plan off",
            f"what repeats: farro ls --role {queue.role} --status failed, farro explain JOB",
        ),
    )


def accounts(paused: Sequence[PausedAccount], now: datetime) -> Alert:
    """Judge the paused accounts: one that only a person can resume, or whose limit has been unknown for a day."""
    wanting = [one for one in paused if one.pause.needs_person(now)]
    return Alert(
        name="accounts",
        firing=bool(wanting),
        what="; ".join(one.line for one in paused) or "no account of a provider is paused",
        value=len(wanting),
        bar=0,
        next=(
            *(f"when the key, the credit or the limit is in order: {one.resume_command}" for one in wanting),
            "which jobs wait: farro explain JOB; does it answer: farro provider-test --provider NAME",
        ),
    )


def audit_errors(events: Iterable[Mapping[str, Any]], trouble: str | None, now: datetime) -> Alert:
    """Judge the unwritten lines. `trouble`: why the log cannot be written now; None if it can."""
    rates = [_rate(event) for event in events if event.get("event") == MISSED and _within(event, now, ERRORS_S)]
    worst = max(rates, default=0.0)
    what = f"at most {worst:g} lines a minute could not be written in the last 5 minutes" if worst else "it is written"
    return Alert(
        name="audit_errors",
        firing=trouble is not None or worst > ERRORS_PER_MIN,
        what=f"the audit log: {what}" if trouble is None else f"the audit log cannot be written now: {trouble}",
        value=worst,
        bar=ERRORS_PER_MIN,
        next=(
            "room and rights: df -h logs; ls -ld logs logs/audit.log",
            "make room: farro prune --dry-run, then farro prune",
            "jobs go on meanwhile, and farro history JOB has their hops: nothing is lost but lines of this log",
        ),
    )


def log_quota(events: Iterable[Mapping[str, Any]], size: int, quota: int, now: datetime) -> Alert:
    gone = sum(1 for event in events if event.get("event") == DELETED and _within(event, now, QUOTA_S))
    taken = f"; {_many(gone, 'file was', 'files were')} deleted for it in the last hour" if gone else ""
    return Alert(
        name="log_quota",
        firing=bool(gone) or size > quota,
        what=f"the audit log has {size >> 20} of at most {quota >> 20} MiB{taken}",
        value=size,
        bar=quota,
        next=(
            "what fills it: farro stats --since 10m, and tail logs/audit.log",
            "keep what is needed elsewhere: cp logs/audit.log.* SOMEWHERE",
            "or let it have more: audit.quota_bytes in the config",
        ),
    )


def _rate(event: Mapping[str, Any]) -> float:
    """Return lines per minute over the duration of the trouble; less than a minute counts as one."""
    lines = event.get("lines")
    moments = [moment for name in ("since", "ts") if (moment := moment_or_none(event.get(name))) is not None]
    lasted_s = (moments[-1] - moments[0]).total_seconds() if moments else 0.0
    return round(lines * 60 / max(60.0, lasted_s), 1) if isinstance(lines, int) else 0.0


def _timed(events: Iterable[Mapping[str, Any]]) -> Iterable[tuple[datetime, Mapping[str, Any]]]:
    for event in events:
        if (moment := moment_or_none(event.get("ts"))) is not None:
            yield moment, event


def _within(event: Mapping[str, Any], now: datetime, seconds: float) -> bool:
    moment = moment_or_none(event.get("ts"))
    return moment is not None and moment >= now - timedelta(seconds=seconds)


def _many(count: int, one: str, several: str) -> str:
    return f"{count or 'no'} {one if count == 1 else several}"
