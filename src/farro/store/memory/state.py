"""What the memory store holds, and looking at it without changing anything.

Verbs that change a job live in the package itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

from farro.errors import UnknownRole
from farro.host.clock import Clock
from farro.jobs import ids, places, transitions
from farro.jobs.envelope import Lifecycle
from farro.jobs.ids import IdMint
from farro.jobs.retry import Uniform
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass, field
from farro.log.audit import Audit, no_audit
from farro.plans import after
from farro.plans.after import DependencyState
from farro.store.feed import ChangeFeed
from farro.store.port import Agent, Changes, JobView, QueuePause, StorePolicy


@dataclass(kw_only=True, slots=True)
class Job:
    prompt: Mapping[str, Any]
    digest: str | None  # of the content, for a chosen id
    lifecycle: Lifecycle
    entered: tuple[str, int]  # the order in its queue: its priority, and then its entry
    waits: bool = False  # outside its queue, for the jobs that it runs after
    owner: str | None = None
    attempts: int = 0
    results: dict[int, Mapping[str, Any]] = field(default_factory=dict)


class State:
    """The jobs and agents in dictionaries; `_lock` guards all of them."""

    def __init__(
        self,
        *,
        roles: Collection[str],
        policy: StorePolicy,
        clock: Clock,
        random_bits: Callable[[int], int],
        uniform: Uniform,
        audit: Audit = no_audit,
    ) -> None:
        self.note = audit
        self._roles = sorted(map(ids.check_role, roles))
        self._policy = policy
        self._clock = clock
        self._random_bits = random_bits
        self._uniform = uniform
        self._mint = IdMint(clock.now, random_bits)
        self._jobs: dict[str, Job] = {}
        self._names: dict[str, str] = {}  # name → the id of its present job
        self._agents: dict[str, tuple[Agent, bool]] = {}  # agent, alive
        self._beats: dict[str, float] = {}  # on the clock that stands still while the machine sleeps (RELIABILITY 18)
        self._entries = 0
        self._paused: dict[str, QueuePause] = {}
        self._feeds: dict[str | None, ChangeFeed] = {None: ChangeFeed(), **{role: ChangeFeed() for role in self._roles}}
        self._lock = threading.RLock()

    root = ""  # it has no machine but its own process

    def roles(self) -> list[str]:
        return list(self._roles)

    # --- looking ---

    def changes(self, cursor: int | None, *, role: str | None = None, timeout_s: float = 0) -> Changes:
        return self._feed(role).since(cursor, timeout_s)

    def wake(self, role: str | None) -> None:
        self._feed(role).wake()

    def _feed(self, role: str | None) -> ChangeFeed:
        if role is not None:
            self._check_role(role)
        return self._feeds[role]

    def pause(self, role: str, paused: QueuePause) -> bool:
        self._check_role(role)
        with self._lock:
            return self._paused.setdefault(role, paused) is paused

    def resume(self, role: str) -> bool:
        self._check_role(role)
        with self._lock:
            was = self._paused.pop(role, None) is not None
        self._feeds[role].publish([], gap=was)
        return was

    def paused(self) -> Mapping[str, QueuePause]:
        with self._lock:
            return dict(self._paused)

    def find(self, job_id: str) -> JobView | None:
        with self._lock:
            job = self._jobs.get(ids.check_job_id(job_id))
            return None if job is None else self._view(job)

    def folder(self, view: JobView) -> str:
        return f"{view.place}/{view.job_id}"  # which is nowhere: it keeps no files

    def named(self, name: str) -> str | None:
        with self._lock:
            job_id = self._names.get(ids.check_job_name(name))
            return job_id if job_id in self._jobs else None

    def names(self) -> Mapping[str, str]:
        with self._lock:
            return {name: job_id for name, job_id in sorted(self._names.items()) if job_id in self._jobs}

    def _view(self, job: Job) -> JobView:
        now = job.lifecycle
        place = f"{places.in_progress(now.role)}/{job.owner}" if job.owner else places.destination(now.role, now.status)
        if job.waits:
            named = () if transitions.waits_for_person(now) else after.dependencies(job.prompt).all
            return JobView(lifecycle=now, place=places.WAITING, waits_for=named)
        return JobView(lifecycle=now, place=place)

    def list(
        self,
        *,
        roles: Collection[str] | None = None,
        statuses: Collection[Status] | None = None,
        limit: int | None = None,
    ) -> list[JobView]:
        with self._lock:
            found = [
                self._view(job)
                for _, job in sorted(self._jobs.items())
                if (roles is None or job.lifecycle.role in roles)
                and (statuses is None or job.lifecycle.status in statuses)
            ]
        return found[:limit]

    def count(self, *, roles: Collection[str] | None = None) -> Mapping[Status, int]:
        """By place, as the file store does: a job that was marked stale under its agent is in progress until it is
        collected."""
        answer = dict.fromkeys(Status, 0)
        with self._lock:
            for job in self._jobs.values():
                if roles is None or job.lifecycle.role in roles:
                    answer[Status.IN_PROGRESS if job.owner else job.lifecycle.status] += 1
        return answer

    def load(self, role: str | None) -> int:
        counts = self.count(roles=None if role is None else [role])
        return counts[Status.QUEUED] + counts[Status.IN_PROGRESS]

    def pending(self, role: str) -> int:
        with self._lock:
            counts = self.count(roles=[role])
            waiting = [job_id for job_id, job in self._jobs.items() if job.waits and job.lifecycle.role == role]
            stuck = sum(1 for job_id in waiting if self._stuck(job_id))
            stuck += sum(
                1
                for job in self._jobs.values()
                if job.owner and job.lifecycle.role == role and job.lifecycle.status is Status.STALE
            )
        return counts[Status.QUEUED] + counts[Status.IN_PROGRESS] - stuck

    def _stuck(self, job_id: str) -> bool:
        """Whether what it waits for, directly or not, needs somebody's hand before it can go on."""
        todo, seen = [job_id], set()
        while todo:
            job = self._jobs[todo.pop()]
            if job.waits and transitions.waits_for_person(job.lifecycle):
                return True
            if job.waits:
                todo += [name for name in after.dependencies(job.prompt).all if name not in seen]
                seen.update(todo)
            elif job.lifecycle.status is Status.STALE or (
                job.lifecycle.status is Status.FAILED and not job.lifecycle.terminal
            ):
                return True
        return False

    def _end_of(self, job_id: str) -> DependencyState:
        job = self._jobs.get(job_id)
        if job is None:
            return DependencyState.GONE
        if not job.lifecycle.terminal:
            return DependencyState.OPEN
        return DependencyState.SUCCEEDED if job.lifecycle.status is Status.SUCCEEDED else DependencyState.FAILED

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()

    def _check_role(self, role: str) -> None:
        if ids.check_role(role) not in self._roles:
            raise UnknownRole(f"no role {role}; there is {', '.join(self._roles)}")
