"""The HTTP side of the model server: routes, keys, streams, and the log of requests."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from farro.store.ledger import Usage
from model_server import replies
from model_server.conversation import Conversation, Dialect, read
from model_server.scenarios import SCENARIOS, BreakOff, Fail, Hang, Say, Turn, Turns, turn_of
from support import eventually

_PATHS: Sequence[tuple[Dialect, re.Pattern[str]]] = (
    ("anthropic", re.compile(r"/v1/messages$")),
    ("responses", re.compile(r"/responses$")),
    ("chat", re.compile(r"/chat/completions$")),
    ("gemini", re.compile(r"/models/[^/:]+:(streamGenerateContent|generateContent)$")),
    ("code_assist", re.compile(r"/v1internal:(streamGenerateContent|generateContent)$")),
)
_MODELS = ("claude-sonnet-4-5", "gpt-5-codex", "gemini-2.5-pro")


@dataclass(kw_only=True)
class ServedRequest:
    """One request and what became of it. `usage` is what the server bills: what it told in its answer."""

    at_s: float  # by the clock
    method: str
    path: str  # with the query
    headers: Mapping[str, str] = field(repr=False)  # lower-case names
    body: bytes = field(repr=False)
    credential: str  # the key or login that came with it
    dialect: Dialect | None = None  # None: no request to a model
    model: str | None = None
    scenario: str | None = None
    turn: int = 0
    streamed: bool = False
    tools: Sequence[str] = ()  # that the program offers
    status: int = 0
    usage: Usage | None = None
    complete: bool = False  # the whole answer was sent

    def to_json(self) -> dict[str, Any]:
        said = {name: value for name, value in vars(self).items() if name not in ("headers", "body")}
        return {**said, "usage": None if self.usage is None else self.usage.to_json()}


class ModelServer:
    """A model server on a free port of loopback, on threads of this process.

    `keys`: the keys and logins that it accepts; else every one that does not begin with `bad`. `within`: the folders in
    which programs may be told to write files.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        scenarios: Mapping[str, Turns] | None = None,
        keys: Collection[str] | None = None,
        within: Sequence[str] | None = None,
        on_answered: Callable[[ServedRequest], object] = lambda request: None,
    ) -> None:
        self.scenarios = {**SCENARIOS, **(scenarios or {})}
        self.keys = keys
        self.within = [tempfile.gettempdir(), "/dev/shm", os.getcwd()] if within is None else within
        self.on_answered = on_answered
        self.requests: list[ServedRequest] = []
        self.over = threading.Event()
        self._limited_until_s = 0.0
        self._server = _Server(("127.0.0.1", port), self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="models", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def model_requests(self) -> list[ServedRequest]:
        return [request for request in self.requests if request.dialect is not None]

    @property
    def usage(self) -> Usage:
        """Return the sum of what was billed."""
        billed = [request.usage for request in self.requests if request.usage is not None]
        return Usage(
            input_tokens=sum(one.input_tokens for one in billed),
            output_tokens=sum(one.output_tokens for one in billed),
            cache_read_tokens=sum(one.cache_read_tokens for one in billed),
            cache_write_tokens=sum(one.cache_write_tokens for one in billed),
        )

    def limit(self, seconds: float) -> float:
        """Answer every request with a usage limit from now on; return when it resets."""
        self._limited_until_s = time.time() + seconds
        return self._limited_until_s

    @property
    def limit_left_s(self) -> int | None:
        left_s = self._limited_until_s - time.time()
        return None if left_s <= 0 else int(left_s) + 1

    def wait_for(self, count: int) -> None:
        """Wait until that many requests to models have arrived."""
        eventually(lambda: len(self.model_requests) >= count, f"fewer than {count} requests came")

    def close(self) -> None:
        self.over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.close_all()

    def __enter__(self) -> ModelServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], models: ModelServer) -> None:
        self.models = models
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def close_all(self) -> None:
        with self._lock:
            still_open = list(self._open)
        for connection in still_open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]:
            thread.join(1)
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        served = self._served(b"")
        if urlsplit(self.path).path.endswith("/models"):
            data = [{"id": name, "object": "model", "type": "model"} for name in _MODELS]
            models = [{"name": f"models/{name}"} for name in _MODELS]
            self._send(served, 200, {"object": "list", "data": data, "models": models})
        else:
            self._send(served, 404, _unknown(self.path))

    do_HEAD = do_GET  # noqa: N815 - the name that the library calls

    def do_POST(self) -> None:
        data = self._body()
        served = self._served(data)
        path = urlsplit(self.path).path
        dialect = next((name for name, pattern in _PATHS if pattern.search(path)), None)
        try:
            if dialect is None:
                self._send(served, *_beside(path))
                return
            conversation = read(dialect, path, json.loads(data))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            self._send(served, 400, {"error": {"message": f"cannot be read: {error!r}"}})
            return
        name, number, wait_s = conversation.scenario()
        served.dialect, served.model, served.streamed = dialect, conversation.model, conversation.streamed
        served.scenario, served.turn, served.tools = name, number, sorted(conversation.tools)
        turn = self._turn(served, name, number, wait_s)
        self._answer(served, dialect, conversation, turn)

    def _turn(self, served: ServedRequest, name: str, number: int, wait_s: int | None) -> Turn:
        models = self.server.models
        key = served.credential
        if not key or (key.startswith("bad") if models.keys is None else key not in models.keys):
            return Fail(kind="bad_key")
        if (left_s := models.limit_left_s) is not None:
            return Fail(kind="usage_limit", wait_s=left_s)
        return turn_of(models.scenarios.get(name, [Say(content=f"There is no scenario {name}.")]), number, wait_s)

    def _answer(self, served: ServedRequest, dialect: Dialect, conversation: Conversation, turn: Turn) -> None:
        if isinstance(turn, Fail) and not turn.in_stream:
            login = self.headers.get("Authorization", "").startswith("Bearer ") and dialect != "chat"
            refused = replies.refusal(dialect, turn, login=login)
            self._send(served, refused.status, refused.body, refused.headers)
            return
        if isinstance(turn, Hang) and not turn.begun:
            self.server.models.over.wait()
            return
        reply = replies.reply_to(dialect, conversation, turn, self.server.models.within)
        if conversation.streamed:
            self._stream(served, dialect, reply, turn)
        elif isinstance(turn, (Hang, BreakOff)):
            self._half(served, replies.whole(dialect, reply), hangs=isinstance(turn, Hang))
        else:
            served.usage = reply.usage
            self._send(served, 200, replies.whole(dialect, reply))

    def _stream(self, served: ServedRequest, dialect: Dialect, reply: replies.Reply, turn: Turn) -> None:
        query = parse_qs(urlsplit(self.path).query)
        as_list = dialect in ("gemini", "code_assist") and query.get("alt") != ["sse"]
        self.send_response(200)
        self.send_header("Content-Type", "application/json" if as_list else "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        served.status = 200
        events = list(replies.events(dialect, reply))
        for at, event in enumerate(events):
            if at == 1 and self._breaks_off(served, dialect, turn):
                return
            if reply.delay_s:
                time.sleep(reply.delay_s)
            served.usage = _told(dialect, reply, at, len(events))
            self._chunk(_listed(event, at, len(events)) if as_list else _as_event(event))
        self._end_stream(served)

    def _breaks_off(self, served: ServedRequest, dialect: Dialect, turn: Turn) -> bool:
        """End the answer after its first event, if the turn says so."""
        if isinstance(turn, Fail):
            self._chunk(_as_event(replies.error_event(dialect, turn)))
        elif isinstance(turn, Hang):
            self.server.models.over.wait()
            return True
        elif not isinstance(turn, BreakOff):
            return False
        if isinstance(turn, BreakOff) and turn.cut:
            self.close_connection = True
        else:
            self._end_stream(served)
        return True

    def _half(self, served: ServedRequest, body: Any, *, hangs: bool) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2])
        self.wfile.flush()
        served.status = 200
        if hangs:
            self.server.models.over.wait()
        self.close_connection = True

    def _end_stream(self, served: ServedRequest) -> None:
        self._finish(served)
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _send(self, served: ServedRequest, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        served.status = status
        self._finish(served)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _finish(self, served: ServedRequest) -> None:
        """Log the end of an answer just before its last bytes, so that a client that has read them finds it."""
        served.complete = True
        self.server.models.on_answered(served)

    def _served(self, body: bytes) -> ServedRequest:
        headers = {name.lower(): value for name, value in self.headers.items()}
        key = headers.get("x-api-key") or headers.get("x-goog-api-key")
        key = key or headers.get("authorization", "").removeprefix("Bearer ")
        key = key or parse_qs(urlsplit(self.path).query).get("key", [""])[0]
        served = ServedRequest(
            at_s=time.time(), method=self.command, path=self.path, headers=headers, body=body, credential=key
        )
        self.server.models.requests.append(served)
        return served

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            data = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(data) if self.headers.get("Content-Encoding") == "gzip" else data


def _told(dialect: Dialect, reply: replies.Reply, at: int, count: int) -> Usage | None:
    """Return the usage that the events up to this one have told."""
    if at == count - 1 or (dialect == "chat" and at == count - 2):
        return reply.usage if dialect != "chat" or reply.conversation.wants_usage else None
    if dialect == "anthropic" and at >= 0:
        return _with_output(reply.usage, reply.usage.output_tokens if at == count - 2 else 1)
    if dialect in ("gemini", "code_assist"):
        return _with_output(reply.usage, 1)
    return None


def _with_output(usage: Usage, tokens: int) -> Usage:
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )


def _as_event(event: replies.Event) -> bytes:
    name, data = event
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


def _listed(event: replies.Event, at: int, count: int) -> bytes:
    """Return an event of Gemini's stream without `alt=sse`: one JSON list."""
    return f"{'[' if at == 0 else ','}{json.dumps(event[1])}\n{']' if at == count - 1 else ''}".encode()


def _beside(path: str) -> tuple[int, Any]:
    """Answer what programs ask besides models."""
    if path.endswith(("/count_tokens", ":countTokens")):
        return 200, {"input_tokens": 100, "totalTokens": 100}
    if path.endswith(":loadCodeAssist"):
        tier = {"id": "standard-tier", "name": "Gemini Code Assist", "isDefault": True}
        return 200, {"currentTier": tier, "allowedTiers": [tier], "cloudaicompanionProject": "a-project"}
    if path.endswith(":onboardUser"):
        return 200, {"done": True, "response": {"cloudaicompanionProject": {"id": "a-project"}}}
    if "/v1internal:" in path:
        return 200, {}
    return 404, _unknown(path)


def _unknown(path: str) -> Any:
    return {"error": {"message": f"there is no {path} here", "type": "not_found_error"}}
