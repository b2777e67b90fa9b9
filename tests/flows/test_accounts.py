"""Limits are a state: real workers, a model server that limits and refuses them, and the commands for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flows.program import Program
from model_server import ModelServer, Say, ServedRequest
from model_server.scenarios import DONE
from support import eventually

ROLE = "SeniorEngineer"
LIMIT_S = 13.0  # longer than a limit that is waited for in the call
SLOW = {"work": [Say(content=DONE, pieces=4, delay_s=0.1)]}


@pytest.fixture
def models() -> Iterator[ModelServer]:
    with ModelServer(scenarios=SLOW) as server:
        yield server


@pytest.fixture
def agents(farro: Program, models: ModelServer) -> Program:
    config = {
        "version": "1.0.0",
        "durability": "process",
        "retry": {"base_s": 0.05, "max_attempts": 2},
        "security": {"max_job_bytes": 1 << 20, "payload_allowlist": [".md"]},
        "providers": {
            "gpt": {"kind": "openai", "base_url": f"{models.base_url}/v1", "api_key": "${GPT_KEY}", "model": "m"}
        },
        "roles": {ROLE: {"provider": "gpt"}},
    }
    (farro.path / "agents-config.json").write_text(json.dumps(config))
    (farro.path / "src").mkdir()
    farro.env["GPT_KEY"] = "sk-good-0123456789"
    return farro


def enqueue(farro: Program, count: int) -> list[str]:
    prompt = {
        "role": ROLE,
        "rubric": "SCENARIO: work",
        "allowed_paths": ["src/"],
        "success": "It is made.",
        "routing": {"mode": "role", "next": ROLE},
    }
    (farro.path / "p.json").write_text(json.dumps(prompt))
    names = [f"job-{number}" for number in range(count)]
    for name in names:
        farro.call("enqueue", "--prompt-json", "p.json", "--id", name, code=0)
    return names


def statuses(farro: Program, names: list[str]) -> dict[str, str]:
    return {name: farro.status(name) for name in names}


def by_status(models: ModelServer) -> Callable[[int], list[ServedRequest]]:
    return lambda status: [one for one in models.model_requests if one.status == status]


def succeeded_once(farro: Program, names: list[str]) -> None:
    eventually(lambda: set(statuses(farro, names).values()) == {"succeeded"}, "the jobs did not all succeed")
    for name in names:
        commits = [hop for hop in farro.job(name)["hops"] if hop["reason"] == "committed"]
        assert len(commits) == 1


def test_no_request_is_made_until_the_reset_and_every_job_succeeds_once(agents: Program, models: ModelServer) -> None:
    """Row 37: two workers meet a usage limit. A third was killed in a call before."""
    names = enqueue(agents, 5)
    first = agents.start("worker", "--role", ROLE, "--slots", "1")
    models.wait_for(1)
    first.kill()
    agents.call("watchdog", "--once", code=0)
    agents.call("manager", "--once", code=0)
    answered = 0

    def limit_after_two(request: ServedRequest) -> None:
        nonlocal answered
        answered += request.complete
        if answered == 2 and request.complete:
            models.limit(LIMIT_S)

    models.on_answered = limit_after_two
    workers = [agents.start("worker", "--role", ROLE, "--slots", "1", "--drain") for _ in range(2)]
    for worker in workers:
        assert worker.ended().code == 0
    succeeded_once(agents, names)
    of = by_status(models)
    assert 1 <= len(of(429)) <= 2, "at most one request of each worker that was under way"
    assert len(models.model_requests) - len(of(429)) in (5, 6)  # 5: the first worker was killed between two calls
    released = [hop for name in names for hop in agents.job(name)["hops"] if hop["reason"] == "released"]
    assert released
    assert {json.dumps(hop["route"]) for hop in released} == {'{"code": "awaits_account", "accounts": ["gpt"]}'}
    assert agents.call("provider", "list", "--json", code=0).json["providers"][0]["paused"] is None


def test_a_bad_key_is_one_call_until_a_person_resumes_the_account(agents: Program, models: ModelServer) -> None:
    models.keys = ["another key"]
    names = enqueue(agents, 3)
    agents.start("worker", "--role", ROLE, "--slots", "1")
    eventually(lambda: all(waits(agents, name) for name in names), "the jobs do not wait")
    assert [one.status for one in models.model_requests] == [401]
    assert {agents.job(name)["error"] for name in names} == {None}
    told_of_a_refused_account(agents)
    models.keys = ["sk-good-0123456789"]
    done = agents.call("provider", "resume", "gpt", code=0)
    assert done.out == "account gpt goes on; 3 jobs start now\n"
    succeeded_once(agents, names)
    assert len(models.model_requests) == 1 + 3
    assert agents.call("provider", "resume", "gpt", code=0).out == "account gpt was not paused\n"
    assert agents.call("inbox", code=0).out == "nothing waits for you\n"
    assert "did you mean gpt?" in agents.call("provider", "resume", "gtp", code=2).err


def waits(farro: Program, name: str) -> Any:
    return [hop for hop in farro.job(name)["hops"] if hop["reason"] == "released"]


def told_of_a_refused_account(farro: Program) -> None:
    """Check every command that tells of it: which account, why, how many jobs wait, and what helps."""
    (line,) = farro.call("provider", "list", "--json", code=0).json["providers"]
    paused = line["paused"]
    assert (line["name"], line["account"], paused["kind"], paused["until"], paused["jobs"]) == (
        "gpt",
        "gpt",
        "refused",
        None,
        3,
    )
    assert "401" in paused["reason"]
    assert "sk-good" not in json.dumps(paused)
    assert farro.call("status", "--json", code=0).json["paused_accounts"] == [paused]
    for said in (farro.call("provider", "list", code=0).out, farro.call("status", code=0).out):
        assert "account gpt is refused since" in said
        assert "3 jobs wait (`farro provider resume gpt`)" in said
    assert farro.call("inbox", "--json", code=0).json == {"waiting": [], "accounts": [paused]}
    asked = farro.call("inbox", code=0).out
    assert "account gpt is refused since" in asked
    assert "; 3 jobs wait\n" in asked
    assert asked.endswith("  when the key, the credit or the limit is in order: farro provider resume gpt\n")
    why = farro.call("explain", "job-1", "--json", code=0).json
    assert (why["reason"], why["fix"]) == ("account_refused", "farro provider resume gpt")
    assert "401" in why["message"]
    alerts = farro.call("stats", "--alerts", "--json", code=1).json["alerts"]
    (alert,) = (alert for alert in alerts if alert["name"] == "accounts")
    assert (alert["firing"], alert["value"]) == (True, 1)
    assert "farro provider resume gpt" in alert["next"][0]
