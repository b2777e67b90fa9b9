"""A small client of models, for tests that need no coding agent: one request, and the whole answer."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from model_server.conversation import Dialect
from support import PATIENCE_S

DIALECTS: tuple[Dialect, ...] = ("anthropic", "responses", "chat", "gemini", "code_assist")
MODEL = "a-model"


@dataclass(frozen=True, kw_only=True)
class ModelAnswer:
    status: int
    headers: Mapping[str, str]  # lower-case names
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """Return the data of a stream's events, but for the mark of its end."""
        data = [line.removeprefix(b"data: ") for line in self.body.split(b"\n") if line.startswith(b"data: ")]
        return [json.loads(one) for one in data if one != b"[DONE]"]


def path_of(dialect: Dialect, *, streamed: bool = True, model: str = MODEL) -> str:
    method = "streamGenerateContent?alt=sse" if streamed else "generateContent"
    paths: dict[Dialect, str] = {
        "anthropic": "/v1/messages",
        "responses": "/v1/responses",
        "chat": "/v1/chat/completions",
        "gemini": f"/v1beta/models/{model}:{method}",
        "code_assist": f"/v1internal:{method}",
    }
    return paths[dialect]


def body_of(
    dialect: Dialect,
    prompt: str,
    *,
    streamed: bool = True,
    model: str = MODEL,
    replies: Sequence[str] = (),
    max_tokens: int | None = None,
) -> dict[str, Any]:
    """Return the body of a request. `replies`: what the model said before; the user goes on after each of them."""
    said = [("user", prompt), *(turn for reply in replies for turn in (("assistant", reply), ("user", "Go on.")))]
    messages = [{"role": role, "content": text} for role, text in said]
    contents = [{"role": "model" if role == "assistant" else role, "parts": [{"text": text}]} for role, text in said]
    google: dict[str, Any] = {"contents": contents}
    if max_tokens is not None:
        google["generationConfig"] = {"maxOutputTokens": max_tokens}
    if dialect == "gemini":
        return google
    if dialect == "code_assist":
        return {"model": model, "project": "a-project", "request": google}
    body = {"model": model, "stream": streamed, "input" if dialect == "responses" else "messages": messages}
    if max_tokens is not None or dialect == "anthropic":
        body["max_output_tokens" if dialect == "responses" else "max_tokens"] = max_tokens or 1000
    return body


def key_header(dialect: Dialect, key: str) -> dict[str, str]:
    if dialect == "anthropic":
        return {"x-api-key": key}
    return {"x-goog-api-key": key} if dialect == "gemini" else {"Authorization": f"Bearer {key}"}


@contextlib.contextmanager
def asking(
    base_url: str, path: str, body: Any, headers: Mapping[str, str], method: str = "POST"
) -> Iterator[http.client.HTTPResponse]:
    """Send a request, and hand over its answer before it is read."""
    address = urlsplit(base_url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE_S)
    data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    try:
        headers = {"Content-Type": "application/json", **headers}
        connection.request(method, address.path.rstrip("/") + path, data, headers)
        yield connection.getresponse()
    finally:
        connection.close()


def ask(
    base_url: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    method: str = "POST",
) -> ModelAnswer:
    with asking(base_url, path, body, headers or {}, method) as response:
        named = {name.lower(): value for name, value in response.getheaders()}
        return ModelAnswer(status=response.status, headers=named, body=response.read())


def prompt_model(base_url: str, dialect: Dialect, prompt: str, *, key: str = "a-key", **how: Any) -> ModelAnswer:
    """Send one prompt as a program would."""
    about = {name: how[name] for name in ("streamed", "model") if name in how}
    return ask(base_url, path_of(dialect, **about), body_of(dialect, prompt, **how), key_header(dialect, key))
