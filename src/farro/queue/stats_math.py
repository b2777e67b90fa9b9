"""Sums over jobs: throughput, latencies, failure rate, depth of each queue. Pure; jobs are read in operations.stats."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields

from farro.lazy_dataclass import dataclass

TOTAL = "*"  # the name of the line that sums all roles; no role can be called so


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """A job that ended inside the window."""

    role: str
    status: str  # succeeded, failed, killed
    latency_s: float | None  # from its first entry into a queue to its end
    wait_s: float | None  # from its first entry into a queue to its first claim


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """A job that has not ended."""

    role: str
    state: str  # queued, delayed, waiting, in_progress, stale
    age_s: float | None = None  # since it entered its queue


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleStats:
    """One line of `farro stats`; the names are those of its columns."""

    role: str
    queued: int
    delayed: int  # queued, for a time to come
    waiting: int  # for another job, or for a person
    in_progress: int
    stale: int
    succeeded: int  # this and what follows: inside the window
    failed: int
    killed: int
    throughput_per_min: float
    latency_p50_s: float | None
    latency_p95_s: float | None
    wait_p50_s: float | None
    wait_p95_s: float | None
    failure_rate: float | None  # of those that succeeded or failed
    oldest_queued_s: float | None
    window_s: float
    bounded: bool  # more jobs ended than were read, or more are queued than were looked at
    paused: bool = False  # its queue gives out no jobs; of the sum: one of them is


COLUMNS = tuple(item.name for item in fields(RoleStats))


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that `share` of all values do not exceed (nearest rank): always one that was measured."""
    if not values:
        return None
    if not 0 <= share <= 1:
        raise ValueError(f"{share} is not between 0 and 1")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def role_stats(
    role: str,
    waiting: Iterable[Waiting],
    finished: Iterable[Finished],
    *,
    window_s: float,
    bounded: bool = False,
    paused: bool = False,
) -> RoleStats:
    """The line of one role; TOTAL takes all of them."""
    here = [job for job in waiting if role in (TOTAL, job.role)]
    ended = [job for job in finished if role in (TOTAL, job.role)]
    states = dict.fromkeys(("queued", "delayed", "waiting", "in_progress", "stale"), 0)
    for job in here:
        states[job.state] += 1
    statuses = {status: sum(job.status == status for job in ended) for status in ("succeeded", "failed", "killed")}
    judged = statuses["succeeded"] + statuses["failed"]
    latencies = [job.latency_s for job in ended if job.latency_s is not None]
    waits = [job.wait_s for job in ended if job.wait_s is not None]
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
    )
