"""Count the jobs of each role by status, for callers that ask again and again. Counts, never lists.

A folder whose link count gives the number of subfolders costs one stat call. On filesystems without that (btrfs; ext4
beyond 65,000), a folder is read again only when it has changed.
"""

from __future__ import annotations

import contextlib

from farro.host import fs, trees
from farro.jobs import places
from farro.jobs.states import FINISHED, Status
from farro.store.files.context import FilesContext
from farro.store.port import QueueCounts

_TICK_S = 1.0  # longer than the time resolution of any filesystem


class FolderCounter:
    """Count repeatedly. Invariant: a cached count was true at the folder's modification time it is stored with."""

    def __init__(self, context: FilesContext) -> None:
        self._context = context
        self._kept: dict[str, tuple[int, int]] = {}  # place → modification time, count

    def count(self) -> QueueCounts:
        """Count all jobs, finished ones included."""
        roles = self._context.roles()
        return QueueCounts(
            roles={
                role: {
                    Status.QUEUED: self._in(places.incoming(role)),
                    Status.IN_PROGRESS: self._below(places.in_progress(role)),
                    **{status: self._in(places.completed(role, status)) for status in FINISHED},
                }
                for role in roles
            },
            waiting=self._in(places.WAITING),
            stale=self._in(places.STALE),
            passing=self._below("jobs/.held") + self._in(places.OUTBOX),
            quarantined=self._in(places.QUARANTINE),
        )

    def _below(self, place: str) -> int:
        """Count the jobs that the agents of this place hold. Not cached: agents come and go."""
        found = 0
        for agent in fs.subdirectories(self._context.path(place)):
            with contextlib.suppress(FileNotFoundError):  # the agent has left
                found += trees.count_subdirectories(self._context.path(place, agent))
        return found

    def _in(self, place: str) -> int:
        path = self._context.path(place)
        try:
            changed_ns = fs.lstat(path).st_mtime_ns
            kept = self._kept.get(place)
            if kept is not None and kept[0] == changed_ns:
                return kept[1]
            found = trees.count_subdirectories(path)
        except FileNotFoundError:
            return 0
        if self._context.clock.now().timestamp() - changed_ns / 1e9 > _TICK_S:  # else a job may come in the same tick
            self._kept[place] = (changed_ns, found)
        return found
