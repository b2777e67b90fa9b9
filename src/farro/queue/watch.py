"""Observe jobs while they run: each change in order, and an overview of the current state."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice

from farro.execution import progress
from farro.host.clock import Clock
from farro.jobs import places
from farro.jobs.envelope import Lifecycle
from farro.jobs.moves import waits_for_person
from farro.jobs.states import FINISHED, Status
from farro.jobs.times import moment_or_none, seconds_between
from farro.lazy_dataclass import dataclass, field
from farro.queue.jobs import titles
from farro.store.port import AgentView, Change, JobView, QueuePause, Store

SHOWN_RUNNING = 20
SHOWN_ENDED = 8


class ChangeWatcher:
    """Report what changed since the last call: from the change feed, or after a gap by comparing two listings.

    Invariant: `_known` is what was last reported of each unfinished job.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cursor = store.changes(None).cursor  # before the first listing, so that no change is missed
        self._known = self._listed()

    def run_once(self, timeout_s: float) -> list[Change]:
        """Return new changes; wait up to `timeout_s` for one."""
        changes = self._store.changes(self._cursor, timeout_s=timeout_s)
        self._cursor = changes.cursor
        found = list(changes.items)
        if changes.gap:
            now = self._listed()
            found = [
                Change(job_id=job_id, role=role, status=status)
                for job_id, (role, status) in now.items()
                if self._known.get(job_id, (None, None))[1] is not status
            ]
            self._known = now
        counts_of_role = []
        for change in found:
            if changes.gap or self._known.get(change.job_id, (None, None))[1] is not change.status:
                counts_of_role.append(change)
            self._known[change.job_id] = (change.role, change.status)
        return counts_of_role

    def _listed(self) -> dict[str, tuple[str | None, Status]]:
        return {entry.job_id: (entry.role, entry.status) for entry in self._store.entries()}


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningJob:
    """A job that a worker holds."""

    job_id: str
    role: str
    agent: str
    step: str | None
    elapsed_s: float | None
    orphaned: bool
    title: str = ""  # what it does


@dataclass(frozen=True, kw_only=True, slots=True)
class RecentJob:
    """A job that ended recently."""

    job_id: str
    role: str | None
    status: Status
    took_s: float | None
    title: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobsOverview:
    """The state of all queues, jobs and agents."""

    at: datetime
    counts: Mapping[str, Mapping[Status, int]]  # per role that has or had work; "-" if the role is unknown
    running: tuple[RunningJob, ...]
    running_total: int
    ended: tuple[RecentJob, ...]  # newest first
    alive: Mapping[str, int]  # live agents per role
    dead: tuple[str, ...]  # dead agents that were not recovered yet
    asked: tuple[str, ...] = ()  # jobs that wait for a person
    paused: Mapping[str, QueuePause] = field(default_factory=dict)  # paused queues


class Viewer:
    """Build the overview repeatedly. Jobs are counted, not listed: listing all of them each turn is expensive."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._last_ended = _LastEnded(store)

    def overview(self, now: datetime) -> JobsOverview:
        """Return the current state of everything."""
        store = self._store
        agents = store.agents()
        found = store.queue_counts()
        apart = {Status.QUEUED: found.waiting, Status.IN_PROGRESS: found.passing, Status.STALE: found.stale}
        working = held_jobs(agents)
        running = [running_job(store, agent, job_id, now) for agent, job_id in working[:SHOWN_RUNNING]]
        return JobsOverview(
            at=now,
            counts={
                role: Counter({status: count for status, count in of.items() if count})
                for role, of in {**found.roles, "-": apart}.items()
                if any(of.values())
            },
            running=tuple(job for job in running if job is not None),
            running_total=len(working),
            ended=tuple(_ended(store, self._last_ended.views())),
            alive=Counter(agent.role for agent in agents if agent.alive and agent.role is not None),
            dead=tuple(agent.id for agent in agents if not agent.alive),
            asked=self._asked(),
            paused=store.paused(),
        )

    def _asked(self) -> tuple[str, ...]:
        lives = [life for entry in self._store.waiting() if (life := entry.lifecycle()) is not None]
        return tuple(life.job_id for life in lives if waits_for_person(life))


def held_jobs(agents: Iterable[AgentView]) -> list[tuple[AgentView, str]]:
    """Return every job that a worker holds, with its agent."""
    return [(agent, job_id) for agent in agents if agent.role is not None for job_id in agent.jobs]


def running_job(store: Store, agent: AgentView, job_id: str, now: datetime) -> RunningJob | None:
    """Describe a held job. None: it has moved on."""
    view = store.find(job_id)
    if view is None or view.status is not Status.IN_PROGRESS:
        return None
    life = view.lifecycle
    began = moment_or_none(life.updated_at)
    return RunningJob(
        job_id=job_id,
        role=life.role,
        agent=agent.id,
        step=progress.current(store.folder(view), life.attempt),
        elapsed_s=None if began is None else max(0.0, (now - began).total_seconds()),
        orphaned=not agent.alive,
        title=titles(store, [view]).get(job_id, ""),
    )


class _LastEnded:
    """The jobs that ended last: listed once, then updated from the change feed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cursor: int | None = None
        self._newest: list[tuple[float, str]] = []

    def views(self) -> list[JobView]:
        """Return them, the newest first."""
        self._refresh()
        found = [self._store.find(job_id) for _, job_id in self._newest]
        if None in found:  # some were pruned: others are the newest now
            self._list()
            found = [self._store.find(job_id) for _, job_id in self._newest]
        return [view for view in found if view is not None]

    def _refresh(self) -> None:
        cursor = self._cursor
        changes = self._store.changes(cursor)
        self._cursor = changes.cursor
        if cursor is None or changes.gap:
            self._list()
            return
        moved = {change.job_id for change in changes.items}
        ended = [change.job_id for change in changes.items if change.status in FINISHED][-SHOWN_ENDED:]
        views = [self._store.find(job_id) for job_id in dict.fromkeys(ended)]
        new = [(_changed_s(view), view.job_id) for view in views if view is not None]
        kept = [pair for pair in self._newest if pair[1] not in moved]
        self._newest = heapq.nlargest(SHOWN_ENDED, [*kept, *new])

    def _list(self) -> None:
        found = self._store.newest(statuses=FINISHED)
        ended = ((entry.changed_at_s(), entry.job_id) for entry in found if entry.place != places.QUARANTINE)
        self._newest = list(islice(ended, SHOWN_ENDED))


def _changed_s(view: JobView) -> float:
    changed = moment_or_none(view.lifecycle.updated_at)
    return 0.0 if changed is None else changed.timestamp()


def _ended(store: Store, views: list[JobView]) -> Iterator[RecentJob]:
    named = titles(store, views)
    for view in views:
        life = view.lifecycle
        took_s = seconds_between(life.created_at, life.finalized_at)
        title = named.get(view.job_id, "")
        yield RecentJob(job_id=view.job_id, role=life.role, status=view.status, took_s=took_s, title=title)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobUpdate:
    """One job as it is now, in the detail that a waiting user needs."""

    lifecycle: Lifecycle
    step: str | None


def updates(store: Store, job_id: str, *, every_s: float) -> Iterator[JobUpdate]:
    """Yield whenever the job's status, attempt or step changes. Ends when the job has ended, or is gone."""
    cursor = store.changes(None).cursor
    last: tuple[object, ...] | None = None
    while (view := store.find(job_id)) is not None:
        life = view.lifecycle
        running = life.status is Status.IN_PROGRESS
        step = progress.current(store.folder(view), life.attempt) if running else None
        if (now := (life.status, life.attempt, life.role, step, view.place == places.WAITING)) != last:
            last = now
            yield JobUpdate(lifecycle=life, step=step)
        if life.terminal:
            return
        cursor = store.changes(cursor, timeout_s=every_s).cursor
