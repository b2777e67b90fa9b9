"""A gateway is killed at every point of a request: what was reserved counts, and nothing counts twice."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from agents.gateway.gateway_rig import MOST_USD, TOKEN_USD, LedgerMeter
from agents.gateway.killed_gateway import POINTS
from farro.store.ledger import spent
from model_server import ModelServer
from model_server.client import ModelAnswer, body_of, prompt_model
from support import PATIENCE_S, ROOT

BUDGET_USD = MOST_USD + Decimal("0.2")  # room for one estimate beside an answer, and for no two estimates


@contextlib.contextmanager
def gateway(root: Path, server: ModelServer, point: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """Run a gateway in a process of its own; hand over its address and token."""
    command = [
        sys.executable,
        "-m",
        "agents.gateway.killed_gateway",
        str(root),
        server.base_url,
        point,
        str(BUDGET_USD),
    ]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}/tests"}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            base_url, token = process.stdout.readline().split()
            yield process, base_url, token
        finally:
            process.kill()


def ask(base_url: str, token: str, prompt: str) -> ModelAnswer | None:
    """Ask as a program does; None: the connection ended."""
    try:
        return prompt_model(base_url, "anthropic", prompt, key=token)
    except (OSError, http.client.HTTPException):
        return None


@pytest.mark.parametrize("point", POINTS)
def test_a_gateway_that_is_killed_leaves_its_reservation(tmp_path: Path, server: ModelServer, point: str) -> None:
    with gateway(tmp_path, server, point) as (process, base_url, token):
        answer = ask(base_url, token, "SCENARIO: ok")
        if point == "never":
            assert process.stdin is not None
            process.stdin.close()
        assert process.wait(PATIENCE_S) == (0 if point == "never" else -signal.SIGKILL)
    assert (answer is not None) == (point in ("kept", "never"))
    assert len(server.requests) == (0 if point in ("before-reserve", "reserved") else 1)
    calls = LedgerMeter(tmp_path).calls
    assert len(calls) == (0 if point == "before-reserve" else 1)
    whole_usd = (server.usage.input_tokens + server.usage.output_tokens) * TOKEN_USD
    expected = {"before-reserve": Decimal(0), "reserved": MOST_USD, "before-settle": MOST_USD}.get(point, whole_usd)
    assert spent(calls).usd == expected
    # The next worker counts it once: an estimate leaves no room for another one.
    with gateway(tmp_path, server, "never") as (_, base_url, token):
        next_answer = ask(base_url, token, "SCENARIO: ok")
    assert next_answer is not None
    assert next_answer.status == (402 if expected == MOST_USD else 200)


def test_a_gateway_that_is_killed_in_the_middle_of_an_answer_leaves_its_reservation(
    tmp_path: Path, server: ModelServer
) -> None:
    with gateway(tmp_path, server, "never") as (process, base_url, token):
        connection = http.client.HTTPConnection(base_url.removeprefix("http://"))
        body = json.dumps(body_of("anthropic", "SCENARIO: hang"))
        connection.request("POST", "/v1/messages", body, {"x-api-key": token})
        assert b"message_start" in connection.getresponse().read1()
        process.kill()
        process.wait(PATIENCE_S)
        connection.close()
    (call,) = LedgerMeter(tmp_path).calls
    assert (call.end, call.counts_usd) == (None, MOST_USD)
