"""One request through pydantic-ai: our request as its messages, its response as our answer or trouble.

Nothing of farro imports this before the first call: it costs more than a second and 70 MB. The adapter around it, with
its thread and its time, lives in providers.chat.
"""

from __future__ import annotations

from collections.abc import Callable

from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    UserPromptPart,
)
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings

from farro.agents.providers.access import ProviderAccess
from farro.agents.providers.errors import TroubleTranslator
from farro.agents.providers.http_client import Exchange, exchange
from farro.agents.providers.port import Answer, ProviderTrouble, Request, Usage
from farro.roles import money


async def ask(
    open_model: Callable[[], Model],
    request: Request,
    *,
    name: str,
    access: ProviderAccess,
    seen: Exchange,
    said: Callable[[str], None] | None,
) -> Answer | ProviderTrouble:
    """The trouble is returned, not raised, so that no exception of a library hangs on to it. With `said`, the answer is
    streamed, and its text told as it comes."""
    assert request.model is not None
    told = TroubleTranslator(name, request.model, access)
    exchange.set(seen)
    settings = ModelSettings(max_tokens=request.max_output_tokens, max_retries=0)
    messages = _messages(request)
    try:
        model = open_model()
        if said is None:
            response = await model_request(model, messages, model_settings=settings)
        else:
            response = await _streamed(model, messages, settings, said)
    except Exception as error:  # noqa: BLE001 - whatever the libraries raise is this call's trouble
        return told.of(error, seen)
    if said is not None and not _finished(response, seen):
        return told.cut()
    return _answer(response, told)


async def _streamed(
    model: Model, messages: list[ModelMessage], settings: ModelSettings, said: Callable[[str], None]
) -> ModelResponse:
    async with model_request_stream(model, messages, model_settings=settings) as stream:
        async for event in stream:
            if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                said(event.part.content)
            elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                said(event.delta.content_delta)
        return stream.get()


def _messages(request: Request) -> list[ModelMessage]:
    messages: list[ModelMessage] = []
    for message in request.messages:
        if message.author == "user":
            parts = [UserPromptPart(content=message.text)]
            messages.append(ModelRequest(parts=parts, instructions=request.system or None))
        else:
            messages.append(ModelResponse(parts=[TextPart(content=message.text)]))
    return messages


def _finished(response: ModelResponse, seen: Exchange) -> bool:
    """A stream that ends without saying so was cut: a proxy that gives up closes the connection as neatly."""
    return seen.ended or bool((response.provider_details or {}).get("finish_reason"))


def _answer(response: ModelResponse, told: TroubleTranslator) -> Answer | ProviderTrouble:
    usage, details = _usage(response), response.provider_details or {}
    if response.finish_reason == "content_filter":
        reason = details.get("refusal") or details.get("block_reason") or details.get("finish_reason")
        return told.filtered(None if reason is None else str(reason), usage)
    if response.finish_reason == "error":
        return told.trouble("ended its answer with an error", "server", retryable=True, usage=usage)
    text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    whole = response.finish_reason != "length"
    if not text and whole:
        return told.garbage("it is empty", usage)
    cost_usd = money.told(details.get("cost"))  # OpenRouter says it
    return Answer(text=text, model=response.model_name, usage=usage, cost_usd=cost_usd, whole=whole)


def _usage(response: ModelResponse) -> Usage | None:
    counted = response.usage
    if not counted.input_tokens and not counted.output_tokens:
        return None  # not said, which is not the same as none
    return Usage(
        input_tokens=counted.input_tokens,
        output_tokens=counted.output_tokens,
        cache_read_tokens=counted.cache_read_tokens,
        cache_write_tokens=counted.cache_write_tokens,
    )
