"""Count the jobs of each role by status, for callers that ask again and again. Counts, never lists.

In the file store, a folder whose link count gives the number of subfolders costs one stat call. On filesystems without
that (btrfs; ext4 beyond 65,000), a folder is read again only when it has changed. Other stores keep counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from farro.host import fs, trees
from farro.host.clock import Clock
from farro.jobs import places
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass
from farro.queue import tree
from farro.store.port import AgentView, Store

_TICK_S = 1.0  # longer than the time resolution of any filesystem


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueCounts:
    """Jobs of each role by status, and jobs that are in no role's queue."""

    roles: Mapping[str, Mapping[Status, int]]
    waiting: int = 0  # waiting for other jobs, or for a person
    stale: int = 0
    passing: int = 0  # held by a watchdog, a manager or an operator, or leaving a worker
    quarantined: int = 0

    def total(self, status: Status) -> int:
        return sum(counts.get(status, 0) for counts in self.roles.values())


class QueueCounter:
    """Count repeatedly. Invariant: a cached count was true at the folder's modification time it is stored with."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._kept: dict[str, tuple[int, int]] = {}  # place → modification time, count

    def count(self, agents: Sequence[AgentView]) -> QueueCounts:
        """Count all jobs, finished ones included."""
        if not tree.in_folders(self._store):
            counted = {role: dict(self._store.count(roles=[role])) for role in self._store.roles()}
            return QueueCounts(roles=counted, stale=sum(of.pop(Status.STALE, 0) for of in counted.values()))
        found = self.unfinished(agents)
        roles = {
            role: {**{status: self._in(places.completed(role, status)) for status in tree.FINISHED}, **counts}
            for role, counts in found.roles.items()
        }
        return replace(found, roles=roles, quarantined=self._in(places.QUARANTINE))

    def unfinished(self, agents: Sequence[AgentView]) -> QueueCounts:
        """Count the jobs that have not ended. File store only."""
        working: Counter[str | None] = Counter()
        for agent in agents:
            working[agent.role] += len(agent.jobs)
        return QueueCounts(
            roles={
                role: {Status.QUEUED: self._in(places.incoming(role)), Status.IN_PROGRESS: working[role]}
                for role in self._store.roles()
            },
            waiting=self._in(places.WAITING),
            stale=self._in(places.STALE),
            passing=working[None] + self._in(places.OUTBOX),
        )

    def _in(self, place: str) -> int:
        path = f"{self._store.root}/{place}"
        try:
            changed_ns = fs.lstat(path).st_mtime_ns
        except FileNotFoundError:
            return 0
        kept = self._kept.get(place)
        if kept is not None and kept[0] == changed_ns:
            return kept[1]
        found = trees.count_subdirectories(path)
        if self._clock.now().timestamp() - changed_ns / 1e9 > _TICK_S:  # else more jobs may arrive in the same tick
            self._kept[place] = (changed_ns, found)
        return found
