"""The kind `openai`: chat completions, of OpenAI or of any server that speaks them (vLLM, Ollama, llama.cpp, a proxy).

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
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    speaker = AsyncOpenAI(api_key=access.key, base_url=access.base_url, http_client=client, max_retries=0)
    return OpenAIChatModel(name, provider=OpenAIProvider(openai_client=speaker))


_KIND = Kind(
    base_url="https://api.openai.com/v1",
    variable="OPENAI_API_KEY",
    libraries=("openai", "pydantic_ai.models.openai"),
    model=_model,
)
