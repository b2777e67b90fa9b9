"""Every request is settled once, however it ends; and a token opens nothing but its own run."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from agents.gateway.gateway_rig import CHUNKED, KEY, LOGIN, LedgerMeter, RawService, Runs, StartedRun, chunk, response
from farro.agents.gateway.gateway import Gateway, open_gateway
from farro.store.ledger import NO_TOKENS
from model_server import Dialect, ModelServer, Say
from model_server.client import DIALECTS, body_of, key_header, path_of, prompt_model
from support import eventually

ALL = pytest.mark.parametrize("dialect", DIALECTS)
WAYS = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
BEGUN = (
    b'data: {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 7, "output_tokens": 1,'
    b' "cache_read_input_tokens": 5}}}\n\n'
)


@ALL
@WAYS
def test_an_answer_that_is_cut_is_cut_for_the_program_too(
    runs: Runs, server: ModelServer, dialect: Dialect, streamed: bool
) -> None:
    run = runs.start(server.base_url)
    with pytest.raises(http.client.IncompleteRead) as cut:
        run.ask(dialect, "SCENARIO: cut", streamed=streamed)
    exchange = run.kept[0]
    assert exchange.response == cut.value.partial
    assert exchange.response
    assert not exchange.whole
    assert [(call.end, call.usage) for call in run.meter.calls] == [("failed", server.model_requests[0].usage)]
    assert len(run.meter.settled) == 1
    trouble = run.admission.report().trouble
    assert trouble is not None
    assert (trouble.kind, trouble.usage) == ("cut", server.model_requests[0].usage)


@ALL
def test_a_stream_without_its_end_is_no_answer(runs: Runs, server: ModelServer, dialect: Dialect) -> None:
    run = runs.start(server.base_url)
    assert run.ask(dialect, "SCENARIO: ends-early").status == 200
    trouble = run.admission.report().trouble
    assert trouble is not None
    assert trouble.kind == "cut"
    assert run.meter.ends == ["failed"]
    assert not run.kept[0].whole


def test_a_connection_that_ends_before_the_answer_is_cut(runs: Runs) -> None:
    with RawService(b"") as service:
        run = runs.start(service.base_url)
        assert run.ask("anthropic", "Hello").status == 402
    trouble = run.admission.report().trouble
    assert trouble is not None
    assert (trouble.kind, trouble.charged) == ("cut", True)
    assert [(call.end, call.estimated) for call in run.meter.calls] == [("failed", True)]
    assert [(exchange.status, exchange.whole) for exchange in run.kept] == [(0, False)]


@pytest.mark.parametrize("begun", [True, False], ids=["in-the-answer", "before-it"])
def test_a_program_that_goes_away_ends_its_request(runs: Runs, begun: bool) -> None:
    pieces = (CHUNKED + chunk(BEGUN), b"") if begun else (b"", b"")
    with RawService(*pieces, waits=True) as service:
        run = runs.start(service.base_url)
        headers = key_header("anthropic", run.admission.token)
        body = json.dumps(body_of("anthropic", "Hello"))
        connection = http.client.HTTPConnection("127.0.0.1", run.admission.port)
        connection.request("POST", path_of("anthropic"), body, headers)
        if begun:
            assert connection.getresponse().read1() == BEGUN
        eventually(lambda: service.requests)
        connection.close()
        eventually(lambda: run.meter.settled)
        service.go_on.release()
        assert service.left.wait(10)
    ((_, end, usage, model),) = run.meter.settled
    assert end == "failed"
    assert model == ("m" if begun else "a-model")
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (12, 1, 5) if begun else usage is None
    assert run.admission.report().trouble is None  # no fault of the service
    assert not run.kept[0].whole


@pytest.mark.parametrize("begun", [True, False], ids=["in-the-answer", "before-it"])
def test_closing_ends_the_requests_in_progress_and_settles_them(runs: Runs, begun: bool) -> None:
    pieces = (CHUNKED + chunk(BEGUN), b"") if begun else (b"", b"")
    with RawService(*pieces, waits=True) as service:
        run = runs.start(service.base_url)
        asked = threading.Thread(target=lambda: contextlib.suppress(Exception).__enter__() or _quietly(run))
        asked.start()
        eventually(lambda: service.requests)
        if begun:
            eventually(lambda: run.admission.report().requests)
        run.admission.close()
        assert run.meter.ends == ["failed"]
        assert len(run.meter.settled) == len(run.exchanges) == 1
        asked.join()
        run.admission.close()
        assert len(run.meter.settled) == 1


def _quietly(run) -> None:  # type: ignore[no-untyped-def]
    with contextlib.suppress(OSError, http.client.HTTPException):
        run.ask("anthropic", "Hello")


class SlowMeter(LedgerMeter):
    """A ledger that waits for the test."""

    def __init__(self, root) -> None:  # type: ignore[no-untyped-def]
        super().__init__(root)
        self.reserving, self.go_on = threading.Event(), threading.Event()

    def reserve(self, model: str | None, prompt_bytes: int, max_output_tokens: int | None) -> str:
        self.reserving.set()
        self.go_on.wait(10)
        return super().reserve(model, prompt_bytes, max_output_tokens)


def test_a_program_that_goes_away_before_its_request_is_sent_costs_nothing(
    runs: Runs, server: ModelServer, tmp_path
) -> None:  # type: ignore[no-untyped-def]
    meter = SlowMeter(tmp_path / "root")
    run = runs.start(server.base_url, meter=meter)
    connection = http.client.HTTPConnection("127.0.0.1", run.admission.port)
    headers = key_header("chat", run.admission.token)
    connection.request("POST", path_of("chat"), json.dumps(body_of("chat", "Hello")), headers)
    assert meter.reserving.wait(10)
    connection.close()
    ended = threading.Thread(target=run.admission.close)
    ended.start()
    eventually(lambda: run.admission.closed.is_set())  # type: ignore[attr-defined]
    meter.go_on.set()
    ended.join()
    assert meter.ends == ["not_charged"]
    assert server.requests == run.exchanges == []


def test_every_reservation_is_settled_once_whatever_the_programs_do(runs: Runs) -> None:
    chance = random.Random(20261119)
    words = Say(content="word " * 40, pieces=20, delay_s=0.002)
    with ModelServer(scenarios={"words": [words]}) as server:
        started = [runs.start(server.base_url) for _ in range(4)]
        scenarios = ("words", "words", "cut", "ends-early", "overloaded", "hang", "silent")

        def program(run: StartedRun, number: int) -> None:
            """Read some bytes of the answer, and go away."""
            dialect = DIALECTS[number % len(DIALECTS)]
            about = {"streamed": chance.random() < 0.7}
            scenario, most = chance.choice(scenarios), chance.choice((0, 1, 400, 1 << 20))
            body = body_of(dialect, f"SCENARIO: {scenario}", **about)
            headers = key_header(dialect, run.admission.token)
            connection = http.client.HTTPConnection("127.0.0.1", run.admission.port, timeout=10)
            with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
                connection.request("POST", path_of(dialect, **about), json.dumps(body), headers)
                if scenario not in ("hang", "silent"):
                    connection.getresponse().read(most)

        with ThreadPoolExecutor(12) as pool:
            asked = [pool.submit(program, run, number) for number in range(24) for run in started]
            eventually(lambda: sum(one.done() for one in asked) >= len(asked) // 2)
            for run in started:
                run.admission.close()
            for one in asked:
                one.result()
    for run in started:
        ids = [call_id for call_id, *_ in run.meter.settled]
        assert len(ids) == len(set(ids)) == len(run.meter.reserved)
        assert None not in run.meter.ends
        told = [usage for _, _, usage, _ in run.meter.settled if usage is not None]
        assert run.admission.report().usage == sum(told, NO_TOKENS)
        sent = [exchange.number for exchange in run.exchanges]
        assert sorted(sent) == list(range(1, run.admission.report().requests + 1))


# --- tokens ---


@ALL
def test_only_the_token_of_an_open_run_is_accepted(runs: Runs, server: ModelServer, dialect: Dialect) -> None:
    run, ended = runs.start(server.base_url), runs.start(server.base_url)
    ended.admission.close()
    token = run.admission.token
    for wrong in ("", "x", KEY, token[:-1], token + "x", token.upper(), ended.admission.token, "\xe4\xf6"):
        answer = run.ask(dialect, "SCENARIO: ok", key=wrong)
        assert answer.status == 401
        assert "not the token" in answer.json["error"]["message"]
    assert server.requests == []
    assert run.ask(dialect, "SCENARIO: ok").status == 200


def test_a_request_that_is_still_coming_when_the_run_ends_is_refused(runs: Runs, server: ModelServer) -> None:
    run = runs.start(server.base_url)
    body = json.dumps(body_of("anthropic", "SCENARIO: ok")).encode()
    head = f"POST /v1/messages HTTP/1.1\r\nHost: h\r\nx-api-key: {run.admission.token}\r\n"
    with socket.create_connection(("127.0.0.1", run.admission.port)) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode())
        assert b" 100 " in connection.recv(1 << 16)  # it was admitted
        run.admission.close()
        connection.sendall(body)
        assert b" 401 " in connection.recv(1 << 16)
    assert server.requests == []


# --- secrets ---


@ALL
@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request", "401 Unauthorized", "429 Too Many", "500 Oh"])
def test_no_secret_is_in_what_is_kept_answered_or_reported(runs: Runs, dialect: Dialect, status: str) -> None:
    """A service that repeats what it was sent."""
    said = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}, {LOGIN}"}}).encode()
    with RawService(response(said, status=status)) as service:
        for upstream in ({"key": KEY}, {"login": LOGIN}, {"passes_login": True}):
            run = runs.start(service.base_url, **upstream)
            own = LOGIN if "passes_login" in upstream else run.admission.token
            answer = run.ask(dialect, f"my token is {run.admission.token} {own}", key=own, streamed=False)
            report = run.admission.report()
            held = next(iter(upstream.values())) if "passes_login" not in upstream else LOGIN
            for secret in (run.admission.token, str(held)):
                assert secret not in repr((report, str(report.trouble), run.admission))
                for exchange in run.kept:
                    assert secret.encode() not in exchange.request + exchange.response
                    assert secret not in repr(exchange)
                assert secret not in str(answer.headers)
                if status != "200 OK":  # an answer is passed on as it comes
                    assert secret.encode() not in answer.body
            assert len(run.kept) == 1


# --- the process ---


def test_there_is_one_gateway_for_each_process() -> None:
    assert open_gateway() is open_gateway()


def test_a_gateway_that_was_closed_opens_again(server: ModelServer, tmp_path) -> None:  # type: ignore[no-untyped-def]
    gateway = Gateway()
    for _ in range(2):
        run = Runs(gateway, tmp_path).start(server.base_url)
        assert run.ask("chat", "SCENARIO: ok").status == 200
        gateway.close()
        with pytest.raises(OSError):
            prompt_model(run.admission.base_url, "chat", "SCENARIO: ok", key=run.admission.token)
        run.admission.close()
    gateway.close()
