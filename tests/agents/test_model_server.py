"""The scripted model server answers as the real services do, and its log says what each request costs."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farro.store.ledger import Usage
from model_server import SCENARIOS, Dialect, Fail, ModelServer, Say
from model_server.client import DIALECTS, ask, body_of, key_header, path_of, prompt_model
from support import ROOT

ALL = pytest.mark.parametrize("dialect", DIALECTS)
LIMITED = [name for name in SCENARIOS if name.startswith("usage-limit") and not name.endswith("later")]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def usage_in(dialect: Dialect, answer: Any) -> Usage:
    """Read the usage of a whole answer, or of the event of a stream that has it."""
    if dialect == "anthropic":
        told = answer["usage"]
        cached, written = told["cache_read_input_tokens"], told["cache_creation_input_tokens"]
        return Usage(
            input_tokens=told["input_tokens"] + cached + written,
            output_tokens=told["output_tokens"],
            cache_read_tokens=cached,
            cache_write_tokens=written,
        )
    if dialect in ("gemini", "code_assist"):
        told = answer.get("response", answer)["usageMetadata"]
        output = told["candidatesTokenCount"] + told["thoughtsTokenCount"]
        cached = told["cachedContentTokenCount"]
        return Usage(input_tokens=told["promptTokenCount"], output_tokens=output, cache_read_tokens=cached)
    told = answer.get("response", answer)["usage"]
    asked, said = ("prompt", "completion") if dialect == "chat" else ("input", "output")
    cached = told[f"{asked}_tokens_details"]["cached_tokens"]
    return Usage(input_tokens=told[f"{asked}_tokens"], output_tokens=told[f"{said}_tokens"], cache_read_tokens=cached)


@ALL
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
def test_the_log_has_the_usage_that_the_answer_tells(server: ModelServer, dialect: Dialect, streamed: bool) -> None:
    how: dict[str, Any] = {"streamed": streamed, "replies": ["Well."]}
    body = {**body_of(dialect, "SCENARIO: prose", **how), "stream_options": {"include_usage": True}}
    answer = ask(server.base_url, path_of(dialect, streamed=streamed), body, key_header(dialect, "a-key"))
    assert answer.status == 200
    assert b"all is well" in answer.body or streamed
    events = [event for event in answer.events if "usage" in json.dumps(event)] if streamed else [answer.json]
    (request,) = server.model_requests
    assert usage_in(dialect, events[-1]) == request.usage == server.usage
    assert server.usage.cache_read_tokens > 0
    assert (request.dialect, request.model, request.credential) == (dialect, "a-model", "a-key")
    assert (request.scenario, request.turn, request.streamed, request.complete) == ("prose", 1, streamed, True)


def test_a_stream_of_chat_completions_tells_its_usage_only_when_asked(server: ModelServer) -> None:
    assert "usage" not in prompt_model(server.base_url, "chat", "SCENARIO: ok").body.decode()
    assert [request.usage for request in server.model_requests] == [None]


@ALL
def test_the_number_of_replies_picks_the_turn(server: ModelServer, dialect: Dialect) -> None:
    first = prompt_model(server.base_url, dialect, "SCENARIO: wrong-form", streamed=False)
    second = prompt_model(server.base_url, dialect, "SCENARIO: wrong-form", streamed=False, replies=["I have."])
    again = f"SCENARIO: wrong-form\n\n---\n\nYou answered:\n\nI have.\n\n---\n\n{'x' * 40}"
    in_one_text = prompt_model(server.base_url, dialect, again, streamed=False)
    assert [b"summary" in one.body for one in (first, second, in_one_text)] == [False, True, True]


@ALL
@pytest.mark.parametrize("name", [name for name, turns in SCENARIOS.items() if isinstance(turns[0], Fail)])
def test_errors_have_the_statuses_of_the_real_services(server: ModelServer, dialect: Dialect, name: str) -> None:
    fail = SCENARIOS[name][0]
    assert isinstance(fail, Fail)
    answer = prompt_model(server.base_url, dialect, f"SCENARIO: {name}")
    overloaded = {"anthropic": 529}.get(dialect, 503)
    bad_key = 400 if dialect == "gemini" else 401
    no_credit = 400 if dialect == "anthropic" else 429
    wanted = {"server_error": 500, "overloaded": overloaded, "bad_key": bad_key, "no_credit": no_credit}
    limits = {"usage_limit": 429, "rate_limited": 429, "bad_request": 400}
    assert answer.status == (200 if fail.in_stream else {**wanted, **limits}[fail.kind])
    assert server.usage.output_tokens <= 1
    assert not fail.in_stream or b"overload" in answer.body.lower()


@ALL
@pytest.mark.parametrize("name", LIMITED)
def test_a_usage_limit_names_its_reset_if_it_is_known(server: ModelServer, dialect: Dialect, name: str) -> None:
    answer = prompt_model(server.base_url, dialect, f"SCENARIO: {name}")
    told = answer.body.decode() + json.dumps(answer.headers)
    names = ("resets_at", "retryDelay", "anthropic-ratelimit-unified-reset")
    assert any(name in told for name in names) == (name == "usage-limit")


def test_a_limited_server_refuses_every_request_until_the_reset(server: ModelServer) -> None:
    until_s = server.limit(3600)
    answer = prompt_model(server.base_url, "responses", "SCENARIO: edit")
    assert answer.status == 429
    assert 0 <= answer.json["error"]["resets_at"] - until_s <= 3
    assert until_s > time.time()
    server.limit(0)
    assert prompt_model(server.base_url, "responses", "SCENARIO: edit").status == 200


@ALL
def test_only_the_servers_keys_are_accepted(dialect: Dialect) -> None:
    with ModelServer(keys={"the-key"}, scenarios={"mine": [Say(content="my words")]}) as server:
        bad = prompt_model(server.base_url, dialect, "SCENARIO: mine", key="another")
        good = prompt_model(server.base_url, dialect, "SCENARIO: mine", key="the-key", streamed=False)
    assert bad.status in (400, 401)
    assert b"my words" in good.body


@ALL
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
def test_a_cut_answer_ends_in_the_middle(server: ModelServer, dialect: Dialect, streamed: bool) -> None:
    with pytest.raises(http.client.IncompleteRead):
        prompt_model(server.base_url, dialect, "SCENARIO: cut", streamed=streamed)
    assert [request.complete for request in server.model_requests] == [False]


def test_it_runs_as_a_program_and_writes_a_log(tmp_path: Path) -> None:
    (tmp_path / "more.json").write_text(
        '{"mine": [{"write": {"path": "a.py", "text": ""}}, {"say": {"content": "!"}}]}'
    )
    command = [sys.executable, "-m", "model_server", "--log", "log.jsonl", "--scenarios", "more.json", "--key", "k"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}/tests"}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            base_url = process.stdout.readline().strip()
            answer = prompt_model(base_url, "gemini", "SCENARIO: mine", key="k", replies=["Well."])
            assert b'"!"' in answer.body
        finally:
            process.terminate()
    (line,) = (tmp_path / "log.jsonl").read_text().splitlines()
    assert json.loads(line)["scenario"] == "mine"
