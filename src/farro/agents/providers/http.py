"""Call a provider over HTTP: the kinds openai (and every server that speaks its API), openrouter and google.

Light to import. The libraries are imported by the first call, on a thread into which no exception is raised, because a
half-imported library stays broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from farro.agents.providers import event_loop
from farro.agents.providers.port import Answer, ProviderTrouble, Request
from farro.agents.providers.registry import ProviderFactory
from farro.config.settings import ProviderSettings, Secret
from farro.errors import InputError
from farro.lazy_dataclass import dataclass, field, replace
from farro.roles.provider_rules import HTTP_TRIES

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.models import Model

    from farro.agents.providers.http_call import Exchange

NO_KEY = "none"  # the libraries insist on a key; a private server without keys ignores it


# --- address and key ---


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderAccess:
    """The address of a provider and its key.

    Invariant: `key` is in no text that leaves this process except the request itself.
    """

    base_url: str
    key: str = field(repr=False)
    key_source: str  # for messages: "the variable OPENAI_API_KEY"

    def without_key(self, text: str) -> str:
        """Replace the key in a text."""
        return text if self.key == NO_KEY else text.replace(self.key, "[key]")


def access_to(
    name: str, settings: ProviderSettings, environ: Mapping[str, str], *, base_url: str, variable: str
) -> ProviderAccess:
    """Find the address and the key of a provider.

    A key is sent only where the config names it: one that happens to be in the environment must not be sent to an
    address that its owner did not choose.

    Raises ProviderTrouble of kind `failed`, which names the variable that is not set or would usually hold the key.
    """
    if settings.api_key is not None:
        key, key_source = configured_key(name, settings.api_key, environ)
        return ProviderAccess(base_url=settings.base_url or base_url, key=key, key_source=key_source)
    if settings.base_url is None:
        raise _missing(f"provider {name} has no key: set providers.{name}.api_key, such as to ${{{variable}}}")
    unset = f"providers.{name}.api_key, which is not set"
    return ProviderAccess(base_url=settings.base_url, key=NO_KEY, key_source=unset)


def configured_key(name: str, api_key: Secret, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the key that the config names, and its source for messages."""
    try:
        key = api_key.reveal(environ, f"provider {name}")
    except InputError as error:
        raise _missing(str(error)) from None
    if not (key.isascii() and key.isprintable() and " " not in key):
        # The libraries show such a header in their error, escaped, so that the key would not be found and removed.
        raise _missing(f"the variable {api_key.name} holds no key: it contains a blank, a line break or the like")
    return key, f"the variable {api_key.name}"


def _missing(message: str) -> ProviderTrouble:
    return ProviderTrouble(message, kind="failed", retryable=False, charged=False)


# --- one call ---


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpKind:
    """What differs between the kinds of provider over HTTP."""

    base_url: str
    variable: str  # which usually holds the key
    libraries: tuple[str, ...]  # modules that `model` imports
    forbids_prompts: bool = False  # a 403 may be about the prompt, not about the key
    model: Callable[[str, ProviderAccess, httpx2.AsyncClient], Model]


class HttpProvider:
    """A provider over HTTP (port: Provider)."""

    tries = HTTP_TRIES

    def __init__(self, name: str, settings: ProviderSettings, kind: HttpKind, environ: Mapping[str, str]) -> None:
        self._name = name
        self._settings = settings
        self._kind = kind
        self._environ = environ
        # Used by the loop's thread alone. Connections belong to one loop, and a forked process has another one.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: httpx2.AsyncClient | None = None
        self._models: dict[str, Model] = {}

    def answer(self, request: Request) -> Answer:
        model = request.model or self._settings.model
        if model is None:
            raise _missing(
                f"provider {self._name} is asked for no model; set providers.{self._name}.model, or the role's"
            )
        access = access_to(
            self._name,
            self._settings,
            self._environ,
            base_url=self._kind.base_url,
            variable=self._kind.variable,
        )
        chunks: deque[str] = deque()
        exchanges: list[Exchange] = []  # filled just before the request is made

        def write_partial() -> None:
            if request.partial is None:
                chunks.clear()
            elif chunks:
                with contextlib.suppress(OSError, ValueError):  # only for people who watch: never fail the call
                    while chunks:
                        request.partial.write(chunks.popleft().encode("utf-8", "replace"))
                    request.partial.flush()

        try:
            result = event_loop.run(
                lambda: self._ask(request, model, access, exchanges, chunks.append),
                request.timeout_s,
                while_waiting=write_partial,
            )
        except event_loop.OutOfTime:
            result = ProviderTrouble(
                f"provider {self._name} gave no answer within {request.timeout_s:g} s; timeout_s may be longer",
                kind="timed_out",
                retryable=True,
                charged=any(exchange.requests for exchange in exchanges),
            )
        if isinstance(result, ProviderTrouble):
            raise result
        return result

    def close(self) -> None:
        if self._client is not None:
            with contextlib.suppress(event_loop.OutOfTime):
                event_loop.run(self._close, event_loop.ENDING_S)

    async def _ask(
        self,
        request: Request,
        model: str,
        access: ProviderAccess,
        exchanges: list[Exchange],
        on_text: Callable[[str], Any],
    ) -> Answer | ProviderTrouble:
        try:
            ask, new_exchange = await asyncio.to_thread(_load, self._kind.libraries)
        except ImportError as error:
            return _missing(
                f"provider {self._name} needs libraries that are not installed ({error.name}): install farro[agents]"
            )
        exchanges.append(new_exchange(request.max_output_tokens))
        result: Answer | ProviderTrouble = await ask(
            lambda: self._model(model, access),
            replace(request, model=model),
            name=self._name,
            access=access,
            forbids_prompts=self._kind.forbids_prompts,
            seen=exchanges[0],
            on_text=on_text if self._settings.stream else None,
        )
        return result

    def _model(self, name: str, access: ProviderAccess) -> Model:
        from farro.agents.providers import http_call

        running = asyncio.get_running_loop()
        if self._loop is not running:
            self._loop, self._client, self._models = running, http_call.new_client(), {}
        assert self._client is not None
        if name not in self._models:
            self._models[name] = self._kind.model(name, access, self._client)
        return self._models[name]

    async def _close(self) -> None:
        client, loop = self._client, self._loop
        self._client, self._loop, self._models = None, None, {}
        if client is not None and loop is asyncio.get_running_loop():  # else it belongs to the parent of a fork
            await client.aclose()


def _load(libraries: tuple[str, ...]) -> tuple[Any, Any]:
    """Import the libraries beside the loop, which other calls use: the first time takes a second or two."""
    for name in libraries:
        importlib.import_module(name)
    from farro.agents.providers.http_call import ask, new_exchange

    return ask, new_exchange


# --- the kinds ---


def _openai_model(name: str, access: ProviderAccess, client: httpx2.AsyncClient) -> Model:
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    api = AsyncOpenAI(api_key=access.key, base_url=access.base_url, http_client=client, max_retries=0)
    return OpenAIChatModel(name, provider=OpenAIProvider(openai_client=api))


def _openrouter_model(name: str, access: ProviderAccess, client: httpx2.AsyncClient) -> Model:
    from openai import AsyncOpenAI
    from pydantic_ai.models.openrouter import OpenRouterModel, OpenRouterModelSettings
    from pydantic_ai.providers.openrouter import OpenRouterProvider

    # A client of our own, because the library's provider knows one address only.
    api = AsyncOpenAI(api_key=access.key, base_url=access.base_url, http_client=client, max_retries=0)
    return OpenRouterModel(
        name,
        provider=OpenRouterProvider(openai_client=api),
        settings=OpenRouterModelSettings(openrouter_usage={"include": True}),  # asks for the cost
    )


def _google_model(name: str, access: ProviderAccess, client: httpx2.AsyncClient) -> Model:
    from google.genai.types import HttpRetryOptions
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    return GoogleModel(
        name,
        provider=GoogleProvider(
            api_key=access.key,
            base_url=access.base_url,
            http_client=client,
            retry_options=HttpRetryOptions(attempts=1),
        ),
    )


def _factory(kind: HttpKind) -> ProviderFactory:
    return lambda name, settings, place: HttpProvider(name, settings, kind, place.environ)


# OpenAI, or any server with its API (vLLM, Ollama, llama.cpp, a proxy).
openai = _factory(
    HttpKind(
        base_url="https://api.openai.com/v1",
        variable="OPENAI_API_KEY",
        libraries=("openai", "pydantic_ai.models.openai"),
        model=_openai_model,
    )
)
# Models of many makers behind one key. It reports the cost of a call.
openrouter = _factory(
    HttpKind(
        base_url="https://openrouter.ai/api/v1",
        variable="OPENROUTER_API_KEY",
        libraries=("openai", "pydantic_ai.models.openrouter"),
        forbids_prompts=True,
        model=_openrouter_model,
    )
)
# The Gemini API.
google = _factory(
    HttpKind(
        base_url="https://generativelanguage.googleapis.com",
        variable="GOOGLE_API_KEY",
        libraries=("google.genai", "pydantic_ai.models.google"),
        model=_google_model,
    )
)
