"""The adapter of every provider over HTTP: one call, in its time, ended when its caller is.

What differs between them is a Kind (openai.py, google.py, openrouter.py). Light to import: the libraries come with the
first call, on a thread that no exception is sent into, because a half-imported library stays broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from farro.agents.providers import event_loop
from farro.agents.providers.access import ProviderAccess, access_to
from farro.agents.providers.port import Answer, ProviderTrouble, Request
from farro.config.settings import ProviderSettings
from farro.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.models import Model

    from farro.agents.providers.http_client import Exchange

TRIES = 4  # SPEC-1 §9


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """What one kind of provider has of its own."""

    base_url: str
    variable: str  # where its key usually is
    libraries: tuple[str, ...]  # modules that `model` imports
    model: Callable[[str, ProviderAccess, httpx2.AsyncClient], Model]


class ChatProvider:
    """A provider over HTTP (port: Provider)."""

    tries = TRIES

    def __init__(self, name: str, settings: ProviderSettings, kind: Kind, environ: Mapping[str, str]) -> None:
        self._name = name
        self._settings = settings
        self._kind = kind
        self._environ = environ
        # Touched by the loop's thread alone. Connections belong to a loop, and a fork has another one.
        self._of: asyncio.AbstractEventLoop | None = None
        self._client: httpx2.AsyncClient | None = None
        self._models: dict[str, Model] = {}

    def answer(self, request: Request) -> Answer:
        model = request.model or self._settings.model
        if model is None:
            raise ProviderTrouble(
                f"provider {self._name} is asked for no model; set providers.{self._name}.model, or the role's",
                kind="missing",
                retryable=False,
                charged=False,
            )
        access = self._access()
        told: deque[str] = deque()
        seen: list[Exchange] = []  # filled when the request is about to be made

        def write_along() -> None:
            if request.partial is None:
                told.clear()
            elif told:
                with contextlib.suppress(OSError, ValueError):  # it is for people who read along, no more
                    while told:
                        request.partial.write(told.popleft().encode("utf-8", "replace"))
                    request.partial.flush()

        try:
            come = event_loop.run(
                lambda: self._ask(request, model, access, seen, told.append),
                request.timeout_s,
                while_waiting=write_along,
            )
        except event_loop.OutOfTime:
            come = ProviderTrouble(
                f"provider {self._name} gave no answer within {request.timeout_s:g} s; timeout_s may be longer",
                kind="timeout",
                retryable=True,
                charged=any(exchange.requests for exchange in seen),
            )
        if isinstance(come, ProviderTrouble):
            raise come
        return come

    def close(self) -> None:
        if self._client is not None:
            with contextlib.suppress(event_loop.OutOfTime):
                event_loop.run(self._close, event_loop.ENDING_S)

    def _access(self) -> ProviderAccess:
        kind = self._kind
        return access_to(self._name, self._settings, self._environ, base_url=kind.base_url, variable=kind.variable)

    async def _ask(
        self, request: Request, model: str, access: ProviderAccess, seen: list[Exchange], said: Callable[[str], Any]
    ) -> Answer | ProviderTrouble:
        try:
            ask, new_exchange = await asyncio.to_thread(_load, self._kind.libraries)
        except ImportError as error:
            return ProviderTrouble(
                f"provider {self._name} needs libraries that are not installed ({error.name}): install farro[agents]",
                kind="missing",
                retryable=False,
                charged=False,
            )
        seen.append(new_exchange(request.max_output_tokens))
        come: Answer | ProviderTrouble = await ask(
            lambda: self._model(model, access),
            replace(request, model=model),
            name=self._name,
            access=access,
            seen=seen[0],
            said=said if self._settings.stream else None,
        )
        return come

    def _model(self, name: str, access: ProviderAccess) -> Model:
        from farro.agents.providers import http_client

        running = asyncio.get_running_loop()
        if self._of is not running:
            self._of, self._client, self._models = running, http_client.client(), {}
        assert self._client is not None
        if name not in self._models:
            self._models[name] = self._kind.model(name, access, self._client)
        return self._models[name]

    async def _close(self) -> None:
        client, of, self._client, self._of, self._models = self._client, self._of, None, None, {}
        if client is not None and of is asyncio.get_running_loop():  # else it was the parent's, before a fork
            await client.aclose()


def _load(libraries: tuple[str, ...]) -> tuple[Any, Any]:
    """Beside the loop, which other calls are on: the first time it takes a second or two."""
    for name in libraries:
        importlib.import_module(name)
    from farro.agents.providers.http_client import new_exchange
    from farro.agents.providers.request import ask

    return ask, new_exchange
