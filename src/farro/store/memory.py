"""The memory store: the Store port in dictionaries, for tests and experiments. Nothing outlives the process.

It applies the same rules as the other stores and passes the same contract suite; it has no crashes to survive.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager

from farro.host.clock import Clock
from farro.jobs.retry import Uniform
from farro.jobs.states import Status
from farro.log.audit import Audit, no_audit
from farro.store.accounts import StoredAccounts
from farro.store.feed import ChangeFeed
from farro.store.port import Change, QueuePause, StorePolicy
from farro.store.transactional import StoredAgent, StoredJob, TransactionalStore


class MemoryState:
    """The state in dictionaries. It undoes nothing: the rules raise before they change anything."""

    def __init__(self, feeds: Mapping[str | None, ChangeFeed]) -> None:
        self.all_jobs: dict[str, StoredJob] = {}
        self.all_agents: dict[str, StoredAgent] = {}
        self._feeds = feeds
        self._names: dict[str, str] = {}
        self._paused: dict[str, QueuePause] = {}
        self._number = 0

    def job(self, job_id: str) -> StoredJob | None:
        return self.all_jobs.get(job_id)

    def jobs(
        self,
        *,
        roles: Collection[str] | None = None,
        statuses: Collection[Status] | None = None,
        waits: bool | None = None,
        owner: str | None = None,
    ) -> list[StoredJob]:
        return [
            job
            for _, job in sorted(self.all_jobs.items())
            if (roles is None or job.lifecycle.role in roles)
            and (statuses is None or job.lifecycle.status in statuses)
            and waits in (None, job.waits)
            and owner in (None, job.owner)
        ]

    def queue(self, role: str) -> list[StoredJob]:
        found = self.jobs(roles=[role], statuses=[Status.QUEUED], waits=False)
        return sorted(found, key=lambda job: job.entered)

    def save(self, job: StoredJob) -> None:
        self.all_jobs[job.lifecycle.job_id] = job

    def delete(self, job_id: str) -> None:
        del self.all_jobs[job_id]
        self._names = {name: named for name, named in self._names.items() if named != job_id}

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def agents(self) -> Mapping[str, StoredAgent]:
        return self.all_agents

    def save_agent(self, agent: StoredAgent) -> None:
        self.all_agents[agent.agent.id] = agent

    def delete_agent(self, agent_id: str) -> None:
        del self.all_agents[agent_id]

    def names(self) -> Mapping[str, str]:
        return dict(sorted(self._names.items()))

    def set_name(self, name: str, job_id: str) -> None:
        self._names[name] = job_id

    def paused(self) -> Mapping[str, QueuePause]:
        return self._paused

    def set_paused(self, role: str, paused: QueuePause | None) -> None:
        self._paused.pop(role, None)
        if paused is not None:
            self._paused[role] = paused

    def publish(self, change: Change, *, enters: bool) -> None:
        for role in (None, change.role) if enters else (None,):
            if role in self._feeds:
                self._feeds[role].publish([change])

    def publish_gap(self, role: str) -> None:
        if role in self._feeds:
            self._feeds[role].publish([], gap=True)


class MemoryAccounts(StoredAccounts):
    """The Accounts port over a dictionary."""

    def __init__(self, clock: Clock, *, uniform: Uniform, boot_id: str = "memory") -> None:
        self.clock = clock
        self.uniform = uniform
        self.boot_id = boot_id
        self.records: dict[str, str] = {}

    def load(self) -> Mapping[str, str]:
        return dict(self.records)

    def swap(self, account: str, before: str | None, after: str | None) -> bool:
        if self.records.get(account) != before:
            return False
        self.records.pop(account, None)
        if after is not None:
            self.records[account] = after
        return True


class MemoryStore(TransactionalStore):
    """The Store port over dictionaries."""

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
        super().__init__(roles=roles, policy=policy, clock=clock, random_bits=random_bits, uniform=uniform, audit=audit)
        self.state = MemoryState(self.feeds)
        self._accounts = MemoryAccounts(clock, uniform=uniform)

    def accounts(self) -> MemoryAccounts:
        return self._accounts

    @property
    def root(self) -> str:
        return ""  # there is no folder

    def begin(self) -> AbstractContextManager[MemoryState]:
        return contextlib.nullcontext(self.state)
