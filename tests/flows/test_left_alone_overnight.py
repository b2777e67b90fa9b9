"""Leave agents alone: their account reaches its limit in the middle, and workers die."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from farro.host.clock import SystemClock
from farro.store.files.ledger import FilesLedger
from flows.program import Daemon, Program
from model_server import ModelServer, Say, ServedRequest
from model_server.scenarios import DONE
from support import ROOT, eventually, torture

JOBS = 20
ROLES = ("SeniorEngineer", "CodeReviewer", "DocWriter")
LIMIT_S = 60.0 if torture() else 14.0  # longer than a limit that is waited for in the call
SLOW_S = 0.2  # before each of the four pieces of an answer
KEY = "sk-night-0123456789"
ANSWERS = {
    "SeniorEngineer": DONE,
    "CodeReviewer": {"verdict": "approve", "findings": []},
    "DocWriter": {"summary": "It is written down."},
}


@pytest.fixture
def models() -> Iterator[ModelServer]:
    scenarios = {role.lower(): [Say(content=text, delay_s=SLOW_S)] for role, text in ANSWERS.items()}
    with ModelServer(scenarios=scenarios, keys=[KEY]) as server:
        yield server


@pytest.fixture
def night(farro: Program, models: ModelServer) -> Program:
    agent = str(Path(ROOT, "tests", "flows", "night_agent.py"))
    config = {
        "version": "1.0.0",
        "durability": "process",
        "retry": {"base_s": 0.05, "max_attempts": 3},
        "security": {"max_job_bytes": 1 << 20, "payload_allowlist": [".md"]},
        "providers": {
            "lab": {
                "kind": "cli",
                "program": "generic",
                "command": [sys.executable, "-I", agent],
                "read_paths": [sys.prefix, sys.base_prefix],
                "api_key": "${NIGHT_KEY}",
                "base_url": models.base_url,
                "model": "lab",
                "workspace": "root",
                "prices": {"lab": {"input_usd": 1, "output_usd": 2}},
            }
        },
        "roles": {role: {"provider": "lab"} for role in ROLES},
    }
    (farro.path / "agents-config.json").write_text(json.dumps(config))
    (farro.path / "src").mkdir()
    farro.env["NIGHT_KEY"] = KEY
    return farro


def enqueue(night: Program) -> list[str]:
    """Queue jobs that pass through all three roles."""
    workflow = [{"role": role, "rubric": f"SCENARIO: {role.lower()}"} for role in ROLES]
    (night.path / "tasks").mkdir(exist_ok=True)
    (night.path / "tasks" / "night.json").write_text(json.dumps({"title": "A night's work", "workflow": workflow}))
    prompt = {
        "role": ROLES[0],
        "rubric": f"SCENARIO: {ROLES[0].lower()}",
        "allowed_paths": ["src/"],
        "success": "It is made.",
        "routing": {"mode": "manager"},
        "inputs": {"task_id": "night"},
    }
    (night.path / "p.json").write_text(json.dumps(prompt))
    names = [f"job-{number}" for number in range(JOBS)]
    for name in names:
        night.call("enqueue", "--prompt-json", "p.json", "--id", name, code=0)
    return names


def kill_in_a_call(models: ModelServer, worker: Daemon, role: str) -> None:
    """Kill a worker while its agent's answer is coming."""

    def is_young(request: ServedRequest) -> bool:
        return request.scenario == role.lower() and not request.complete and time.time() - request.at_s < SLOW_S

    eventually(lambda: any(map(is_young, models.model_requests)), f"no call of {role} was under way")
    worker.kill()


def test_a_night_of_limits_and_deaths_ends_with_every_job_done_once(night: Program, models: ModelServer) -> None:
    """The account is limited in the middle, and two workers die in a call: each job succeeds once, no worker asks
    between limit and reset but once, and the cost is what the server has billed, to the token."""
    names = enqueue(night)
    answered = 0

    def limit_in_the_middle(request: ServedRequest) -> None:
        nonlocal answered
        answered += request.status == 200
        if answered == JOBS and request.status == 200:
            models.limit(LIMIT_S)

    models.on_answered = limit_in_the_middle
    night.start("manager")
    workers = {role: night.start("worker", "--role", role, "--slots", "1") for role in ROLES}
    for role in ROLES[:2]:
        kill_in_a_call(models, workers[role], role)
        workers[role] = night.start("worker", "--role", role, "--slots", "1")
    done = {"succeeded"}
    eventually(lambda: {night.status(name) for name in names} == done, "the jobs did not all succeed", 300.0)
    for name in names:
        hops = night.job(name)["hops"]
        assert [hop["role"] for hop in hops if hop["to"] == "agents/Manager/incoming"] == list(ROLES)
        assert [hop["reason"] for hop in hops].count("committed") == 1
    requests = models.model_requests
    whole = [one for one in requests if one.status == 200 and one.complete]
    limited = [one for one in requests if one.status == 429]
    cut = [one for one in requests if one.status == 200 and not one.complete]
    assert len(whole) == JOBS * len(ROLES)
    assert 1 <= len(limited) <= len(ROLES), "a worker asked again before the reset"
    assert len(cut) == 2
    assert len(requests) == len(whole) + len(limited) + len(cut)
    assert_costs_are_those_of_the_wire(night, whole, cut)


def assert_costs_are_those_of_the_wire(night: Program, whole: list[ServedRequest], cut: list[ServedRequest]) -> None:
    ledger = FilesLedger(str(night.path), SystemClock(), durable=False)
    calls = [call for day in ledger.days() for call in ledger.of_day(day)]
    told = [call.usage for call in calls if call.usage is not None]
    billed = [one.usage for one in whole if one.usage is not None]
    for field in ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"):
        assert sum(getattr(one, field) for one in told) == sum(getattr(one, field) for one in billed)
    assert len([call for call in calls if call.end is None]) == len(cut)  # of a dead worker: they count as reserved
