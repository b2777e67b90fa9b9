"""Where the file store's changes come from: inotify on the folders, or polling where there is none.

What a change means to a worker lives in queue.
"""

from __future__ import annotations

import errno
import time

from farro.host import fs, inotify
from farro.jobs import ids, places
from farro.jobs.states import Status
from farro.store.feed import Source
from farro.store.files.context import Ground
from farro.store.files.pause import RESUMED
from farro.store.port import Change

POLL_S = 0.25
_NONE_LEFT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ENOMEM})


class QueueSource:
    """Entries into one role's queue: what a worker waits for. One watch, however many agents come and go."""

    def __init__(self, ground: Ground, role: str) -> None:
        self._role = role
        self._inotify = inotify.Inotify()
        self._inotify.watch(ground.incoming(role), inotify.MOVED_TO)

    def read(self, timeout_s: float) -> tuple[list[Change], bool]:
        events = self._inotify.read(timeout_s)
        changes = [
            Change(job_id=event.name, role=self._role, status=Status.QUEUED)
            for event in events
            if ids.is_job_id(event.name)
        ]
        return changes, any(event.mask & inotify.Q_OVERFLOW or event.name == RESUMED for event in events)

    def wake(self) -> None:
        self._inotify.wake()

    def close(self) -> None:
        self._inotify.close()


class TreeSource:
    """Every move of every job: for people who look on. Agents' folders are watched as they appear."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._inotify = inotify.Inotify()
        self._places: dict[int, tuple[str | None, Status]] = {}
        self._parents: dict[int, str] = {}
        for role in ground.roles():
            self._add(places.incoming(role), role, Status.QUEUED)
            for status in (Status.SUCCEEDED, Status.FAILED, Status.KILLED):
                self._add(places.completed(role, status), role, status)
            wd = self._inotify.watch(ground.in_progress(role), inotify.MOVED_TO)
            self._parents[wd] = role
            self._add_agents(role)
        self._add(places.WAITING, None, Status.QUEUED)
        self._add(places.STALE, None, Status.STALE)
        self._add(places.QUARANTINE, None, Status.FAILED)

    def _add(self, place: str, role: str | None, status: Status) -> None:
        try:
            wd = self._inotify.watch(self._ground.path(place), inotify.MOVED_TO)
        except FileNotFoundError:
            return
        self._places[wd] = (role, status)

    def _add_agents(self, role: str) -> list[Change]:
        """Watch every agent's folder; answers the jobs that are there already (they came before the watch)."""
        found = []
        for agent in fs.subdirectories(self._ground.in_progress(role)):
            place = f"{places.in_progress(role)}/{agent}"
            self._add(place, role, Status.IN_PROGRESS)
            for name in fs.subdirectories(self._ground.path(place)):
                if ids.is_job_id(name):
                    found.append(Change(job_id=name, role=role, status=Status.IN_PROGRESS))
        return found

    def read(self, timeout_s: float) -> tuple[list[Change], bool]:
        changes: list[Change] = []
        gap = False
        for event in self._inotify.read(timeout_s):
            if event.mask & inotify.Q_OVERFLOW:
                gap = True
            elif event.wd in self._parents:
                changes += self._add_agents(self._parents[event.wd])
            elif event.mask & inotify.IGNORED:
                self._places.pop(event.wd, None)
            elif event.wd in self._places and ids.is_job_id(event.name):
                role, status = self._places[event.wd]
                changes.append(Change(job_id=event.name, role=role, status=status))
        return changes, gap

    def wake(self) -> None:
        self._inotify.wake()

    def close(self) -> None:
        self._inotify.close()


class PollingSource:
    """Where there is no inotify, or none left: every quarter of a second "look again"."""

    def read(self, timeout_s: float) -> tuple[list[Change], bool]:
        if timeout_s <= 0:
            return [], False
        time.sleep(min(timeout_s, POLL_S))
        return [], True

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass


def source(ground: Ground, role: str | None) -> Source:
    if inotify.available():
        try:
            return TreeSource(ground) if role is None else QueueSource(ground, role)
        except OSError as error:
            if error.errno not in _NONE_LEFT:
                raise
            # Editors and containers take many, and a user has 128: without this no worker of his could start.
            # [test_where_no_inotify_is_left_workers_work_all_the_same]
            ground.log("warning", "changes are polled for, four times a second", {"why": str(error.strerror)})
    return PollingSource()
