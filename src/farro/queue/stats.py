"""Compute `farro stats`: queue depths now, and throughput, latencies and failure rate of jobs that ended in the window.

The cost is bounded: a finished job outside the window costs one stat call and no read; inside the window, and in each
queue, at most so many jobs are read. The answer says what was left out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Any

from farro.jobs import places
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import FINISHED, Reason, Status
from farro.jobs.times import moment_or_none, seconds_between
from farro.lazy_dataclass import dataclass
from farro.queue import find_job
from farro.store.port import Store

MOST_FINISHED = 20_000
MOST_QUEUED = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class StatsLimits:
    """The largest number of jobs to read."""

    finished: int = MOST_FINISHED
    queued: int = MOST_QUEUED  # per role


def stats(
    store: Store,
    *,
    now: datetime,
    window_s: float,
    roles: Collection[str] = (),
    limits: StatsLimits | None = None,
) -> list[RoleStats]:
    """Return one line for each role, sorted by name: what it did with jobs, also with those that went on to others.
    With several roles a last line has the whole jobs."""
    wanted = find_job.roles(store, roles)
    limits = limits or StatsLimits()
    finished, since_s, cut = _finished(store, now, window_s, limits.finished)
    waiting, many, unfinished = _waiting(store, wanted, now, limits.queued)
    begin = now - timedelta(seconds=since_s)
    hops = [hop for life in (*(life for _, life in finished), *unfinished) for hop in role_hops(life, since=begin)]
    whole = [job for job, _ in finished]
    paused = store.paused().keys() & set(wanted)
    sums = [(role, role in many, role in paused) for role in wanted]
    if len(wanted) > 1:
        sums.append((TOTAL, bool(many), bool(paused)))
    return [
        role_stats(
            role, waiting, whole if role == TOTAL else hops, window_s=since_s, bounded=cut or more, paused=stands
        )
        for role, more, stands in sums
    ]


def _finished(
    store: Store, now: datetime, window_s: float, most: int
) -> tuple[list[tuple[FinishedWork, Lifecycle]], float, bool]:
    """Return the jobs that ended inside the window, how far back that reaches (less if there were too many), and
    whether. Those of every role are read: a job counts for all roles that worked it."""
    begin = now - timedelta(seconds=window_s)
    slack_s = 60.0  # the folder's time is the disk's clock; the end is the time in job.json
    since_s = begin.timestamp() - slack_s
    found = ((entry.changed_at_s(), entry) for entry in store.newest(statuses=FINISHED))
    recent = list(islice(takewhile(lambda pair: pair[0] >= since_s, found), most + 1))
    cut = len(recent) > most
    if cut:
        recent = recent[:most]
        begin = max(begin, datetime.fromtimestamp(recent[-1][0], now.tzinfo))
    ended = []
    for _, entry in recent:
        life = entry.lifecycle()
        end = None if life is None else moment_or_none(life.finalized_at or life.updated_at)
        if life is not None and end is not None and end >= begin and entry.role is not None:
            job = FinishedWork(
                role=entry.role,
                status=str(entry.status),
                latency_s=seconds_between(life.created_at, life.finalized_at),
                wait_s=seconds_between(life.created_at, life.first_claimed_at),
                work_s=seconds_between(life.first_claimed_at, life.finalized_at),
            )
            ended.append((job, life))
    return ended, max(1.0, (now - begin).total_seconds()), cut


_ENDS_A_HOP = {
    Reason.ROUTED: "succeeded",
    Reason.FORCE_COMPLETED: "succeeded",
    Reason.KILLED: "killed",
    Reason.GAVE_UP: "killed",
}
_ENTERS_AGAIN = frozenset({Reason.ENQUEUED, Reason.REROUTED, Reason.ANSWERED})


def role_hops(life: Lifecycle, *, since: datetime) -> Iterator[FinishedWork]:
    """Yield what each role did with the job, from its entry into the role's queue to its end there, tries included.
    Only what ended since that time."""
    entered, claimed, first = life.created_at, None, True
    for hop in life.hops:
        claimed = claimed or hop.claimed_at
        status = hop.to.rsplit("/", 1)[-1] if hop.reason is Reason.COMMITTED else _ENDS_A_HOP.get(hop.reason)
        if status is not None:
            begun = claimed or (life.first_claimed_at if first else None)
            end = moment_or_none(hop.at)
            if end is not None and end >= since:
                yield FinishedWork(
                    role=hop.role,
                    status=status,
                    latency_s=seconds_between(entered, hop.at),
                    wait_s=seconds_between(entered, begun),
                    work_s=seconds_between(begun, hop.at),
                )
            entered, claimed, first = hop.at, None, False
        elif hop.reason in _ENTERS_AGAIN or (hop.reason is Reason.REQUEUED and claimed is None):
            entered, claimed = hop.at, None


def _waiting(
    store: Store, wanted: Collection[str], now: datetime, most: int
) -> tuple[list[UnfinishedJob], set[str], list[Lifecycle]]:
    """Return the jobs that have not ended, the roles with more queued jobs than were read, and the lifecycles of those
    that some role has worked."""
    found: list[UnfinishedJob] = []
    worked: list[Lifecycle] = []
    looked: dict[str, int] = {}
    many: set[str] = set()
    for entry in store.entries(statuses={Status.QUEUED, Status.IN_PROGRESS, Status.STALE}):
        if entry.status is Status.QUEUED and entry.role is not None:
            looked[entry.role] = looked.get(entry.role, 0) + 1
            if looked[entry.role] > most:  # counted, but its due time is not read
                many.add(entry.role)
                found.append(UnfinishedJob(role=entry.role, state="queued"))
                continue
        life = entry.lifecycle()
        if life is not None and life.hops:
            worked.append(life)
        if entry.role is None and life is not None:  # outside every role's folder: job.json says its role
            state = "waiting" if entry.place == places.WAITING else str(entry.status)
            found.append(UnfinishedJob(role=life.role, state=state))
        elif entry.role is not None and entry.status is Status.QUEUED:
            found.append(_queued(life, entry.role, now))
        elif entry.role is not None:
            found.append(UnfinishedJob(role=entry.role, state="in_progress"))
    return [job for job in found if job.role in wanted], many & set(wanted), worked


def _queued(life: Lifecycle | None, role: str, now: datetime) -> UnfinishedJob:
    due = None if life is None else moment_or_none(life.not_before)
    entered = None if life is None else moment_or_none(life.enqueued_at)
    return UnfinishedJob(
        role=role,
        state="delayed" if due is not None and due > now else "queued",
        age_s=None if entered is None else max(0.0, (now - entered).total_seconds()),
    )


TOTAL = "*"  # the name of the line that sums all roles; not a valid role name


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedWork:
    """A job that ended inside the window, or what one role did with a job."""

    role: str
    status: str  # succeeded, failed, killed
    latency_s: float | None  # from the entry into the queue to the end
    wait_s: float | None  # from the entry into the queue to the first claim
    work_s: float | None = None  # from the first claim to the end


@dataclass(frozen=True, kw_only=True, slots=True)
class UnfinishedJob:
    """A job that has not ended."""

    role: str
    state: str  # queued, delayed, waiting, in_progress, stale
    age_s: float | None = None  # since it entered its queue


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleStats:
    """One line of `farro stats`; the field names are its column names."""

    role: str
    queued: int
    delayed: int  # queued with a start time in the future
    waiting: int  # waiting for another job, or for a person
    in_progress: int
    stale: int
    succeeded: int  # this and the following: inside the window
    failed: int
    killed: int
    throughput_per_min: float
    latency_p50_s: float | None
    latency_p95_s: float | None
    wait_p50_s: float | None
    wait_p95_s: float | None
    failure_rate: float | None  # share of those that succeeded or failed
    oldest_queued_s: float | None
    window_s: float
    bounded: bool  # more jobs ended or are queued than were read
    paused: bool = False  # its queue is paused; in the sum: one of them is
    latency_avg_s: float | None = None
    wait_avg_s: float | None = None
    work_avg_s: float | None = None
    work_p50_s: float | None = None
    work_p95_s: float | None = None

    def to_data(self) -> dict[str, Any]:
        """Return the line as data, rounded to thousandths."""
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(self).items()}


COLUMNS = tuple(item.name for item in fields(RoleStats))


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that `share` of all values do not exceed (nearest rank): always a measured one."""
    if not values:
        return None
    if not 0 <= share <= 1:
        raise ValueError(f"{share} is not between 0 and 1")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def role_stats(
    role: str,
    waiting: Iterable[UnfinishedJob],
    finished: Iterable[FinishedWork],
    *,
    window_s: float,
    bounded: bool = False,
    paused: bool = False,
) -> RoleStats:
    """Compute the line of one role; TOTAL sums all."""
    here = [job for job in waiting if role in (TOTAL, job.role)]
    ended = [job for job in finished if role in (TOTAL, job.role)]
    states = dict.fromkeys(("queued", "delayed", "waiting", "in_progress", "stale"), 0)
    for job in here:
        states[job.state] += 1
    statuses = {status: sum(job.status == status for job in ended) for status in ("succeeded", "failed", "killed")}
    judged = statuses["succeeded"] + statuses["failed"]
    latencies = [job.latency_s for job in ended if job.latency_s is not None]
    waits = [job.wait_s for job in ended if job.wait_s is not None]
    works = [job.work_s for job in ended if job.work_s is not None]
    ages = [job.age_s for job in here if job.age_s is not None and job.state == "queued"]
    return RoleStats(
        role=role,
        **states,
        **statuses,
        throughput_per_min=len(ended) * 60 / window_s if window_s > 0 else 0.0,
        latency_p50_s=percentile(latencies, 0.5),
        latency_p95_s=percentile(latencies, 0.95),
        wait_p50_s=percentile(waits, 0.5),
        wait_p95_s=percentile(waits, 0.95),
        failure_rate=statuses["failed"] / judged if judged else None,
        oldest_queued_s=max(ages, default=None),
        window_s=window_s,
        bounded=bounded,
        paused=paused,
        latency_avg_s=_average(latencies),
        wait_avg_s=_average(waits),
        work_avg_s=_average(works),
        work_p50_s=percentile(works, 0.5),
        work_p95_s=percentile(works, 0.95),
    )


def _average(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
