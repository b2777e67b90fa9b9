"""Sources of the file store's changes: inotify on the folders, or polling where there is none."""

from __future__ import annotations

import errno
import time

from farro.host import fs, inotify
from farro.jobs import ids, places
from farro.jobs.states import Status
from farro.store.feed import ChangeSource
from farro.store.files.context import FilesContext
from farro.store.files.pause import RESUMED
from farro.store.port import Change

POLL_S = 0.25
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ENOMEM})


class QueueSource:
    """Report entries into one role's queue, which is what a worker waits for. Needs one watch for any number of
    agents."""

    def __init__(self, context: FilesContext, role: str) -> None:
        self._role = role
        self._inotify = inotify.Inotify()
        self._inotify.watch(context.incoming(role), inotify.MOVED_TO)

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
    """Report every move of every job, for displays. Agents' folders are watched as they appear."""

    def __init__(self, context: FilesContext) -> None:
        self._context = context
        self._inotify = inotify.Inotify()
        self._places: dict[int, tuple[str | None, Status]] = {}
        self._parents: dict[int, str] = {}
        for role in context.roles():
            self._add(places.incoming(role), role, Status.QUEUED)
            for status in (Status.SUCCEEDED, Status.FAILED, Status.KILLED):
                self._add(places.completed(role, status), role, status)
            wd = self._inotify.watch(context.in_progress(role), inotify.MOVED_TO)
            self._parents[wd] = role
            self._add_agents(role)
        self._add(places.WAITING, None, Status.QUEUED)
        self._add(places.STALE, None, Status.STALE)
        self._add(places.QUARANTINE, None, Status.FAILED)

    def _add(self, place: str, role: str | None, status: Status) -> None:
        try:
            wd = self._inotify.watch(self._context.path(place), inotify.MOVED_TO)
        except FileNotFoundError:
            return
        self._places[wd] = (role, status)

    def _add_agents(self, role: str) -> list[Change]:
        """Watch every agent's folder. Returns the jobs that arrived before the watch."""
        found = []
        for agent in fs.subdirectories(self._context.in_progress(role)):
            place = f"{places.in_progress(role)}/{agent}"
            self._add(place, role, Status.IN_PROGRESS)
            for name in fs.subdirectories(self._context.path(place)):
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
    """Report a gap every quarter of a second, where there is no inotify or no instance left."""

    def read(self, timeout_s: float) -> tuple[list[Change], bool]:
        if timeout_s <= 0:
            return [], False
        time.sleep(min(timeout_s, POLL_S))
        return [], True

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass


def source(context: FilesContext, role: str | None) -> ChangeSource:
    if inotify.available():
        try:
            return TreeSource(context) if role is None else QueueSource(context, role)
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            # A user has 128 inotify instances, and editors and containers take many of them. Without this fallback no
            # worker of that user could start. [test_workers_poll_when_no_inotify_instance_is_left]
            context.log("warning", "polling for changes four times a second", {"why": str(error.strerror)})
    return PollingSource()
