"""Gather from the store what `farro top` shows, and follow its changes. Everything here may block: it runs in threads.

Cheap with many jobs: queues are counted, not listed, and the list of jobs is read once, then follows the
change feed.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping

from farro.agents.service import InboxItem, list_inbox
from farro.config.settings import Settings
from farro.errors import FarroError
from farro.host.clock import Clock
from farro.jobs.states import FINISHED, Status
from farro.lazy_dataclass import dataclass, field
from farro.queue import alerts, jobs, queues, watch
from farro.queue.alerts import AlertReport
from farro.queue.jobs import JobQuery
from farro.queue.queues import WorkerLine
from farro.queue.watch import RunningJob
from farro.store.port import AgentView, Changes, JobView, QueueCounts, QueuePause, Store
from farro.swarm import service as swarms
from farro.swarm.service import SwarmView
from farro.tui import texts

PAGE = 200  # jobs listed at first; scrolling loads more
_RUNNING = 40
_KNOWN_PROMPTS = 5_000
_WAIT_S = 1.0  # for changes
_AGAIN_S = 1.0  # after the store did not answer


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    lanes: QueueCounts
    workers: dict[str, int]  # live slots of each role
    running: tuple[RunningJob, ...]
    running_total: int
    dead: tuple[AgentView, ...]
    ended: tuple[JobView, ...]
    paused: Mapping[str, QueuePause]  # paused queues


@dataclass(frozen=True, kw_only=True, slots=True)
class NeedsPerson:
    """Alerts, questions and dead agents: all of them need a person."""

    alerts: AlertReport
    inbox: tuple[InboxItem, ...]
    dead: tuple[AgentView, ...]


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects jobs; empty selects all. The text is searched in the visible row."""

    text: str = ""
    roles: tuple[str, ...] = ()
    statuses: tuple[Status, ...] = ()

    @classmethod
    def parse(cls, text: str, known_roles: Collection[str]) -> Filter:
        """Parse a filter: `failed`, `role:Runner`, `status:stale` and words; a bare role or status is enough."""
        roles, statuses, words = [], [], []
        by_name = {role.lower(): role for role in known_roles}
        for word in text.split():
            bare = word.removeprefix("role:").removeprefix("status:").lower()
            status = _STATUS_WORDS.get(bare)
            if status is not None:
                statuses.append(status)
            elif bare in by_name:
                roles.append(by_name[bare])
            else:
                words.append(word)
        return cls(" ".join(words), tuple(dict.fromkeys(roles)), tuple(dict.fromkeys(statuses)))

    def takes(self, view: JobView) -> bool:
        return (not self.roles or view.lifecycle.role in self.roles) and (
            not self.statuses or view.status in self.statuses
        )


_STATUS_WORDS = {
    **{str(status): status for status in Status},
    **{word: status for status, word in texts.WORDS.items()},
    "in-progress": Status.IN_PROGRESS,
}


@dataclass
class LiveJobs:
    """The newest jobs that a filter selects, updated from the change feed.

    Invariant: `views` has at most `limit` jobs, the last changed first; `more`: there may be others.
    """

    store: Store
    wanted: Filter = field(default_factory=Filter)
    limit: int = PAGE
    views: OrderedDict[str, JobView] = field(default_factory=OrderedDict)
    more: bool = False
    loaded: bool = False

    def load(self) -> None:
        asked = JobQuery(roles=self.wanted.roles, statuses=self.wanted.statuses, last=self.limit)
        found = jobs.ls(self.store, asked)
        self.views = OrderedDict((view.job_id, view) for view in found)
        self.more, self.loaded = len(found) >= self.limit, True

    def heard(self, job_ids: Collection[str]) -> None:
        """Read the changed jobs; the last of them is the newest."""
        for job_id in list(dict.fromkeys(job_ids))[-self.limit :]:
            view = self.store.find(job_id)
            self.views.pop(job_id, None)
            if view is not None and self.wanted.takes(view):
                self.views[job_id] = view
                self.views.move_to_end(job_id, last=False)
        while len(self.views) > self.limit:
            self.views.popitem()
            self.more = True


class Queries:
    """Runs the queries of one screen. Called by one thread at a time."""

    def __init__(self, store: Store, settings: Settings, clock: Clock) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock
        self._about: OrderedDict[str, str] = OrderedDict()
        self.ended = LiveJobs(store, wanted=Filter(statuses=FINISHED), limit=20)

    def overview(self) -> Overview:
        agents, now = self.store.agents(), self.clock.now()
        working = watch.held_jobs(agents)
        running = [watch.running_job(self.store, agent, job_id, now) for agent, job_id in working[:_RUNNING]]
        alive: dict[str, int] = {}
        for agent in agents:
            if agent.alive and agent.role is not None:
                alive[agent.role] = alive.get(agent.role, 0) + 1
        return Overview(
            lanes=self.store.queue_counts(),
            workers=alive,
            running=tuple(job for job in running if job is not None),
            running_total=len(working),
            dead=tuple(agent for agent in agents if not agent.alive),
            ended=tuple(self.ended.views.values()),
            paused=self.store.paused(),
        )

    def abouts(self, told: Overview) -> dict[str, str]:
        """Return the titles of the jobs of an overview, by id."""
        found = {view.job_id: self.about(view) for view in told.ended}
        for job in told.running:
            known = self._about.get(job.job_id)
            view = self.store.find(job.job_id) if known is None else None
            found[job.job_id] = known if known is not None else "" if view is None else self.about(view)
        return found

    def about(self, view: JobView) -> str:
        """Return the title of a job. A prompt never changes, so it is read once."""
        known = self._about.get(view.job_id)
        if known is not None:
            return known
        prompt = self.store.prompts([view]).get(view.job_id)
        if not prompt:
            return ""  # the job moved: the next query finds it
        self._about[view.job_id] = told = texts.about(prompt)
        while len(self._about) > _KNOWN_PROMPTS:
            self._about.popitem(last=False)
        return told

    def workers(self) -> list[WorkerLine]:
        return queues.listed(self.store.agents(), everyone=True)

    def swarms(self) -> list[SwarmView]:
        return swarms.swarms(swarms.folder(self.store.root), clock=self.clock)

    def attention(self) -> NeedsPerson:
        told = alerts.alerts(self.store, self.settings, now=self.clock.now())
        try:
            waiting = tuple(list_inbox(self.store))
        except FarroError:  # a job moved meanwhile: the next query has it
            waiting = ()
        dead = tuple(agent for agent in self.store.agents() if not agent.alive)
        return NeedsPerson(alerts=told, inbox=waiting, dead=dead)


class Feed:
    """Calls `heard` on the event loop with the changes, or with the reason why they are unknown."""

    def __init__(self, store: Store, heard: Callable[[Changes | Exception], None]) -> None:
        self._store = store
        self._heard = heard
        self._over = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="farro-top-feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._store.wake(None)

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        cursor: int | None = None
        while not self._over.is_set():
            try:
                told = self._store.changes(cursor, timeout_s=0 if cursor is None else _WAIT_S)
            except (FarroError, OSError) as error:
                self._tell(error)
                self._over.wait(_AGAIN_S)
                continue
            if told.items or told.gap or cursor is None:
                self._tell(told)
            if told.gap:
                self._over.wait(_AGAIN_S)  # a polling feed reports this each time
            cursor = told.cursor

    def _tell(self, what: Changes | Exception) -> None:
        if not self._over.is_set():
            self._loop.call_soon_threadsafe(self._heard, what)
