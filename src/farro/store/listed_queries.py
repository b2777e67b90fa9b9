"""Answer the queries about many jobs from `list` and `count`, for stores that read a job without opening a file.

A store inherits from `ListedQueries` and overrides what it can do better: redis and memory do, and so can a store of
your own (docs/adapters.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from farro.errors import Refused
from farro.host.clock import SystemClock
from farro.jobs import places
from farro.jobs.states import Status
from farro.store.audit_events import AuditEvents, RootAuditEvents
from farro.store.leadership import FileLeadership, Leadership
from farro.store.port import Archived, DeathWatch, JobAt, JobEntry, JobView, QueueCounts, Store


class ListedQueries(Store, Protocol):
    """The part of the Store port that follows from the rest of it."""

    @property
    def live_folders(self) -> bool:
        return False

    def check_ready(self) -> None:
        """Accept every daemon."""
        return

    def watch_deaths(self, *, stale: bool = False) -> DeathWatch | None:
        return None

    def entries(
        self,
        *,
        roles: Collection[str] | None = None,
        statuses: Collection[Status] | None = None,
        archived: bool = True,
    ) -> Iterator[JobEntry]:
        for view in self.list(roles=roles, statuses=statuses):
            shared = view.place == places.WAITING or view.status is Status.STALE
            yield JobEntry(
                job_id=view.job_id,
                place=view.place,
                role=None if shared else view.lifecycle.role,
                status=view.status,
                view=view,
            )

    def newest(
        self, *, roles: Collection[str] | None = None, statuses: Collection[Status] | None = None
    ) -> Iterator[JobEntry]:
        found = self.entries(roles=roles, statuses=statuses)
        yield from sorted(found, key=lambda entry: (entry.changed_at_s(), entry.job_id), reverse=True)

    def archive(
        self, jobs: Sequence[JobAt], *, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> Archived:
        raise Refused("this store keeps no folders that could be archived: use `farro prune`")

    def export(
        self, jobs: Sequence[JobAt], to: str, *, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> int:
        raise Refused("this store keeps no folders that could be archived: use `farro prune`")

    def ids(self, prefix: str) -> Iterable[str]:
        return (view.job_id for view in self.list())

    def waiting(self) -> Sequence[JobEntry]:
        return [entry for entry in self.entries(statuses={Status.QUEUED}) if entry.place == places.WAITING]

    def ahead(self, view: JobView) -> int:
        own = (view.lifecycle.enqueued_at, view.job_id)
        others = self.list(roles=[view.lifecycle.role], statuses=[Status.QUEUED])
        return sum(other.place == view.place and (other.lifecycle.enqueued_at, other.job_id) < own for other in others)

    def queue_counts(self) -> QueueCounts:
        counted = {role: dict(self.count(roles=[role])) for role in self.roles()}
        return QueueCounts(roles=counted, stale=sum(of.pop(Status.STALE, 0) for of in counted.values()))

    def audit_events(self) -> AuditEvents:
        """Read the audit log of the root."""
        return RootAuditEvents(self.root)

    def entry_order(self, jobs: Sequence[JobView]) -> Mapping[str, int]:
        return {job.job_id: 0 for job in jobs}  # the ids decide

    def leadership(self) -> Leadership:
        """Elect the manager among the processes of the root."""
        return FileLeadership(root=self.root, clock=SystemClock())

    def size_bytes(self, jobs: Sequence[JobAt]) -> int | None:
        return None
