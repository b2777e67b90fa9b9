"""HTTP servers on loopback that speak the providers' wire formats, well or badly, and count what reaches them."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Reply = Callable[["FakeProvider", socket.socket, "ReceivedRequest"], None]


@dataclass(frozen=True, kw_only=True)
class ReceivedRequest:
    """One request as it was received."""

    line: str
    headers: Mapping[str, str]
    body: Any
    raw: bytes

    @property
    def streamed(self) -> bool:
        return "streamGenerateContent" in self.line or bool(self.body.get("stream"))


class FakeProvider:
    """Gives `replies` in order, and repeats the last one."""

    def __init__(self, kind: str, *replies: Reply) -> None:
        self.kind = kind
        self.replies = list(replies)
        self.asked: list[ReceivedRequest] = []
        self.connections = 0
        self.left = threading.Event()  # a client hung up before the reply was complete
        self.arrived = threading.Event()
        self.over = threading.Event()  # the test is over
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def base_url(self) -> str:
        path = {"openai": "/v1", "openrouter": "/api/v1", "google": ""}[self.kind]
        return f"http://127.0.0.1:{self.port}{path}"

    def close(self) -> None:
        self.over.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(5)

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self.connections += 1
                self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.settimeout(0.05)
            while not self.over.is_set() and (asked := self._read(connection)) is not None:
                with self._lock:
                    self.asked.append(asked)
                    reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
                self.arrived.set()
                reply(self, connection, asked)

    def _read(self, connection: socket.socket) -> ReceivedRequest | None:
        data = b""
        while b"\r\n\r\n" not in data:
            if not (more := self._some(connection)):
                return None
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        line, *rest = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in rest)}
        while len(body) < int(headers.get("content-length", "0")):
            if not (more := self._some(connection)):
                return None  # it hung up in the middle of its request
            body += more
        return ReceivedRequest(line=line, headers=headers, body=json.loads(body or b"{}"), raw=head + body)

    def _some(self, connection: socket.socket) -> bytes:
        while not self.over.is_set():
            with contextlib.suppress(TimeoutError):
                return connection.recv(65536)
        return b""

    def wait_for_goodbye(self, connection: socket.socket) -> None:
        """Wait until the client hangs up, or the test is over."""
        with contextlib.suppress(ConnectionError):
            while self._some(connection):
                pass
        if not self.over.is_set():
            self.left.set()


@contextlib.contextmanager
def serving(kind: str, *replies: Reply) -> Iterator[FakeProvider]:
    server = FakeProvider(kind, *replies)
    try:
        yield server
    finally:
        server.close()


# Bodies in the providers' own formats.

USAGE = {"input": 120, "output": 7, "cached": 64}


def whole(kind: str, text: str, *, finish: str = "stop", usage: bool = True, cost: float | None = 0.0042) -> Any:
    """Return the body of a reply that is not streamed."""
    if kind == "google":
        return _google(text, finish, usage)
    said = {"role": "assistant", "content": text}
    body: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": "model-that-answered",
        "choices": [{"index": 0, "message": said, "finish_reason": finish, "logprobs": None}],
    }
    if usage:
        body["usage"] = _usage(kind, cost)
    if kind == "openrouter":
        body["provider"] = "Somebody"
        body["choices"][0]["native_finish_reason"] = finish
    return body


def events(kind: str, pieces: list[str], *, finish: str | None = "stop", usage: bool = True) -> list[bytes]:
    """Return a streamed reply, event by event."""
    if kind == "google":
        said = [_google(piece, None, False) for piece in pieces]
        if finish is not None:
            said.append(_google("", finish, usage))
        return [_event(each) for each in said]
    frame = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_790_000_000,
        "model": "model-that-answered",
        **({"provider": "Somebody"} if kind == "openrouter" else {}),
    }

    def choice(delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
        native = {"native_finish_reason": finish} if kind == "openrouter" else {}
        return {**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **native}]}

    said = [choice({"role": "assistant", "content": piece}, None) for piece in pieces]
    if finish is None:
        return [_event(each) for each in said]
    said.append(choice({}, finish))
    if usage:
        said.append({**frame, "choices": [], "usage": _usage(kind, 0.0042)})
    return [*(_event(each) for each in said), b"data: [DONE]\n\n"]


def _event(data: Any) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def _usage(kind: str, cost: float | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "prompt_tokens": USAGE["input"],
        "completion_tokens": USAGE["output"],
        "total_tokens": USAGE["input"] + USAGE["output"],
        "prompt_tokens_details": {"cached_tokens": USAGE["cached"]},
    }
    return {**told, "cost": cost} if kind == "openrouter" and cost is not None else told


_GOOGLE_FINISH = {"stop": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}


def _google(text: str, finish: str | None, usage: bool) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": [{"text": text}] if text else []}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = _GOOGLE_FINISH[finish]
    body: dict[str, Any] = {"candidates": [candidate], "modelVersion": "model-that-answered", "responseId": "r1"}
    if usage:
        body["usageMetadata"] = {
            "promptTokenCount": USAGE["input"],
            "candidatesTokenCount": USAGE["output"],
            "cachedContentTokenCount": USAGE["cached"],
            "totalTokenCount": USAGE["input"] + USAGE["output"],
        }
    return body


def complaint(kind: str, status: int, message: str, code: str = "") -> Any:
    """Return the body of an error reply."""
    if kind == "google":
        names = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED"}
        return {"error": {"code": status, "message": message, "status": names.get(status, "INTERNAL")}}
    if kind == "openrouter":
        return {"error": {"code": status, "message": message, "metadata": {}}}
    return {"error": {"message": message, "type": code or "error", "param": None, "code": code or None}}


# Behaviours of a server.


def send(connection: socket.socket, status: int, headers: Mapping[str, str], body: bytes) -> None:
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in headers.items())]
    connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


JSON = {"Content-Type": "application/json"}
EVENTS = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}


def says(text: str = "forty-two", **how: Any) -> Reply:
    """Reply with a good answer, streamed if requested."""

    def reply(server: FakeProvider, connection: socket.socket, asked: ReceivedRequest) -> None:
        if not asked.streamed:
            body = json.dumps(whole(server.kind, text, **how)).encode()
            send(connection, 200, {**JSON, "Content-Length": str(len(body))}, body)
            return
        pieces = [text[start : start + 4] for start in range(0, len(text), 4)]
        send(connection, 200, EVENTS, b"".join(map(chunk, events(server.kind, pieces, **how))) + b"0\r\n\r\n")

    return reply


def answers(status: int, message: str = "no", code: str = "", **headers: str) -> Reply:
    """Reply with an error in the provider's own form. Header names are written with _ for -."""

    def reply(server: FakeProvider, connection: socket.socket, asked: ReceivedRequest) -> None:
        body = json.dumps(complaint(server.kind, status, message, code)).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        send(connection, status, {**JSON, **named, "Content-Length": str(len(body))}, body)

    return reply


def raw(status: int, body: bytes, **headers: str) -> Reply:
    def reply(server: FakeProvider, connection: socket.socket, asked: ReceivedRequest) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        send(connection, status, {**JSON, "Content-Length": str(len(body)), **named}, body)

    return reply


def hangs(server: FakeProvider, connection: socket.socket, asked: ReceivedRequest) -> None:
    """Read the request and never reply."""
    server.wait_for_goodbye(connection)


def hangs_in_the_middle(server: FakeProvider, connection: socket.socket, asked: ReceivedRequest) -> None:
    if asked.streamed:
        send(connection, 200, EVENTS, b"".join(map(chunk, events(server.kind, ["fort"], finish=None))))
    else:
        send(connection, 200, {**JSON, "Content-Length": "5000"}, b'{"id": "chat')
    server.wait_for_goodbye(connection)


def is_cut(server: FakeProvider, connection: socket.socket, asked: ReceivedRequest) -> None:
    """Cut the connection in the middle of the reply."""
    if asked.streamed:
        send(connection, 200, EVENTS, b"".join(map(chunk, events(server.kind, ["fort"], finish=None))))
    else:
        send(connection, 200, {**JSON, "Content-Length": "5000"}, b'{"id": "chat')
    connection.shutdown(socket.SHUT_RDWR)
    raise ConnectionAbortedError


def ends_early(server: FakeProvider, connection: socket.socket, asked: ReceivedRequest) -> None:
    """End a stream properly, but without the event that says it is finished."""
    data = b"".join(map(chunk, events(server.kind, ["fort"], finish=None)))
    send(connection, 200, EVENTS, data + b"0\r\n\r\n")


def hangs_up(server: FakeProvider, connection: socket.socket, asked: ReceivedRequest) -> None:
    """Read the request and close the connection without a reply."""
    connection.shutdown(socket.SHUT_RDWR)
    raise ConnectionAbortedError


def drips(server: FakeProvider, connection: socket.socket, asked: ReceivedRequest) -> None:
    """Send a little now and then, for ever: no read ever times out."""
    send(connection, 200, EVENTS if asked.streamed else {**JSON, "Transfer-Encoding": "chunked"}, b"")
    with contextlib.suppress(OSError):
        while not server.over.wait(0.02):
            connection.sendall(chunk(events(server.kind, ["x"], finish=None)[0] if asked.streamed else b" "))
    if not server.over.is_set():
        server.left.set()


def floods(server: FakeProvider, connection: socket.socket, asked: ReceivedRequest) -> None:
    """Send more than any answer has."""
    send(connection, 200, EVENTS if asked.streamed else {**JSON, "Transfer-Encoding": "chunked"}, b"")
    filling = chunk(events(server.kind, ["x" * (1 << 20)], finish=None)[0])
    with contextlib.suppress(OSError):
        while not server.over.is_set():
            connection.sendall(filling)
    if not server.over.is_set():
        server.left.set()
