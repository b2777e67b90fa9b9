"""Requests reach the service with the key, and its answers reach the program unchanged, in every dialect."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from agents.gateway.gateway_rig import (
    CHUNKED,
    KEY,
    LOGIN,
    TOKEN_USD,
    RawService,
    Runs,
    chunk,
    response,
)
from farro.agents.gateway import server as gateway_server
from farro.store.ledger import NO_TOKENS
from model_server import Dialect, ModelServer
from model_server.client import DIALECTS, ask, asking, body_of, key_header, path_of, prompt_model
from support import eventually

ALL = pytest.mark.parametrize("dialect", DIALECTS)
WAYS = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])


@ALL
@WAYS
def test_every_token_that_the_service_bills_is_in_the_ledger(
    runs: Runs, server: ModelServer, dialect: Dialect, streamed: bool
) -> None:
    run = runs.start(server.base_url)
    assert run.ask(dialect, "SCENARIO: prose", streamed=streamed).status == 200
    assert run.ask(dialect, "SCENARIO: edit", streamed=streamed, replies=["Well."], model="b-model").status == 200
    billed = [request.usage or NO_TOKENS for request in server.model_requests]
    assert [call.usage for call in run.meter.calls] == billed
    assert billed[1].cache_read_tokens > 0
    assert [(call.end, call.charge.model) for call in run.meter.calls] == [
        ("answered", "a-model"),
        ("answered", "b-model"),
    ]
    report = run.admission.report()
    assert (report.requests, report.model, report.trouble, report.exceeded) == (2, "b-model", None, None)
    assert report.usage == server.usage
    assert report.cost_usd == (server.usage.input_tokens + server.usage.output_tokens) * TOKEN_USD
    assert {request.credential for request in server.requests} == {KEY}
    assert "providers" not in run.meter.threads


@ALL
@WAYS
def test_an_answer_is_passed_on_byte_for_byte(
    runs: Runs, server: ModelServer, dialect: Dialect, streamed: bool
) -> None:
    asked = {**body_of(dialect, "SCENARIO: edit", streamed=streamed), "stream_options": {"include_usage": True}}
    whole = ask(server.base_url, path_of(dialect, streamed=streamed), asked, key_header(dialect, KEY)).body
    odd = b": a comment\r\n\r\n" + whole.replace(b": ", b":   ") if streamed else whole.replace(b": ", b" :\t")
    kind = "text/event-stream" if streamed else "application/json"
    with RawService(response(odd, kind=kind, X_Of_The_Service="yes", Set_Cookie="a=b")) as service:
        run = runs.start(service.base_url)
        answer = run.ask(dialect, "SCENARIO: edit", streamed=streamed)
    assert answer.body == odd
    assert answer.headers["x-of-the-service"] == "yes"
    assert "set-cookie" not in answer.headers
    assert run.kept[0].response == odd
    assert run.kept[0].whole
    assert run.meter.ends == ["answered"]
    assert run.meter.calls[0].usage is not None


@ALL
def test_a_request_is_passed_on_byte_for_byte(runs: Runs, dialect: Dialect) -> None:
    body = json.dumps({**body_of(dialect, "äöü \U0001f33e", streamed=False), "odd": [1.0, None]}, indent=3).encode()
    with RawService(response(b"{}")) as service:
        run = runs.start(service.base_url)
        own = {"X-Program": "p/1", "Accept-Encoding": "br", "TE": "gzip", "Connection": "X-Hop", "X-Hop": "a"}
        headers = {**key_header(dialect, run.admission.token), **own}
        ask(run.admission.base_url, path_of(dialect, streamed=False), body, headers)
    head, _, sent = service.requests[0].partition(b"\r\n\r\n")
    assert sent == body == run.kept[0].request
    lines = {line.lower() for line in head.split(b"\r\n")}
    assert {b"x-program: p/1", b"accept-encoding: identity"} <= lines
    assert not any(line.startswith((b"te:", b"x-hop:", b"connection: x")) for line in lines)


def test_the_beginning_of_a_stream_comes_before_the_rest_exists(runs: Runs) -> None:
    first, second = (f'data: {{"n": {number}}}\n\n'.encode() for number in (1, 2))
    with RawService(CHUNKED + chunk(first), chunk(second) + b"0\r\n\r\n", waits=True) as service:
        run = runs.start(service.base_url)
        headers = key_header("chat", run.admission.token)
        with asking(run.admission.base_url, path_of("chat"), body_of("chat", "Hello"), headers) as answer:
            assert answer.read1() == first
            service.go_on.release()
            assert answer.read1() == second


def test_a_stream_of_chat_completions_is_asked_for_its_tokens(runs: Runs, server: ModelServer) -> None:
    run = runs.start(server.base_url)
    options = {"stream_options": {"other": 1}}
    body = {**body_of("chat", "SCENARIO: ok"), **options}
    ask(run.admission.base_url, path_of("chat"), body, key_header("chat", run.admission.token))
    assert json.loads(server.requests[0].body)["stream_options"] == {"other": 1, "include_usage": True}
    assert json.loads(run.kept[0].request)["stream_options"] == {"other": 1}
    assert run.meter.calls[0].usage == server.usage


@ALL
def test_what_the_request_may_cost_is_known_before_it_is_sent(
    runs: Runs, server: ModelServer, dialect: Dialect
) -> None:
    run = runs.start(server.base_url)
    run.ask(dialect, "SCENARIO: ok", max_tokens=321, model="one/two" if dialect == "chat" else "one-two")
    ((model, size, most),) = run.meter.reserved
    assert (model, most) == ("one/two" if dialect == "chat" else "one-two", 321)
    assert size == len(server.requests[0].body)


@ALL
def test_a_login_takes_the_place_of_the_token(runs: Runs, server: ModelServer, dialect: Dialect) -> None:
    run = runs.start(server.base_url, login=LOGIN)
    assert run.ask(dialect, "SCENARIO: ok").status == 200
    (request,) = server.requests
    assert request.headers["authorization"] == f"Bearer {LOGIN}"
    assert not request.headers.keys() & {"x-api-key", "x-goog-api-key"}


def test_the_account_of_a_login_takes_the_place_of_the_dummys(runs: Runs) -> None:
    claims = json.dumps({"https://api.openai.com/auth": {"chatgpt_account_id": "account-7"}}).encode()
    login = f"head.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.signature"
    for real, account in ((login, "account-7"), (LOGIN, "farro"), ("a.b!.c", "farro"), ("a.W10.c", "farro")):
        with ModelServer() as server:
            run = runs.start(server.base_url, login=real)
            headers = {"Authorization": f"Bearer {run.admission.token}", "ChatGPT-Account-ID": "farro"}
            body = body_of("responses", "SCENARIO: ok")
            assert ask(run.admission.base_url, "/backend-api/codex/responses", body, headers).status == 200
        assert server.requests[0].headers["chatgpt-account-id"] == account


def test_a_key_in_the_query_is_replaced(runs: Runs, server: ModelServer) -> None:
    run = runs.start(server.base_url)
    path = f"/v1beta/models/a-model:generateContent?a=%2F&key={run.admission.token}&b=2"
    assert ask(run.admission.base_url, path, body_of("gemini", "SCENARIO: ok")).status == 200
    assert server.requests[0].path == "/v1beta/models/a-model:generateContent?a=%2F&b=2"
    assert (server.requests[0].credential, run.kept[0].path) == (KEY, server.requests[0].path)


def test_a_login_of_the_program_passes_with_the_token_in_the_path(runs: Runs, server: ModelServer) -> None:
    run = runs.start(server.base_url, passes_login=True)
    assert run.admission.base_url.endswith(run.admission.token)
    answer = run.ask("anthropic", "SCENARIO: ok", key=LOGIN)
    assert answer.status == 200
    assert server.requests[0].credential == LOGIN
    assert server.requests[0].path == run.kept[0].path == "/v1/messages"
    bare = f"http://127.0.0.1:{run.admission.port}"
    assert prompt_model(bare, "anthropic", "SCENARIO: ok", key=run.admission.token).status == 401
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("method", "path", "dialect"),
    [
        ("GET", "/v1/models", "chat"),
        ("GET", "/v1/models/a-model", "chat"),
        ("GET", "/v1beta/models?pageSize=5", "gemini"),
        ("POST", "/v1/messages/count_tokens?beta=true", "anthropic"),
        ("POST", "/v1beta/models/a-model:countTokens", "gemini"),
        ("POST", "/v1internal:loadCodeAssist", "code_assist"),
    ],
)
def test_what_costs_nothing_is_not_metered(
    runs: Runs, server: ModelServer, method: str, path: str, dialect: Dialect
) -> None:
    run = runs.start(server.base_url)
    body = {} if method == "POST" else None
    answer = ask(run.admission.base_url, path, body, key_header(dialect, run.admission.token), method)
    direct = ask(server.base_url, path, body, key_header(dialect, KEY), method)
    assert (answer.status, answer.body) == (direct.status, direct.body)
    assert server.requests[0].path == path
    assert server.requests[0].credential == KEY
    assert run.meter.reserved == run.kept == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/embeddings"),
        ("DELETE", "/v1/models/a-model"),
        ("GET", "/v1/messages"),
        ("POST", "/v1/messages/../files"),
        ("POST", "//v1/messages"),
        ("POST", "/v1/organizations"),
        ("GET", "/backend-api/wham/settings"),
        ("GET", "/"),
        ("GET", "http://169.254.169.254/v1/models"),
    ],
)
def test_anything_else_is_refused(runs: Runs, server: ModelServer, method: str, path: str) -> None:
    run = runs.start(server.base_url)
    with socket.create_connection(("127.0.0.1", run.admission.port)) as connection:
        head = f"{method} {path} HTTP/1.1\r\nHost: h\r\nx-api-key: {run.admission.token}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode())
        assert b" 404 " in connection.recv(1 << 16).splitlines()[0]
    assert server.requests == []


def test_a_request_that_cannot_be_read_is_not_sent(runs: Runs, server: ModelServer) -> None:
    run = runs.start(server.base_url)
    for body in (b"[]", b"{", b"\xff", b""):
        path = path_of("anthropic")
        assert ask(run.admission.base_url, path, body, key_header("anthropic", run.admission.token)).status == 400
    assert server.requests == run.meter.reserved == []


def test_the_version_is_in_the_address_once(runs: Runs, server: ModelServer) -> None:
    for base, path in (("/api/v1", "/api/v1/chat/completions"), ("/proxy/", "/proxy/v1/chat/completions")):
        runs.start(server.base_url + base).ask("chat", "SCENARIO: ok")
        assert server.requests[-1].path == path


def test_the_proxy_of_the_worker_is_used(runs: Runs, server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.base_url)
    monkeypatch.setenv("no_proxy", "direct.example")
    run = runs.start("http://models.example")
    assert run.ask("responses", "SCENARIO: ok").status == 200
    assert server.requests[0].path == "http://models.example/v1/responses"


def test_two_runs_at_once_do_not_mix(runs: Runs) -> None:
    with ModelServer(keys={KEY}) as first, ModelServer(keys={LOGIN}) as second:
        one, two = runs.start(first.base_url), runs.start(second.base_url, login=LOGIN)
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(run.ask, "chat", "SCENARIO: long") for run in (one, two) * 4]
            assert [answer.result().status for answer in asked] == [200] * 8
        for run, server in ((one, first), (two, second)):
            assert len(server.requests) == len(run.meter.calls) == len(run.kept) == 4
            assert run.admission.report().usage == server.usage
            assert sorted(exchange.number for exchange in run.kept) == [1, 2, 3, 4]
    assert one.admission.port == two.admission.port
    assert one.admission.token != two.admission.token


def test_a_gemini_stream_that_is_one_list_is_counted(runs: Runs, server: ModelServer) -> None:
    run = runs.start(server.base_url)
    path = "/v1beta/models/a-model:streamGenerateContent"
    answer = ask(
        run.admission.base_url, path, body_of("gemini", "SCENARIO: prose"), key_header("gemini", run.admission.token)
    )
    assert len(answer.json) == 4
    assert run.meter.calls[0].usage == server.usage


def test_tokens_that_the_service_does_not_tell_are_unknown(runs: Runs) -> None:
    with RawService(response(b'{"model": "m"}')) as service:
        run = runs.start(service.base_url)
        run.ask("chat", "Hello", streamed=False)
    assert [(call.end, call.usage, call.estimated) for call in run.meter.calls] == [("answered", None, True)]
    assert run.admission.report().cost_usd is None


def test_a_long_answer_is_kept_in_part_and_passed_on_whole(runs: Runs) -> None:
    body = b'{"text": "%s", "usage": {"input_tokens": 3, "output_tokens": 4}}' % (b"x" * (9 << 20))
    with RawService(response(body)) as service:
        run = runs.start(service.base_url)
        assert run.ask("responses", "Hello", streamed=False).body == body
    assert not run.kept[0].whole
    assert len(run.kept[0].response) == 8 << 20


def test_a_slow_program_holds_up_no_other(runs: Runs, server: ModelServer) -> None:
    run = runs.start(server.base_url)
    body = json.dumps(body_of("anthropic", "SCENARIO: ok", streamed=False)).encode()
    key = f"x-api-key: {run.admission.token}"
    head = f"POST /v1/messages HTTP/1.1\r\nHost: h\r\n{key}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", run.admission.port)) as slow:
        for byte in head.encode():
            slow.sendall(bytes([byte]))
        slow.sendall(body[:10])
        assert run.ask("anthropic", "SCENARIO: ok").status == 200
        slow.sendall(body[10:])
        assert b" 200 " in slow.recv(1 << 16).splitlines()[0]
    assert len(server.requests) == 2


def test_a_request_larger_than_any_is_refused(runs: Runs, server: ModelServer) -> None:
    run = runs.start(server.base_url)
    body = b'{"model": "%s"}' % (b"x" * (32 << 20))
    answer = ask(run.admission.base_url, "/v1/messages", body, key_header("anthropic", run.admission.token))
    assert answer.status == 413
    assert server.requests == []


def test_a_request_with_too_many_members_is_not_parsed(runs: Runs, server: ModelServer) -> None:
    run = runs.start(server.base_url)
    body = b'{"model": [%s[]]}' % (b"[]," * 2_000_000)
    answer = ask(run.admission.base_url, "/v1/messages", body, key_header("anthropic", run.admission.token))
    assert answer.status == 400
    assert server.requests == []


def test_the_requests_of_a_run_hold_a_bounded_amount_of_memory(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_server, "_MOST", 10 << 20)
    with RawService(b"", b"", waits=True) as service:
        run = runs.start(service.base_url)
        large = json.dumps({**body_of("anthropic", "Hello"), "x": "x" * (3 << 20)}).encode()

        def asked() -> int:
            with contextlib.suppress(OSError, http.client.HTTPException):
                headers = key_header("anthropic", run.admission.token)
                return ask(run.admission.base_url, path_of("anthropic"), large, headers).status
            return 0

        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(asked) for _ in range(4)]
            eventually(lambda: [one for one in answers if one.done()])
            run.admission.close()
        assert sorted(one.result() for one in answers) == [0, 0, 0, 413]


def test_a_run_is_served_on_a_socket_of_its_own(runs: Runs, server: ModelServer) -> None:
    run, other = runs.start(server.base_url), runs.start(server.base_url)
    listener = socket.create_server(("127.0.0.1", 0))
    base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    end = run.admission.serve(listener)
    assert prompt_model(base_url, "chat", "SCENARIO: ok", key=run.admission.token).status == 200
    assert prompt_model(base_url, "chat", "SCENARIO: ok", key=other.admission.token).status == 401
    kept_open = http.client.HTTPConnection(base_url.removeprefix("http://"))
    kept_open.request("GET", "/v1/models", headers=key_header("chat", run.admission.token))
    assert kept_open.getresponse().read()
    end()
    with pytest.raises(OSError):
        prompt_model(base_url, "chat", "SCENARIO: ok", key=run.admission.token)
    assert kept_open.sock is not None
    assert kept_open.sock.recv(1) == b""  # else it would keep the sandbox's network namespace
    kept_open.close()
    assert run.ask("chat", "SCENARIO: ok").status == 200
    end()


def test_a_socket_of_a_run_ends_with_it(runs: Runs, server: ModelServer) -> None:
    run = runs.start(server.base_url)
    listener = socket.create_server(("127.0.0.1", 0))
    base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    run.admission.serve(listener)
    run.admission.close()
    with pytest.raises(OSError):
        prompt_model(base_url, "chat", "SCENARIO: ok", key=run.admission.token)
