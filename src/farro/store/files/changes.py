"""Sources of what the file store reports: moves of jobs and deaths of agents, by inotify, or polling without it."""

from __future__ import annotations

import contextlib
import errno
import time

from farro.errors import FarroError
from farro.host import fs, inotify, leases
from farro.jobs import ids, places
from farro.jobs.states import Status
from farro.store.feed import ChangeSource
from farro.store.files.agents import LEASE
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


# --- deaths of agents ---


_PAUSE_S = 0.001
_TRIES = 250  # a quarter of a second: a lock that is held longer has another holder, such as another watchdog


class FilesDeathWatch:
    """Port: DeathWatch. The kernel closes a dead process's lease, and inotify reports it.

    Only the agent itself opens its lease for writing, so a probe that opens it for reading causes no event, and
    recovery does not wake itself. The kernel reports the close some moments before it frees the lock: `read` waits
    for the lock, for a bounded time. Events are hints and may be lost; recovery also runs at intervals.
    [tests/crash/test_deaths.py]
    """

    def __init__(self, context: FilesContext, *, stale: bool) -> None:
        self._context = context
        self._inotify = inotify.Inotify()
        self._homes: dict[int, str] = {}
        self._leases: dict[int, str] = {}
        self._watched: set[str] = set()
        self._stale = self._inotify.watch(context.path(places.STALE), inotify.MOVED_TO) if stale else None
        for home in (context.holds, *map(context.in_progress, context.roles())):
            with contextlib.suppress(FileNotFoundError):
                self._homes[self._inotify.watch(home, inotify.MOVED_TO)] = home
        for home in self._homes.values():
            self._watch_agents(home)

    def fileno(self) -> int:
        return self._inotify.fileno()

    def read(self) -> bool:
        found = False
        for event in self._inotify.read(0):
            if event.overflow:
                found = True
                for home in self._homes.values():
                    self._watch_agents(home)
            elif event.wd == self._stale:
                found = True
            elif event.wd in self._homes:
                found |= self._watch_agents(self._homes[event.wd])
            elif event.mask & inotify.IGNORED:
                self._watched.discard(self._leases.pop(event.wd, ""))
            elif event.wd in self._leases:
                found |= self._is_free(self._leases[event.wd])
        return found

    def close(self) -> None:
        self._inotify.close()

    def _watch_agents(self, home: str) -> bool:
        """Watch the agents of `home` that are not watched yet. Return whether one of them is already dead."""
        dead = False
        for name in fs.subdirectories(home):
            lease = f"{home}/{name}/{LEASE}"
            if lease in self._watched:
                continue
            with contextlib.suppress(OSError):  # it left meanwhile, or no watch is left: recovery polls
                self._leases[self._inotify.watch(lease, inotify.CLOSE_WRITE)] = lease
                self._watched.add(lease)
                dead |= not leases.is_held(lease)
        return dead

    def _is_free(self, path: str) -> bool:
        """Wait until the lock of a closed lease is free; False if its agent left, or another process holds it."""
        for _ in range(_TRIES):
            try:
                lease = leases.take(path)
            except FileNotFoundError:
                return False
            if lease is not None:
                lease.drop()
                return True
            self._context.clock.sleep(_PAUSE_S)
        return False


def watch_deaths(context: FilesContext, *, stale: bool) -> FilesDeathWatch | None:
    """Return a watch; None where there is no inotify, or no instance or watch of it is left."""
    if not inotify.available():
        return None
    try:
        return FilesDeathWatch(context, stale=stale)
    except (OSError, FarroError) as error:
        context.log("warning", "deaths are found by polling only", {"why": str(error)})
        return None
