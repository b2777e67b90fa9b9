"""The kind `openrouter`: many makers' models behind one key. It says itself what a call cost.

One call lives in providers.chat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farro.agents.providers.access import ProviderAccess
from farro.agents.providers.chat import ChatProvider, Kind
from farro.agents.providers.port import Provider
from farro.agents.providers.registry import Place
from farro.config.settings import ProviderSettings

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.models import Model


def make(name: str, settings: ProviderSettings, place: Place) -> Provider:
    return ChatProvider(name, settings, _KIND, place.environ)


def _model(name: str, access: ProviderAccess, client: httpx2.AsyncClient) -> Model:
    from openai import AsyncOpenAI
    from pydantic_ai.models.openrouter import OpenRouterModel, OpenRouterModelSettings
    from pydantic_ai.providers.openrouter import OpenRouterProvider

    # A client of our own, because the library's provider knows one address only.
    speaker = AsyncOpenAI(api_key=access.key, base_url=access.base_url, http_client=client, max_retries=0)
    return OpenRouterModel(
        name,
        provider=OpenRouterProvider(openai_client=speaker),
        settings=OpenRouterModelSettings(openrouter_usage={"include": True}),  # with the cost
    )


_KIND = Kind(
    base_url="https://openrouter.ai/api/v1",
    variable="OPENROUTER_API_KEY",
    libraries=("openai", "pydantic_ai.models.openrouter"),
    model=_model,
)
