"""The HTTP client of providers: one request per call, a bounded reply, no redirects; and a record of the exchange.

Imported late: httpx2 would slow down every command that calls no provider.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextvars import ContextVar

import httpx2

from farro.lazy_dataclass import dataclass, field

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


def client() -> httpx2.AsyncClient:
    """Make a client for one event loop.

    Redirects are not followed: they would carry the key to another server.
    """
    return httpx2.AsyncClient(
        follow_redirects=False,
        headers={"Accept-Encoding": "identity"},
        event_hooks={"request": [_sending], "response": [_receiving]},
        timeout=httpx2.Timeout(None, connect=CONNECT_S),
    )
