"""Report the death of an agent at once: the kernel closes a dead process's lease, and inotify reports it.

Only the agent itself opens its lease for writing, so a probe that opens it for reading causes no event, and recovery
does not wake itself. The kernel reports the close some moments before it frees the lock: `read` waits for the lock, for
a bounded time. Events are hints and may be lost; recovery also runs at intervals. [tests/crash/test_deaths.py]
"""

from __future__ import annotations

import contextlib

from farro.errors import FarroError
from farro.host import fs, inotify, leases
from farro.jobs import places
from farro.store.files.agents import LEASE
from farro.store.files.context import FilesContext

_PAUSE_S = 0.001
_TRIES = 250  # a quarter of a second: a lock that is held longer has another holder, such as another watchdog


class FilesDeathWatch:
    """Port: DeathWatch. One watch per folder of agents and per agent."""

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


def watch(context: FilesContext, *, stale: bool) -> FilesDeathWatch | None:
    """Return a watch; None where there is no inotify, or no instance or watch of it is left."""
    if not inotify.available():
        return None
    try:
        return FilesDeathWatch(context, stale=stale)
    except (OSError, FarroError) as error:
        context.log("warning", "deaths are found by polling only", {"why": str(error)})
        return None
