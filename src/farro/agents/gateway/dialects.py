"""What programs ask of models, by dialect: paths, addresses of the services, requests, and answers that stop a program.

Anything that is not in the table of routes is refused. Programs also ask for updates, telemetry and catalogs; they work
without the answers.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from urllib.parse import unquote

from farro.agents.gateway.port import DialectName
from farro.agents.programs.output import Event, at, json_object, number_at, text_at
from farro.lazy_dataclass import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """What a path asks for."""

    dialect: DialectName
    metered: bool  # False: it costs nothing, such as a list of models


_OPENAI = r"/(?:v1|backend-api/codex)"
_GOOGLE = r"/v1(?:alpha|beta)?\d*/models"
_GENERATE = r":(?:generateContent|streamGenerateContent)"
_ROUTES: tuple[tuple[str, str, DialectName, bool], ...] = (
    ("POST", r"/v1/messages", "anthropic", True),
    ("POST", rf"{_OPENAI}/responses(?:/compact)?", "responses", True),
    ("POST", r"/v1/chat/completions", "chat", True),
    ("POST", rf"{_GOOGLE}/[^/:]+{_GENERATE}", "gemini", True),
    ("POST", rf"/v1internal{_GENERATE}", "code_assist", True),
    ("POST", r"/v1/messages/count_tokens", "anthropic", False),
    ("POST", r"/v1/responses/input_tokens", "responses", False),
    ("POST", rf"{_GOOGLE}/[^/:]+:countTokens", "gemini", False),
    ("GET", rf"{_OPENAI}/models(?:/[^/]+)?", "chat", False),
    ("GET", rf"{_GOOGLE}(?:/[^/:]+)?", "gemini", False),
    ("GET", r"/v1internal[:/].*", "code_assist", False),
    ("POST", r"/v1internal:.*", "code_assist", False),
)


def route_of(method: str, path: str, headers: Mapping[str, str]) -> Route | None:
    """Return what this path, without its query, asks for; None if it is not known."""
    for wanted, pattern, dialect, metered in _ROUTES:
        if method == wanted and re.fullmatch(pattern, path):
            # Two services list their models at the same path.
            listed = dialect == "chat" and not metered and "anthropic-version" in headers
            return Route(dialect="anthropic" if listed else dialect, metered=metered)
    return None


# --- the service ---

_SERVICES: Mapping[DialectName, str] = {
    "anthropic": "https://api.anthropic.com",
    "responses": "https://api.openai.com",
    "chat": "https://api.openai.com",
    "gemini": "https://generativelanguage.googleapis.com",
    "code_assist": "https://cloudcode-pa.googleapis.com",
}
_CHATGPT = "https://chatgpt.com"  # which has the models of OpenAI's logins


def address_of(base_url: str | None, dialect: DialectName, path: str) -> str:
    """Return where a request for this path goes."""
    if base_url is None:
        return (_CHATGPT if path.startswith("/backend-api/") else _SERVICES[dialect]) + path
    base_url = base_url.rstrip("/")
    if re.search(r"/v\d+\w*$", base_url):  # https://openrouter.ai/api/v1: it names the version, as the path does
        path = re.sub(r"^/v\d+\w*(?=/)", "", path)
    return base_url + path


def key_header(dialect: DialectName, key: str) -> tuple[str, str]:
    """Return the header by which a key goes to the service."""
    if dialect == "anthropic":
        return "x-api-key", key
    return ("x-goog-api-key", key) if dialect == "gemini" else ("Authorization", f"Bearer {key}")


ACCOUNT_HEADER = "chatgpt-account-id"


def account_of(login: str) -> str | None:
    """Return the account of an OpenAI login, which is a JSON Web Token; None for other logins."""
    claims = login.split(".")[1] if login.count(".") == 2 else ""
    try:
        found = json_object(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    except ValueError:
        return None
    return text_at(found, "https://api.openai.com/auth", "chatgpt_account_id") or None


# --- requests to models ---

_MOST_NODES = 2_000_000  # of a request: a hostile one must not fill the memory when it is parsed
_MOST_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRequest:
    """A request to a model."""

    model: str | None
    max_output_tokens: int | None
    body: bytes = field(repr=False)  # as it is forwarded


def read_model_request(dialect: DialectName, path: str, body: bytes) -> ModelRequest | None:
    """Read a request; None if it is no JSON object, or has too many members."""
    data = json_object(body) if sum(map(body.count, (b",", b"[", b"{"))) < _MOST_NODES else None
    if data is None:
        return None
    if dialect in ("gemini", "code_assist"):
        inner = data.get("request") if dialect == "code_assist" else data
        most = number_at(inner, "generationConfig", "maxOutputTokens")
    else:
        most = next((one for name in _MOST_TOKENS if (one := number_at(data, name)) is not None), None)
    model = unquote(path.rpartition("/")[2].partition(":")[0]) if dialect == "gemini" else text_at(data, "model")
    return ModelRequest(
        model=model or None,
        max_output_tokens=None if most is None else int(most),
        body=_with_usage(data, body) if dialect == "chat" else body,
    )


def _with_usage(data: Event, body: bytes) -> bytes:
    """Ask a stream of chat completions to tell its tokens; no other stream has to be asked."""
    options = data.get("stream_options") or {}
    if not data.get("stream") or not isinstance(options, dict) or at(options, "include_usage") is True:
        return body
    return json.dumps({**data, "stream_options": {**options, "include_usage": True}}).encode()


# --- answers of the gateway itself ---

# Programs try other refusals again: with these, tried with each program, one request is the last.
_STOP_STATUS: Mapping[DialectName, int] = {
    "anthropic": 402,
    "responses": 400,
    "chat": 403,
    "gemini": 400,
    "code_assist": 400,
}


def stop_status(dialect: DialectName) -> int:
    """Return the status of the answer that makes a program stop at once."""
    return _STOP_STATUS[dialect]


def error_body(dialect: DialectName, status: int, message: str) -> bytes:
    """Return an error as the service of that dialect writes it."""
    error: dict[str, object]
    if dialect in ("gemini", "code_assist"):
        error = {"error": {"code": status, "message": message, "status": "FAILED_PRECONDITION"}}
    elif dialect == "anthropic":
        error = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    else:
        error = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
    return json.dumps(error).encode()
