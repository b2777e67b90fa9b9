"""Send one request through pydantic-ai, and translate its response or error.

The HTTP client makes one request per call, bounds the reply, follows no redirects, and records the exchange.

Imported by the first call only: this costs more than a second and 70 MB.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import TypeVar
from urllib.parse import urlsplit

import httpx2
from pydantic_ai import exceptions as library
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

from farro.agents.providers.http import ProviderAccess
from farro.agents.providers.port import Answer, ProviderTrouble, Request, TroubleKind, Usage
from farro.agents.providers.refusals import delay_in, is_charged, message_in, retry_after_s
from farro.lazy_dataclass import dataclass, field
from farro.roles import money


async def ask(
    open_model: Callable[[], Model],
    request: Request,
    *,
    name: str,
    access: ProviderAccess,
    forbids_prompts: bool,
    seen: Exchange,
    on_text: Callable[[str], None] | None,
) -> Answer | ProviderTrouble:
    """Send the request. With `on_text` the answer is streamed, and `on_text` gets its text as it comes.

    A trouble is returned, not raised, so that it is not chained to an exception of a library.
    """
    assert request.model is not None
    translate = TroubleTranslator(name, request.model, access, forbids_prompts=forbids_prompts)
    exchange.set(seen)
    settings = ModelSettings(max_tokens=request.max_output_tokens, max_retries=0)
    messages = _messages(request)
    try:
        model = open_model()
        if on_text is None:
            response = await model_request(model, messages, model_settings=settings)
        else:
            response = await _streamed(model, messages, settings, on_text)
    except Exception as error:  # noqa: BLE001 - every exception of the libraries is this call's trouble
        return translate.of(error, seen)
    if on_text is not None and not _finished(response, seen):
        return translate.cut()
    return _answer(response, translate)


async def _streamed(
    model: Model, messages: list[ModelMessage], settings: ModelSettings, on_text: Callable[[str], None]
) -> ModelResponse:
    async with model_request_stream(model, messages, model_settings=settings) as stream:
        async for event in stream:
            if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                on_text(event.part.content)
            elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                on_text(event.delta.content_delta)
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
    """Tell whether a stream ended properly. Without its end it was cut, for example by a proxy that gave up."""
    return seen.ended or bool((response.provider_details or {}).get("finish_reason"))


def _answer(response: ModelResponse, translate: TroubleTranslator) -> Answer | ProviderTrouble:
    usage, details = _usage(response), response.provider_details or {}
    if response.finish_reason == "content_filter":
        reason = details.get("refusal") or details.get("block_reason") or details.get("finish_reason")
        return translate.filtered(None if reason is None else str(reason), usage)
    if response.finish_reason == "error":
        return translate.trouble("ended its answer with an error", "cut", retryable=True, usage=usage)
    text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    whole = response.finish_reason != "length"
    if not text and whole:
        return translate.garbage("it is empty", usage)
    cost_usd = money.reported_cost(details.get("cost"))  # reported by OpenRouter
    return Answer(text=text, model=response.model_name, usage=usage, cost_usd=cost_usd, whole=whole)


def _usage(response: ModelResponse) -> Usage | None:
    counted = response.usage
    if not counted.input_tokens and not counted.output_tokens:
        return None  # not reported, which is not the same as zero
    return Usage(
        input_tokens=counted.input_tokens,
        output_tokens=counted.output_tokens,
        cache_read_tokens=counted.cache_read_tokens,
        cache_write_tokens=counted.cache_write_tokens,
    )


E = TypeVar("E", bound=BaseException)

_LONGEST = 300  # characters of a provider's message that are shown


class TroubleTranslator:
    """Translates errors of one provider and model into ProviderTrouble, with advice for people."""

    def __init__(self, name: str, model: str, access: ProviderAccess, *, forbids_prompts: bool) -> None:
        self._forbids_prompts = forbids_prompts
        self._who = f"provider {name}"
        self._name = name
        self._model = model
        self._access = access

    def of(self, error: Exception, seen: Exchange) -> ProviderTrouble:
        """Translate an error.

        It is not kept itself: libraries put requests into their errors, and requests contain the key.
        """
        for own in _chain(error, (SecondRequest, ReplyTooLarge, ReplyCompressed)):
            return self._own(own, seen)
        status = _status(error, seen)
        if status is not None:
            return self._refusal(status, error, seen)
        transport = next(_chain(error, (httpx2.TransportError,)), None)
        if transport is not None or isinstance(error, library.ModelConnectionError):
            return self._broken(transport or error)
        if isinstance(error, library.UserError):
            return self.trouble(f"cannot ask {self._model}: {self._said(error)}", "denied", charged=False)
        if isinstance(error, library.ContentFilterError):
            return self.filtered(None, None)
        if isinstance(error, library.ModelAPIError) and error.in_stream:
            return self.trouble(f"broke off with an error: {self._said(error)}", "cut", retryable=True)
        if seen.status is not None:
            return self.garbage("its reply is not what this kind of provider answers")
        return self.trouble(f"cannot be asked: {type(error).__name__}: {self._said(error)}", "failed")

    def filtered(self, reason: str | None, usage: Usage | None) -> ProviderTrouble:
        why = f" ({self._short(reason)})" if reason else ""
        message = f"refused to answer{why}; change the prompt, or give the role a fallback"
        return self.trouble(message, "denied", usage=usage)

    def garbage(self, what: str, usage: Usage | None = None) -> ProviderTrouble:
        host = f"{self._access.base_url} may not be its address" if usage is None else "nothing was kept of it"
        return self.trouble(f"gave no answer that can be used: {what}; {host}", "failed", retryable=True, usage=usage)

    def cut(self) -> ProviderTrouble:
        return self.trouble("was cut off in the middle of its answer", "cut", retryable=True)

    def trouble(
        self,
        message: str,
        kind: TroubleKind,
        *,
        retryable: bool = False,
        retry_after_s: float | None = None,
        usage: Usage | None = None,
        charged: bool = True,
    ) -> ProviderTrouble:
        return ProviderTrouble(
            self._access.without_key(f"{self._who} {message}"),
            kind=kind,
            retryable=retryable,
            retry_after_s=retry_after_s,
            usage=usage,
            charged=charged,
        )

    def _own(self, error: BaseException, seen: Exchange) -> ProviderTrouble:
        if isinstance(error, ReplyTooLarge):
            return self.garbage(
                f"its reply is larger than {seen.limit / (1 << 20):.1f} MiB, which no answer of the wanted length is"
            )
        if isinstance(error, ReplyCompressed):
            return self.garbage("its reply is compressed, which was not asked for")
        return self.trouble("was asked twice by its library, which was stopped; this is a bug in farro", "failed")

    def _refusal(self, status: int, error: Exception, seen: Exchange) -> ProviderTrouble:
        says = self._words_of(error)
        said = f"answered {status}{says}"
        charged = is_charged(status) or getattr(error, "in_stream", False)
        if status == 402 or isinstance(error, library.ModelQuotaExceededError):
            message = f"{said}: the account has nothing left; raise its limit, or give the role a fallback"
            return self.trouble(message, "refused", charged=charged)
        if status == 429:
            wait_s = _first(retry_after_s(seen.headers), delay_in(getattr(error, "body", None)))
            rest = "" if wait_s is None else f"; it asks for a pause of {wait_s:g} s"
            message = f"{said}: too many requests{rest}"
            return self.trouble(message, "limited", retryable=True, retry_after_s=wait_s, charged=charged)
        if status in (408, 409) or status >= 500:
            wait_s = retry_after_s(seen.headers)
            return self.trouble(said, "overloaded", retryable=True, retry_after_s=wait_s, charged=charged)
        kind: TroubleKind = "refused" if self._is_about_the_key(status, error) else "denied"
        return self.trouble(f"{said}; {self._advice(status, error, seen)}", kind, charged=charged)

    def _is_about_the_key(self, status: int, error: Exception) -> bool:
        """Tell whether the service does not accept the key, whatever is asked."""
        if status in (401, 403):
            return status == 401 or not self._forbids_prompts
        return isinstance(error, library.ModelAuthenticationError)  # Google calls a wrong key a bad request

    def _advice(self, status: int, error: Exception, seen: Exchange) -> str:
        if 300 <= status < 400:
            to = urlsplit(seen.headers.get("location", ""))
            where = f" to {to.scheme}://{to.hostname}" if to.hostname else ""
            return (
                f"it redirects{where}, which is not followed because the key would go there: set "
                f"providers.{self._name}.base_url to the right address"
            )
        if status == 403 or self._is_about_the_key(status, error):
            return f"the key was not accepted, or may not use {self._model}: check {self._access.key_source}"
        if isinstance(error, library.ModelNotFoundError):
            hint = getattr(error, "suggested_model_id", None)
            near = f", did you mean {hint.rpartition(':')[2]}?" if hint else ";"
            return f"there is no model {self._model}{near} check the model's name, and {self._access.base_url}"
        if isinstance(error, library.ModelContextWindowExceededError) or status == 413:
            return f"the prompt is too long for {self._model}: shorten it, or use a model with a larger window"
        return "the request would be refused again as it is"

    def _broken(self, error: BaseException) -> ProviderTrouble:
        connecting = isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout))
        host = urlsplit(self._access.base_url).netloc.rpartition("@")[2]
        if isinstance(error, httpx2.TimeoutException):
            return self.trouble(
                f"took no connection in time ({host})", "timed_out", retryable=True, charged=not connecting
            )
        if connecting:
            message = f"cannot be reached at {host}: {self._reason(error)}; check base_url and the network"
            return self.trouble(message, "failed", retryable=True, charged=False)
        return self.trouble(f"ended the connection ({host}): {self._said(error)}", "cut", retryable=True)

    def _words_of(self, error: Exception) -> str:
        """Return the provider's own message in brackets."""
        words = message_in(getattr(error, "body", None))
        return f" ({self._short(words)})" if words else ""

    def _reason(self, error: BaseException) -> str:
        """Return the message of the operating system, if there is one."""
        for each in _chain(error, (OSError,)):
            if each.errno is not None and each.strerror is not None:
                # Below 0 it is an error of name resolution.
                return os.strerror(each.errno) if each.errno > 0 else each.strerror
        return self._said(error)

    def _said(self, error: BaseException) -> str:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return self._short(str(error) or type(error).__name__)

    def _short(self, text: str) -> str:
        # Remove the key first: cut in the middle it would not be found any more.
        text = " ".join(self._access.without_key(text).split())
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _status(error: Exception, seen: Exchange) -> int | None:
    """Return the status of a reply that is not an answer; also of an error inside a stream that began well."""
    if isinstance(error, library.ModelHTTPError):
        return error.status_code
    return seen.status if seen.status is not None and seen.status >= 300 else None


def _chain(error: BaseException, kinds: tuple[type[E], ...]) -> Iterator[E]:
    """Yield the errors of these kinds in the chain of causes.

    A host with two addresses gives a group of errors; its first one counts.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, kinds):
            yield current
        inner = current.exceptions[0] if isinstance(current, BaseExceptionGroup) else None
        current = inner or current.__cause__ or current.__context__


CONNECT_S = 10.0  # a host that accepts no connection within this time will not answer either
# Limits of a reply: a token is streamed in a frame of 250 to 400 bytes. A longer reply is not an answer, and would
# block the loop for all other calls, or fill the worker's memory.
_BYTES, _BYTES_A_TOKEN, _MOST_BYTES = 1 << 20, 1 << 10, 64 << 20
_TAIL = 64


class SecondRequest(Exception):
    """A library retried by itself. Only the caller may retry: it counts, waits, and pays."""


class ReplyTooLarge(Exception):
    """The reply is larger than any answer."""


class ReplyCompressed(Exception):
    """The reply is compressed, though that was not requested: it could unpack to any size."""


@dataclass(slots=True)
class Exchange:
    """What was sent and received in one call."""

    limit: int = _MOST_BYTES  # bytes of the body
    requests: int = 0
    status: int | None = None  # of the reply; None: no reply came
    # Not in tracebacks: a server that echoes the request echoes the key.
    headers: dict[str, str] = field(default_factory=dict, repr=False)  # lower-case names
    received: int = 0  # bytes of the body so far
    tail: bytes = field(default=b"", repr=False)  # the last bytes of the body

    @property
    def ended(self) -> bool:
        """Tell whether an event stream of OpenAI's form was received to its end."""
        return b"[DONE]" in self.tail


def new_exchange(max_output_tokens: int) -> Exchange:
    return Exchange(limit=min(_BYTES + _BYTES_A_TOKEN * max_output_tokens, _MOST_BYTES))


exchange: ContextVar[Exchange] = ContextVar("exchange")


class _Counted(httpx2.AsyncByteStream):
    """The body of a reply, up to the limit."""

    def __init__(self, body: httpx2.AsyncByteStream, seen: Exchange) -> None:
        self._body = body
        self._seen = seen

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._body:
            self._seen.received += len(chunk)
            self._seen.tail = (self._seen.tail + chunk[-_TAIL:])[-_TAIL:]
            if self._seen.received > self._seen.limit:
                raise ReplyTooLarge
            yield chunk

    async def aclose(self) -> None:
        await self._body.aclose()


async def _sending(request: httpx2.Request) -> None:
    seen = exchange.get()
    seen.requests += 1
    if seen.requests > 1:
        raise SecondRequest
    # The caller limits the whole call; a pause between two tokens may well take a minute.
    request.extensions["timeout"] = {"connect": CONNECT_S, "pool": CONNECT_S, "read": None, "write": None}


async def _receiving(response: httpx2.Response) -> None:
    seen = exchange.get()
    seen.status = response.status_code
    seen.headers = {name.lower(): value for name, value in response.headers.items()}
    if seen.headers.get("content-encoding", "identity").lower() != "identity":
        raise ReplyCompressed
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _Counted(response.stream, seen)


def new_client() -> httpx2.AsyncClient:
    """Make a client for one event loop.

    Redirects are not followed: they would carry the key to another server.
    """
    return httpx2.AsyncClient(
        follow_redirects=False,
        headers={"Accept-Encoding": "identity"},
        event_hooks={"request": [_sending], "response": [_receiving]},
        timeout=httpx2.Timeout(None, connect=CONNECT_S),
    )
