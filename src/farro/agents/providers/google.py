"""The kind `google`: the Gemini API.

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


_KIND = Kind(
    base_url="https://generativelanguage.googleapis.com",
    variable="GOOGLE_API_KEY",
    libraries=("google.genai", "pydantic_ai.models.google"),
    model=_model,
)
