"""What the routes work with: the store, the catalog of its jobs, and the parts that only the application can choose.

How a request becomes a call lives in `endpoints`; which routes there are, in `routes`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from farro.config.settings import Settings
from farro.doctor.report import Examination
from farro.host.clock import Clock
from farro.lazy_dataclass import dataclass, field
from farro.log.structured import Log
from farro.queue import find_job
from farro.queue.admission import Gate
from farro.queue.agent_rules import Contract
from farro.queue.catalog.catalog import Catalog
from farro.queue.plan_check import PlanContext
from farro.queue.time_travel import QueueHistory
from farro.store.ledger import Ledger
from farro.store.library import Library
from farro.store.port import Store


@dataclass(frozen=True, kw_only=True)
class House:
    store: Store
    settings: Settings
    catalog: Catalog
    clock: Clock
    ledger: Ledger
    log: Log
    version: str
    person: str  # who acts here, as an agent's name: for hops[]
    user: str  # … and as the caps know them
    gate: Callable[[bool], Gate]  # force → what keeps the caps
    contract: Callable[[], Contract]
    library: Callable[[], Library]  # the plans that are kept
    ground: Callable[[], PlanContext]  # what plans are checked against
    examine: Callable[[], Examination]  # doctor
    orchestrate: Callable[[], None]  # sees to it that an orchestrator runs
    settings_of: Callable[[str], Settings]  # of a root: a job's snapshot is one
    lock: Callable[[], Mapping[str, Any]]  # what policy.lock.json would say
    ask_provider: Callable[[str | None, str | None, str], Mapping[str, Any]]  # role, provider, prompt
    past: QueueHistory
    store_name: str = "files"
    started_at: str = ""
    read_only: bool = False
    stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def root(self) -> str:
        return self.store.root

    def meant(self, text: str, *, shortest: int = 1) -> str:
        """The id of the job that is named; as far as a beginning tells it, from memory."""
        known = self.catalog.ids if self.catalog.ready else None
        return find_job.resolve(self.store, self.root, text, shortest=shortest, known=known)


@dataclass(frozen=True, slots=True)
class Access:
    """Who may come in. `hosts` are names beside loopback and addresses; `open` tells whether it listens beyond it."""

    token: str
    key: bytes  # signs sessions
    use_code: Callable[[str], bool]  # whether this one-time code is good; it is used up then
    hosts: frozenset[str] = frozenset()
    beyond: bool = False  # it listens beyond loopback
    secure: bool = False  # the cookie is for https only
    now_s: Callable[[], float] = field(default=lambda: 0.0)
