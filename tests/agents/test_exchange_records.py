"""Check that what a program and the models said to each other is kept, without secrets, and read again by a replay."""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.agent_root import CHANGE, AgentRoot, MakeRoot
from farro.agents.exchange_records import ExchangeRecorder, recorded_calls, recorded_exchanges
from farro.agents.gateway.port import ModelExchange
from farro.agents.providers.port import Usage
from farro.agents.replay import replay_job
from farro.config.reader import load
from farro.sandbox.redaction import Redactor
from model_server import ModelServer

KEY = "upstream-key-0123456789"
# It asks twice, as claude does, and the second time with the conversation so far.
ASKS = """
import http.client, json, os, sys
from urllib.parse import urlsplit
prompt = sys.stdin.read()
address = urlsplit(os.environ["ANTHROPIC_BASE_URL"])
messages = [{"role": "user", "content": "SCENARIO: ok\\n" + prompt + os.environ.get("MY_TOKEN", "")}]
for _ in range(2):
    link = http.client.HTTPConnection(address.hostname, address.port)
    body = json.dumps({"model": "claude-lab", "max_tokens": 1000, "stream": True, "messages": messages})
    headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "Content-Type": "application/json"}
    link.request("POST", "/v1/messages?beta=true", body, headers)
    link.getresponse().read()
    messages += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Go on."}]
said = json.dumps({"summary": "done"})
print(json.dumps({"type": "result", "subtype": "success", "is_error": False, "result": said, "session_id": "s"}))
"""


def exchange(number: int, request: bytes, response: bytes = b"{}") -> ModelExchange:
    return ModelExchange(
        number=number,
        dialect="anthropic",
        path="/v1/messages",
        status=200,
        content_type="application/json",
        request=request,
        response=response,
        whole=True,
        model="a-model",
        usage=Usage(input_tokens=number, output_tokens=2),
    )


def recorder(folder: Path, most_bytes: int = 1 << 20, **secrets: str) -> ExchangeRecorder:
    return ExchangeRecorder(str(folder), Redactor(secrets), most_bytes=most_bytes)


def test_exchanges_are_read_as_they_were_kept(tmp_path: Path) -> None:
    requests = [b"", b"abcd-z", b"abcd-efg-z", b"abab", b"ab", b"ab", b"\xff\x00\nq", b"aaaa", b"aaa", b""]
    kept = [exchange(number, request, request[::-1]) for number, request in enumerate(requests)]
    keep = recorder(tmp_path).of_call(3)
    for each in kept:
        keep(each)
    assert list(recorded_exchanges(str(tmp_path), 3)) == kept
    assert recorded_calls(str(tmp_path)) == [3]
    assert list(recorded_exchanges(str(tmp_path), 1)) == []


def test_a_conversation_is_kept_once_and_not_with_each_request(tmp_path: Path) -> None:
    said = random.Random(1).randbytes(200_000).hex().encode()
    keep = recorder(tmp_path).of_call(1)
    for turns in range(1, 21):
        keep(exchange(turns, b'{"messages": [' + said[: turns * 2000] + b'], "tools": [' + said[-5000:] + b"]}"))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 40_000


def test_the_jobs_secrets_are_taken_out(tmp_path: Path) -> None:
    recorder(tmp_path, TOKEN="a-secret-of-the-job").of_call(1)(
        replace(exchange(1, b"a-secret-of-the-job", b"a-secret-of-the-job"), path="/v1/a-secret-of-the-job")
    )
    (path,) = tmp_path.iterdir()
    assert gzip.decompress(path.read_bytes()).count(b"[redacted:TOKEN]") == 3
    assert b"a-secret" not in gzip.decompress(path.read_bytes())


def test_what_does_not_fit_is_not_kept_and_fails_nothing(tmp_path: Path) -> None:
    keep = recorder(tmp_path, most_bytes=3000).of_call(1)
    noise = random.Random(1).randbytes(4000).hex().encode()
    for number, request in enumerate((b"one", b"two", noise, b"four"), start=1):
        keep(exchange(number, request))
    assert [each.number for each in recorded_exchanges(str(tmp_path), 1)] == [1, 2]


@pytest.mark.parametrize("lost", [1, 20, 100])
def test_an_exchange_that_a_crash_cut_off_costs_no_other(tmp_path: Path, lost: int) -> None:
    keep = recorder(tmp_path).of_call(1)
    for number in (1, 2, 3):
        keep(exchange(number, b"a request"))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-lost])
    assert [each.number for each in recorded_exchanges(str(tmp_path), 1)][:2] == [1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_record_is_the_end_of_what_is_read(tmp_path: Path, seed: int) -> None:
    keep = recorder(tmp_path).of_call(1)
    for number in (1, 2, 3):
        keep(exchange(number, b"a request"))
    (path,) = tmp_path.iterdir()
    data, place = bytearray(path.read_bytes()), random.Random(seed)
    at = place.randrange(len(data))
    data[at : at + 8] = place.randbytes(8)
    path.write_bytes(data)
    assert len(list(recorded_exchanges(str(tmp_path), 1))) <= 3


def test_another_try_of_the_step_begins_anew(tmp_path: Path) -> None:
    recorder(tmp_path).of_call(1)(exchange(1, b"old"))
    recorder(tmp_path).of_call(1)(exchange(1, b"new"))
    assert [each.request for each in recorded_exchanges(str(tmp_path), 1)] == [b"new"]


# --- in a job ---


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(keys={KEY}) as models:
        yield models


@pytest.fixture
def worked(make: MakeRoot, server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> AgentRoot:
    """Let a program that asks the gateway twice work a job."""
    monkeypatch.setenv("UPSTREAM_KEY", KEY)
    monkeypatch.setenv("MY_TOKEN", "a-token-of-the-program")
    provider: dict[str, Any] = {
        "kind": "cli",
        "program": "claude",
        "api_key": "${UPSTREAM_KEY}",
        "base_url": server.base_url,
        "environment": ["MY_TOKEN"],
        "workspace": "root",
    }
    root = make(providers={"fake": provider}, roles={"SeniorEngineer": {"provider": "fake"}})
    script = root.path / "agent.py"
    script.write_text(ASKS)
    root.configure(
        providers={"fake": {**provider, "command": [sys.executable, str(script)]}},
        roles={"SeniorEngineer": {"provider": "fake"}},
    )
    root.enqueue()
    root.until_over()
    assert root.life().error is None
    return root


def calls_of(root: AgentRoot) -> Path:
    return root.folder() / "attempts/0001/steps/1/calls"


def test_what_a_program_asked_is_in_its_attempt_without_secrets(worked: AgentRoot, server: ModelServer) -> None:
    first, second = recorded_exchanges(str(calls_of(worked)), 1)
    assert [each.number for each in (first, second)] == [1, 2]
    assert [len(json.loads(each.request)["messages"]) for each in (first, second)] == [1, 3]
    assert CHANGE["summary"] not in first.response.decode()
    assert b"[redacted:MY_TOKEN]" in first.request
    asked = server.model_requests
    assert [each.usage is not None for each in (first, second)] == [True, True]
    assert len(asked) == 2
    for path in worked.folder().rglob("*.exchanges.gz"):
        text = gzip.decompress(path.read_bytes())
        assert not [secret for secret in (KEY, "a-token-of-the-program", "farro-") if secret.encode() in text]


def test_a_replay_reads_the_wire_again_without_a_request(worked: AgentRoot, server: ModelServer) -> None:
    asked = len(server.model_requests)
    store = worked.store()
    try:
        (same,) = replay_job(store, "one", settings_of=load, clock=worked.clock)
        (path,) = calls_of(worked).glob("*.gz")
        lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        lines[1]["usage"]["output_tokens"] += 1  # as another version of farro may have read it
        path.write_bytes(gzip.compress(b"".join(json.dumps(line).encode() + b"\n" for line in lines)))
        (other,) = replay_job(store, "one", settings_of=load, clock=worked.clock)
    finally:
        store.close()
    assert same.same, same.difference
    assert "request 2 of call 1 (/v1/messages?beta=true) is read otherwise" in other.difference
    assert len(server.model_requests) == asked
