"""The types of the model gateway: what a caller gives to it for a run of a program, and what it gets back.

- The program holds a token of its run, never the key. After `close` the token is refused.
- Each request to a model is reserved before it is forwarded and settled once after it, also when the stream is cut or
  the program goes away: with the tokens that the wire tells, else with none, so that the reservation counts.
- When a budget, a limit or a refused key ends the run, the program gets the answer that makes it stop at once, and
  nothing more is forwarded.
- `reserve`, `settle` and `keep` are called from threads of the gateway, at most one at a time for each request.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from decimal import Decimal
from types import TracebackType
from typing import Literal, Protocol

from farro.agents.providers.port import ProviderTrouble, Usage
from farro.errors import BudgetExceeded
from farro.lazy_dataclass import dataclass, field
from farro.store.ledger import CallEnd

DialectName = Literal["anthropic", "responses", "chat", "gemini", "code_assist"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Upstream:
    """The service to which the requests of a run are forwarded, and what admits the run there."""

    base_url: str | None = None  # None: the public service of the dialect that the program speaks
    key: str | None = field(default=None, repr=False)
    login: str | None = field(default=None, repr=False)  # an OAuth token, sent instead of the dummy of the program
    passes_login: bool = False  # the program's own login goes upstream as it is; the token is in `base_url` then


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelExchange:
    """One request of a program to a model, and the answer. Contains neither key, login nor token."""

    number: int  # within the run, from 1
    dialect: DialectName
    path: str  # with the query
    status: int  # of the upstream; 0: it did not answer
    content_type: str
    request: bytes = field(repr=False)
    response: bytes = field(repr=False)
    whole: bool  # False: the answer was cut, or request or answer are longer than what is kept
    model: str | None  # that answered, else that was asked for
    usage: Usage | None


class Meter(Protocol):
    """Counts what the requests of a run cost."""

    def reserve(self, model: str | None, prompt_bytes: int, max_output_tokens: int | None) -> str:
        """Record a request before it is forwarded, and return its id. Raises BudgetExceeded."""

    def settle(self, call_id: str, end: CallEnd, usage: Usage | None, model: str | None) -> Decimal | None:
        """Record how it ended, and return its cost; None: unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GatewayRun:
    """One run of a program."""

    upstream: Upstream
    meter: Meter
    keep: Callable[[ModelExchange], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class GatewayReport:
    """What passed through the gateway so far."""

    requests: int  # to models, as sent upstream
    usage: Usage  # of all answers that told theirs
    cost_usd: Decimal | None  # None: the cost of some request is unknown
    model: str | None  # that answered last
    trouble: ProviderTrouble | None  # that ended the run, else of the last request; None: that one was answered
    exceeded: BudgetExceeded | None  # why a budget ended the run


class Admission(Protocol):
    """The permission of one run to use the gateway, until it is closed."""

    port: int
    token: str
    base_url: str  # "http://127.0.0.1:PORT"; with the token as its path if `passes_login`

    def report(self) -> GatewayReport: ...

    def serve(self, listener: socket.socket) -> Callable[[], None]:
        """Answer on this listening socket, too, for this run only; the result closes it."""

    def close(self) -> None:
        """Refuse the token, end the requests in progress and settle them. Closing again changes nothing."""

    def __enter__(self) -> Admission: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
