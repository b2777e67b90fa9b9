"""Hold what every request handler needs: the store, its catalog, and the parts that the application chooses."""

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
class WebState:
    """The state that all requests of one server share."""

    store: Store
    settings: Settings
    catalog: Catalog
    clock: Clock
    ledger: Ledger
    log: Log
    version: str
    person: str  # the actor's agent name, written into hops[]
    user: str  # the actor's user name, which the caps count
    gate: Callable[[bool], Gate]  # takes `force`
    contract: Callable[[], Contract]
    library: Callable[[], Library]  # the stored plans
    plan_context: Callable[[], PlanContext]  # what plans are checked against
    examine: Callable[[], Examination]  # runs the checks of `farro doctor`
    ensure_orchestrator: Callable[[], None]  # starts an orchestrator unless one runs
    settings_of: Callable[[str], Settings]  # reads the settings of a root; a job's snapshot is such a root
    policy_lock: Callable[[], Mapping[str, Any]]  # the current content for policy.lock.json
    test_provider: Callable[[str | None, str | None, str], Mapping[str, Any]]  # takes role, provider, prompt
    queue_history: QueueHistory
    store_name: str = "files"
    started_at: str = ""
    read_only: bool = False
    stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def root(self) -> str:
        return self.store.root

    def resolve_job(self, text: str, *, shortest: int = 1) -> str:
        """Return the id of the job that `text` names: an id, a job's name, or the beginning of an id.

        Once the catalog is loaded, the ids come from memory instead of the store.
        """
        known = self.catalog.ids if self.catalog.ready else None
        return find_job.resolve(self.store, self.root, text, shortest=shortest, known=known)
