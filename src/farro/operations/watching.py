"""Looking on while work happens: what changed, one thing after the other, and how everything stands now.

How it is drawn lives in cli.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from farro.kernel.envelope import Lifecycle
from farro.kernel.states import Status
from farro.operations import steps, tree
from farro.operations.moments import moment_or_none, seconds_between
from farro.ports.store import Change, Store

SHOWN_RUNNING = 20
SHOWN_ENDED = 8


class Onlooker:
    """What changed since the last look. The feed tells it; where it lost something, two listings are compared.

    Invariant: `_known` is what was told last of each job that has not ended.
    """

    def __init__(self, store: Store, root: str) -> None:
        self._store = store
        self._root = root
        self._cursor = store.changes(None).cursor  # before the first listing, so that nothing falls between
        self._known = self._listed()

    def run_once(self, timeout_s: float) -> list[Change]:
        """Waits up to `timeout_s` for something."""
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
        told = []
        for change in found:
            if changes.gap or self._known.get(change.job_id, (None, None))[1] is not change.status:
                told.append(change)
            self._known[change.job_id] = (change.role, change.status)
        return told

    def _listed(self) -> dict[str, tuple[str | None, Status]]:
        found = tree.entries(self._root, self._store.roles(), quarantined=True)
        return {entry.job_id: (entry.role, entry.status) for entry in found}


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    job_id: str
    role: str
    agent: str
    step: str | None
    elapsed_s: float | None
    orphaned: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    job_id: str
    role: str | None
    status: Status
    took_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """How everything stands."""

    at: datetime
    counts: Mapping[str, Mapping[Status, int]]  # of each role that has or had work; "-" where nobody knows whose
    running: tuple[Running, ...]
    running_total: int
    ended: tuple[Ended, ...]  # the newest first
    alive: Mapping[str, int]  # live agents of each role
    dead: tuple[str, ...]  # agents that died and were not recovered


def picture(store: Store, root: str, *, now: datetime) -> Picture:
    counts: dict[str, Counter[Status]] = {}
    finished: list[tree.Entry] = []
    for entry in tree.entries(root, store.roles()):
        counts.setdefault(entry.role or "-", Counter())[entry.status] += 1
        if entry.status in tree.FINISHED:
            finished.append(entry)
    agents = store.agents()
    working = [(agent, job_id) for agent in agents if agent.role is not None for job_id in agent.jobs]
    alive = Counter(agent.role for agent in agents if agent.alive and agent.role is not None)
    running = []
    for agent, job_id in working[:SHOWN_RUNNING]:
        view = store.find(job_id)
        if view is not None and view.status is Status.IN_PROGRESS:
            life = view.lifecycle
            began = moment_or_none(life.updated_at)
            running.append(
                Running(
                    job_id=job_id,
                    role=life.role,
                    agent=agent.id,
                    step=steps.current(f"{root}/{view.place}/{job_id}", life.attempt),
                    elapsed_s=None if began is None else max(0.0, (now - began).total_seconds()),
                    orphaned=not agent.alive,
                )
            )
    return Picture(
        at=now,
        counts=counts,
        running=tuple(running),
        running_total=len(working),
        ended=tuple(_ended(store, tree.newest(finished, SHOWN_ENDED))),
        alive=alive,
        dead=tuple(agent.id for agent in agents if not agent.alive),
    )


def _ended(store: Store, entries: list[tree.Entry]) -> Iterator[Ended]:
    for entry in entries:
        view = store.find(entry.job_id)
        if view is not None:
            took_s = seconds_between(view.lifecycle.created_at, view.lifecycle.finalized_at)
            yield Ended(job_id=entry.job_id, role=entry.role, status=view.status, took_s=took_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """One job as it stands, as far as a person who waits for it wants to know."""

    lifecycle: Lifecycle
    step: str | None


def moments(store: Store, root: str, job_id: str, *, every_s: float) -> Iterator[Moment]:
    """Each time something about the job is another: its status, attempt or step. Over when it has ended, or is gone."""
    cursor = store.changes(None).cursor
    last: tuple[object, ...] | None = None
    while (view := store.find(job_id)) is not None:
        life = view.lifecycle
        running = life.status is Status.IN_PROGRESS
        step = steps.current(f"{root}/{view.place}/{job_id}", life.attempt) if running else None
        if (now := (life.status, life.attempt, life.role, step)) != last:
            last = now
            yield Moment(lifecycle=life, step=step)
        if life.terminal:
            return
        cursor = store.changes(cursor, timeout_s=every_s).cursor
