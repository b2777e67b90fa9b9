"""Roles run by the installed program: workers as processes, providers as real servers and real commands."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fake_providers as fake
import farro as api
from fake_providers import FakeProvider
from flows.program import Program, marked
from support import eventually

PROMPT = {
    "role": "SeniorEngineer",
    "rubric": "Make the greeting polite.",
    "allowed_paths": ["src/"],
    "success": "The greeting says please.",
    "routing": {"mode": "role", "next": "CodeReviewer"},
}
CHANGE = json.dumps({"summary": "It says please now."})
REVIEW = json.dumps({"verdict": "approve", "findings": []})
KEY = "sk-canary-0123456789"


@pytest.fixture
def openai(farro: Program) -> Iterator[Callable[..., FakeProvider]]:
    """Start a server that answers as OpenAI does, and make a root that uses it."""
    servers: list[FakeProvider] = []

    def serve(*replies: fake.Reply) -> FakeProvider:
        server = FakeProvider("openai", *replies)
        servers.append(server)
        prices = {"gpt-5": {"input_usd": 1, "output_usd": 8}}
        provider = {"api_key": "${OPENAI_API_KEY}", "base_url": server.base_url, "model": "gpt-5", "prices": prices}
        configure(farro, providers={"openai": provider})
        farro.env["OPENAI_API_KEY"] = KEY
        return server

    yield serve
    for server in servers:
        server.close()


def configure(farro: Program, **changes: Any) -> None:
    path = farro.path / "agents-config.json"
    retry = {"base_s": 0.001, "max_delay_s": 0.01}
    path.write_text(json.dumps({**json.loads(path.read_text()), "retry": retry, **changes}))
    (farro.path / "src").mkdir(exist_ok=True)


def enqueue(farro: Program, job_id: str, **changes: Any) -> None:
    path = farro.path / f"{job_id}.prompt.json"
    path.write_text(json.dumps({**PROMPT, **changes}))
    farro.run("enqueue", "--role", "SeniorEngineer", "--prompt-json", str(path), "--id", job_id, code=0)


def test_a_prompt_goes_from_role_to_role_over_http(farro: Program, openai: Callable[..., FakeProvider]) -> None:
    server = openai(fake.says(CHANGE), fake.says(REVIEW))
    enqueue(farro, "polite")
    farro.run("worker", "--role", "SeniorEngineer", "--drain", code=0)
    farro.run("worker", "--role", "CodeReviewer", "--drain", code=0)
    assert farro.status("polite") == "succeeded"
    assert len(server.asked) == 2
    first, second = (json.dumps(asked.body) for asked in server.asked)
    assert "Make the greeting polite." in first
    assert "It says please now." in second  # the reviewer receives the answer of the engineer
    assert "approved" in (farro.folder("polite") / "result.md").read_text()


def test_logs_show_the_answer_after_the_manager_routed_the_job(
    farro: Program, openai: Callable[..., FakeProvider]
) -> None:
    openai(fake.says(CHANGE))
    farro.run("manager", "--once", code=0)  # a manager that never ran counts as away
    enqueue(farro, "polite", routing={"mode": "manager"})
    farro.run("worker", "--role", "SeniorEngineer", "--drain", code=0)
    farro.run("manager", "--once", code=0)
    assert farro.run("show", "polite", "--json", code=0).json["attempt"] == 2  # of the manager, without output
    assert json.loads(farro.run("logs", "polite", "--stdout", code=0).out)["summary"] == "It says please now."
    assert farro.run("logs", "polite", "--json", code=0).json["attempt"] == 1
    assert farro.run("logs", "polite", "--attempt", "2", code=0).out == ""


def test_busy_provider_is_called_four_times_then_by_the_next_attempt(
    farro: Program, openai: Callable[..., FakeProvider]
) -> None:
    busy = fake.answers(429, "slow down", **{"Retry-After": "0"})
    server = openai(busy, busy, busy, busy, fake.says(CHANGE))
    enqueue(farro, "busy")
    farro.run("worker", "--role", "SeniorEngineer", "--drain", code=0)
    assert farro.run("show", "busy", "--json", code=0).json["role"] == "CodeReviewer"
    assert len(server.asked) == 5


def test_two_seconds_after_a_kill_no_process_of_an_agent_lives(farro: Program, figure: Callable[..., None]) -> None:
    script = farro.path / "stubborn.py"
    script.write_text(
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "open(os.environ['FARRO_ROOT'] + '/src/started', 'w').close()\n"
        "time.sleep(1000)\n"
    )
    configure(farro, providers={"it": {"kind": "cli", "command": [sys.executable, str(script)]}})
    worker = farro.start("worker", "--role", "SeniorEngineer").started()
    enqueue(farro, "long")
    eventually((farro.path / "src/started").exists, "the agent does not start")
    farro.run("kill", "long", code=0)
    killed_s = time.monotonic()
    while marked(farro.path) and time.monotonic() - killed_s < 10:
        time.sleep(0.02)
    took_s = time.monotonic() - killed_s
    figure("no process of a killed agent lives, after", round(took_s, 3), "s")
    assert took_s < 2.0, f"processes of the job lived {took_s:.1f} s after its kill"  # the promise itself is a time
    assert farro.status("long") == "killed"
    assert worker.end().code == 0


def test_two_seconds_after_a_kill_the_request_to_a_provider_is_closed(
    farro: Program, openai: Callable[..., FakeProvider], figure: Callable[..., None]
) -> None:
    server = openai(fake.hangs)
    worker = farro.start("worker", "--role", "SeniorEngineer").started()
    enqueue(farro, "long")
    assert server.arrived.wait(30)
    farro.run("kill", "long", code=0)
    killed_s = time.monotonic()
    assert server.left.wait(10)
    took_s = time.monotonic() - killed_s
    figure("a provider of a killed job is hung up on, after", round(took_s, 3), "s")
    assert took_s < 2.0, f"the request went on for {took_s:.1f} s after the kill"  # the promise itself is a time
    assert worker.end().code == 0


def test_worker_killed_during_a_provider_call_loses_neither_job_nor_cost(
    farro: Program, openai: Callable[..., FakeProvider]
) -> None:
    server = openai(fake.hangs, fake.says(CHANGE))
    worker = farro.start("worker", "--role", "SeniorEngineer").started()
    enqueue(farro, "cut")
    assert server.arrived.wait(30)
    worker.kill()
    farro.run("watchdog", "--once", code=0)
    farro.run("manager", "--once", code=0)
    farro.run("worker", "--role", "SeniorEngineer", "--drain", code=0)
    assert farro.run("show", "cut", "--json", code=0).json["role"] == "CodeReviewer"
    result = json.loads((farro.folder("cut") / "attempts/0002/result.json").read_text())
    calls = result["agent"]["calls"]
    assert [(call["attempt"], call["estimated"], call["end"]) for call in calls] == [(2, False, "answered")]
    job = result["agent"]["job"]
    assert (result["agent"]["cost_estimated"], job["calls"], job["cost_estimated"]) == (False, 2, True)


@pytest.mark.parametrize(("role", "answer"), [("CodeReviewer", {"verdict": "approve"}), ("Poet", "Well *done*.")])
def test_result_of_a_prompt_in_python_is_the_last_roles_answer(farro: Program, role: str, answer: Any) -> None:
    configure(farro, providers={"play": {"kind": "scripted", "file": "answers.json"}}, roles={"Poet": {}})
    farro.run("init", code=0)  # makes the queue of that role
    entries = [{"role": role, "answer": answer}, {"answer": CHANGE}]
    (farro.path / "answers.json").write_text(json.dumps({"answers": entries}))
    with api.open(farro.path) as queue:
        job = queue.enqueue({**PROMPT, "routing": {"mode": "role", "next": role}})
        for each in ("SeniorEngineer", role):
            farro.run("worker", "--role", each, "--drain", code=0)
        come = job.result(timeout=10)
    assert come == ({"verdict": "approve", "findings": [], "summary": None} if role == "CodeReviewer" else answer)
