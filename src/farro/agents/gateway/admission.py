"""The permission of one run to use the gateway, and what passed through it so far."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import secrets
import socket
import threading
from collections.abc import Callable, Coroutine
from decimal import Decimal
from types import TracebackType
from typing import Any, Protocol, TypeVar

from farro.agents.gateway.port import GatewayReport, GatewayRun
from farro.agents.gateway.troubles import unrecorded
from farro.agents.providers import event_loop
from farro.agents.providers.port import ProviderTrouble, Usage
from farro.errors import BudgetExceeded
from farro.lazy_dataclass import replace
from farro.sandbox.redaction import Redactor
from farro.store.ledger import NO_TOKENS, CallEnd

T = TypeVar("T")

ENDING_S = 30.0  # the longest wait for the requests of a run to be settled
_READ_AT_ONCE = 4  # requests of a run
_ENDS_THE_RUN = ("limited", "refused")
_NOTHING = GatewayReport(requests=0, usage=NO_TOKENS, cost_usd=Decimal(0), model=None, trouble=None, exceeded=None)


Close = Callable[[], Coroutine[Any, Any, None]]


class Listen(Protocol):
    async def __call__(self, listener: socket.socket, only: OpenAdmission, /) -> Close:
        """Answer on a socket, for one run only, until the result is called."""


class OpenRequest(Protocol):
    """A request of the program that is in progress."""

    size: int  # of its body

    def stop(self) -> None:
        """End it soon."""

    async def ended(self) -> None:
        """Wait for its end."""


class OpenAdmission:
    """The permission of one run (port: Admission)."""

    def __init__(self, run: GatewayRun, port: int, listen: Listen) -> None:
        self.run = run
        self.port = port
        self.token = f"farro-{secrets.token_urlsafe(32)}"
        self.base_url = f"http://127.0.0.1:{port}" + (f"/{self.token}" if run.upstream.passes_login else "")
        self.closed = threading.Event()
        self.open_requests: set[OpenRequest] = set()
        # A program may be hostile, and must not fill the worker's memory.
        self.reading = asyncio.Semaphore(_READ_AT_ONCE)
        self._listeners: list[Close] = []
        self.on_close: Callable[[], None] = lambda: None
        self._listen = listen
        self._report = _NOTHING  # replaced as a whole, so that any thread may read it
        self._end: BudgetExceeded | ProviderTrouble | None = None  # why nothing more is forwarded

    # --- for the caller, on any thread ---

    def report(self) -> GatewayReport:
        return self._report

    def serve(self, listener: socket.socket) -> Callable[[], None]:
        close = event_loop.run(lambda: self._listen(listener, self), ENDING_S)
        self._listeners.append(close)
        return lambda: event_loop.run(close, ENDING_S)

    def close(self) -> None:
        self.closed.set()
        with contextlib.suppress(event_loop.OutOfTime):  # what is not settled stays reserved
            event_loop.run(self.end_requests, ENDING_S)

    def __enter__(self) -> OpenAdmission:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- for the gateway, on the loop's thread ---

    def admits(self, token: str) -> bool:
        return (
            hmac.compare_digest(token.encode("utf-8", "surrogateescape"), self.token.encode())
            and not self.closed.is_set()
        )

    @property
    def held_bytes(self) -> int:
        return sum(each.size for each in self.open_requests)

    async def end_requests(self) -> None:
        for each in tuple(self.open_requests):
            each.stop()
        for each in tuple(self.open_requests):
            await each.ended()
        for close in self._listeners:
            await close()
        self.on_close()

    @property
    def stopped_by(self) -> BudgetExceeded | ProviderTrouble | None:
        return self._end

    def redactor(self, login: str) -> Redactor:
        """Return what takes the secrets of a request out of it. `login`: what came with it."""
        upstream = self.run.upstream
        values = {"token": self.token, "key": upstream.key or "", "login": upstream.login or "", "program": login}
        return Redactor(values)

    def count_request(self) -> int:
        """Count a request that is forwarded, and return its number."""
        self._report = replace(self._report, requests=self._report.requests + 1)
        return self._report.requests

    def exceed(self, exceeded: BudgetExceeded) -> None:
        self._end = self._end or exceeded
        self._report = replace(self._report, exceeded=exceeded)

    def meet(self, trouble: ProviderTrouble | None, *, ends_run: bool = False) -> None:
        """Note what became of a request; None: it was answered."""
        if isinstance(self._end, ProviderTrouble):
            return
        if trouble is not None and (ends_run or trouble.kind in _ENDS_THE_RUN):
            self._end = self._end or trouble
        self._report = replace(self._report, trouble=trouble)

    async def settle(self, call_id: str, end: CallEnd, usage: Usage | None, model: str | None) -> None:
        try:
            cost_usd = await in_thread(self.run.meter.settle, call_id, end, usage, model)
        except Exception as error:  # noqa: BLE001 - whatever it is: the reservation stands, and the run must not go on
            cost_usd = None
            self.meet(unrecorded(error), ends_run=True)
        before = self._report
        cost_usd = Decimal(0) if end == "not_charged" else cost_usd
        self._report = replace(
            before,
            usage=before.usage if usage is None else before.usage + usage,
            cost_usd=None if cost_usd is None or before.cost_usd is None else before.cost_usd + cost_usd,
            model=model if end == "answered" else before.model,
        )


async def in_thread(function: Callable[..., T], *arguments: object) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, functools.partial(function, *arguments))
