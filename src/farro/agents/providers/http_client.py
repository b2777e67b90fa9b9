"""The HTTP client of a provider: one request a call, a bounded reply, no redirects; and what was seen of the exchange.

What the exchange means lives in providers.troubles; which library speaks over it, in the provider's own file. Imported
late: httpx2 costs every command that does not call a provider.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextvars import ContextVar

import httpx2

from farro.lazy_dataclass import dataclass, field

CONNECT_S = 10.0  # a host that does not take a connection within this will not answer either
# Of a reply: a token is streamed in a frame of 250 to 400 bytes. What is longer is no answer, and would keep the loop
# busy for all other calls, or fill the worker's memory.
_BYTES, _BYTES_A_TOKEN, _MOST_BYTES = 1 << 20, 1 << 10, 64 << 20
_TAIL = 64


class SecondRequest(Exception):
    """A library tried again by itself. The caller alone does that: it counts, waits, and pays."""


class ReplyTooLarge(Exception):
    """The reply is larger than any answer."""


class ReplyCompressed(Exception):
    """The reply is compressed, though that was not asked for: it could unfold into any size."""


@dataclass(slots=True)
class Exchange:
    """What went over the wire for one call."""

    limit: int = _MOST_BYTES  # of its body
    requests: int = 0
    status: int | None = None  # of the reply; None: there was none
    # Of the reply. Not in tracebacks: whoever echoes what it was sent echoes the key.
    headers: dict[str, str] = field(default_factory=dict, repr=False)  # names in lower case
    received: int = 0  # bytes of its body
    tail: bytes = field(default=b"", repr=False)  # the last of them

    @property
    def ended(self) -> bool:
        """Whether an event stream of OpenAI's form came to its end."""
        return b"[DONE]" in self.tail


def new_exchange(max_output_tokens: int) -> Exchange:
    return Exchange(limit=min(_BYTES + _BYTES_A_TOKEN * max_output_tokens, _MOST_BYTES))


exchange: ContextVar[Exchange] = ContextVar("exchange")


class _Counted(httpx2.AsyncByteStream):
    """A reply's body, up to the limit."""

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
    # The whole call has one limit, which the caller keeps; a pause between two tokens may well take a minute.
    request.extensions["timeout"] = {"connect": CONNECT_S, "pool": CONNECT_S, "read": None, "write": None}


async def _receiving(response: httpx2.Response) -> None:
    seen = exchange.get()
    seen.status = response.status_code
    seen.headers = {name.lower(): value for name, value in response.headers.items()}
    if seen.headers.get("content-encoding", "identity").lower() != "identity":
        raise ReplyCompressed
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _Counted(response.stream, seen)


def client() -> httpx2.AsyncClient:
    """A new client, for one event loop. Redirects are not followed: they would carry the key to whoever they name."""
    return httpx2.AsyncClient(
        follow_redirects=False,
        headers={"Accept-Encoding": "identity"},
        event_hooks={"request": [_sending], "response": [_receiving]},
        timeout=httpx2.Timeout(None, connect=CONNECT_S),
    )
