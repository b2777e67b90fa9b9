"""Describe a route as data: method, path, the dataclasses that it takes and returns, and its handler; hold the state
that all handlers share.

The application and the OpenAPI document are both built from these descriptions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

from farro.config.settings import Settings
from farro.doctor.report import Examination
from farro.documents import Document
from farro.host.clock import Clock
from farro.lazy_dataclass import dataclass, field
from farro.log.structured import Log
from farro.queue import find_job
from farro.queue.admission import Gate
from farro.queue.agent_rules import contract_of
from farro.queue.catalog.catalog import Catalog
from farro.queue.plan_check import PlanContext
from farro.queue.submit import SubmitPolicy
from farro.queue.time_travel import QueueHistory
from farro.store.ledger import Ledger
from farro.store.library import Library
from farro.store.port import Store

Method = Literal["GET", "POST"]


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

    @property
    def policy(self) -> SubmitPolicy:
        """The rules for what a request submits."""
        return SubmitPolicy(gate=self.gate(False), contract=contract_of(self.root, self.settings), clock=self.clock)

    def resolve_job(self, text: str, *, shortest: int = 1) -> str:
        """Return the id of the job that `text` names: an id, a job's name, or the beginning of an id.

        Once the catalog is loaded, the ids come from memory instead of the store.
        """
        known = self.catalog.ids if self.catalog.ready else None
        return find_job.resolve(self.store, text, shortest=shortest, known=known)


@dataclass(frozen=True, slots=True)
class NoFields:
    """A query or body without members."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiRequest:
    """A request whose query and body were parsed and checked."""

    path: Mapping[str, str]
    query: Any
    body: Any
    document: Document | None = None  # the body with the positions of its members


@dataclass(frozen=True, kw_only=True, slots=True)
class RawResponse:
    """A response that is not JSON."""

    data: bytes
    media_type: str
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200


Handler = Callable[[WebState, ApiRequest], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """A route. Its handler runs in a thread and returns data to encode as JSON, or a RawResponse."""

    method: Method
    path: str  # with {names}; a name that ends in :path matches slashes
    handler: Handler
    summary: str
    response: Any = None  # the dataclass of the response; None: bytes of `media_type`
    query: type = NoFields
    body: type | None = None
    status: int = 200
    media_type: str = "application/json"
    cache_s: float = 0.0  # requests within this time share one response, which is computed once
    tag: str
    changes_nothing: bool = False  # a POST that a read-only server accepts
    slow: bool = False  # it waits for other processes: run it in a thread pool of its own


class Routes:
    """The endpoints of one module: `get` and `post` are decorators of their handlers."""

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self.endpoints: list[Endpoint] = []

    def get(self, path: str, summary: str, response: Any = None, **more: Any) -> Callable[[Handler], Handler]:
        return self._endpoint("GET", path, summary=summary, response=response, **more)

    def post(self, path: str, summary: str, response: Any = None, **more: Any) -> Callable[[Handler], Handler]:
        return self._endpoint("POST", path, summary=summary, response=response, **more)

    def _endpoint(self, method: Method, path: str, **more: Any) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            self.endpoints.append(Endpoint(method=method, path=path, handler=handler, **{"tag": self._tag, **more}))
            return handler

        return add
