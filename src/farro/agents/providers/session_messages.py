"""Know what the session of a program has been told, so that a resumed one gets only what is new."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from farro.agents.providers.command import joined
from farro.agents.providers.port import ChatMessage, Request

GO_ON = "You were interrupted. Go on where you stopped, and answer in the form that was asked for.\n"


def news(request: Request, told: Sequence[str]) -> str | None:
    """Return what a session has not been told yet; None if it lacks an answer, which another session gave."""
    messages = request.messages
    if any(message.author == "assistant" and digest(message.text) not in told for message in messages):
        return None
    texts = [request.system, *(message.text for message in messages if message.author == "user")]
    new = [text.strip() for text in texts if digest(text) not in told]
    return joined(new) if new else ""


def request_digests(request: Request) -> tuple[str, ...]:
    """Return the digests of what a new session is told."""
    return (digest(request.system), *digests(request.messages))


def digests(messages: Sequence[ChatMessage]) -> tuple[str, ...]:
    return tuple(digest(message.text) for message in messages)


def digest(text: str) -> str:
    return sha256(text.strip().encode("utf-8", "surrogatepass")).hexdigest()[:32]


def unique(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
