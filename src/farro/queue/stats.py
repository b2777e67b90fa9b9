"""Reading what `farro stats` sums: the queues as they are, and the jobs that ended inside the window, newest first.

The sums live in observe.stats.

The cost is bounded: a finished job outside the window costs one look at its folder's time, never a read; of those
inside, and of each queue, at most so many are read. What was left out is said in the answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta

from farro.jobs import places
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.queue import find_job, tree
from farro.queue.stats_math import TOTAL, Finished, RoleStats, Waiting, role_stats
from farro.queue.times import moment_or_none, seconds_between
from farro.store.port import Store

MOST_FINISHED = 20_000
MOST_QUEUED = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    finished: int = MOST_FINISHED
    queued: int = MOST_QUEUED  # of each role


def stats(
    store: Store,
    root: str,
    *,
    now: datetime,
    window_s: float,
    roles: Collection[str] = (),
    limits: Limits | None = None,
) -> list[RoleStats]:
    """A line for each role, in the order of their names, and where there are several a last one that sums them."""
    wanted = find_job.roles(store, roles)
    limits = limits or Limits()
    finished, since_s, cut = _finished(store, wanted, now, window_s, limits.finished)
    waiting, many = _waiting(store, wanted, now, limits.queued)
    paused = store.paused().keys() & set(wanted)
    sums = [(role, role in many, role in paused) for role in wanted]
    if len(wanted) > 1:
        sums.append((TOTAL, bool(many), bool(paused)))
    return [
        role_stats(role, waiting, finished, window_s=since_s, bounded=cut or more, paused=stands)
        for role, more, stands in sums
    ]


def _finished(
    store: Store, roles: Sequence[str], now: datetime, window_s: float, most: int
) -> tuple[list[Finished], float, bool]:
    """Those that ended inside the window, and how far back that reaches: not as far where there were too many."""
    begin = now - timedelta(seconds=window_s)
    slack_s = 60.0  # the folder's time is the disk's clock at the move; the end is what job.json says
    recent = [
        (changed_s, entry)
        for entry in tree.entries(store, tree.FINISHED, roles=roles)
        if (changed_s := entry.changed_at_s()) >= begin.timestamp() - slack_s
    ]
    cut = len(recent) > most
    if cut:
        recent = sorted(recent, key=lambda pair: pair[0], reverse=True)[:most]
        begin = max(begin, datetime.fromtimestamp(recent[-1][0], now.tzinfo))
    found = []
    for _, entry in recent:
        life = entry.lifecycle()
        end = None if life is None else moment_or_none(life.finalized_at or life.updated_at)
        if life is not None and end is not None and end >= begin and entry.role is not None:
            found.append(
                Finished(
                    role=entry.role,
                    status=str(entry.status),
                    latency_s=seconds_between(life.created_at, life.finalized_at),
                    wait_s=seconds_between(life.created_at, life.first_claimed_at),
                )
            )
    return found, max(1.0, (now - begin).total_seconds()), cut


def _waiting(store: Store, wanted: Collection[str], now: datetime, most: int) -> tuple[list[Waiting], set[str]]:
    """Everything that has not ended, and the roles with more queued jobs than were looked at."""
    found: list[Waiting] = []
    looked: dict[str, int] = {}
    many: set[str] = set()
    for entry in tree.entries(store, {Status.QUEUED, Status.IN_PROGRESS, Status.STALE}):
        if entry.role is not None and entry.role not in wanted:
            continue
        if entry.status is Status.QUEUED and entry.role is not None:
            looked[entry.role] = looked.get(entry.role, 0) + 1
            if looked[entry.role] > most:  # counted, but no longer asked when it is due
                many.add(entry.role)
                found.append(Waiting(role=entry.role, state="queued"))
                continue
            found.append(_queued(entry, entry.role, now))
        elif entry.role is not None:
            found.append(Waiting(role=entry.role, state="in_progress"))
        else:
            found += [job for job in _of_no_place(entry) if job.role in wanted]
    return found, many


def _queued(entry: tree.Entry, role: str, now: datetime) -> Waiting:
    life = entry.lifecycle()
    due = None if life is None else moment_or_none(life.not_before)
    entered = None if life is None else moment_or_none(life.enqueued_at)
    return Waiting(
        role=role,
        state="delayed" if due is not None and due > now else "queued",
        age_s=None if entered is None else max(0.0, (now - entered).total_seconds()),
    )


def _of_no_place(entry: tree.Entry) -> Iterator[Waiting]:
    """Jobs of every role lie together there: job.json knows whose it is."""
    life = entry.lifecycle()
    if life is not None:
        state = "waiting" if entry.place == places.WAITING else str(entry.status)
        yield Waiting(role=life.role, state=state)
