"""The manager as a process: a task with real workers, a stopped manager, two managers, and decisions by a person."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from flows.program import Program
from support import eventually

TASK = {
    "id": "greet",
    "title": "A polite greeting",
    "allowed_paths": ["src/"],
    "success": "It is polite.",
    "workflow": [
        {"role": "SeniorEngineer", "rubric": "Make it polite."},
        {"role": "CodeReviewer", "rubric": "Is it?"},
        {"role": "DocWriter", "rubric": "Tell of it."},
    ],
}
PROMPT = {
    "role": "SeniorEngineer",
    "rubric": "Make the greeting polite.",
    "allowed_paths": ["src/"],
    "success": "It says please.",
    "routing": {"mode": "manager"},
}
ANSWERS: list[dict[str, Any]] = [
    {"role": "SeniorEngineer", "answer": {"summary": "It says please now."}},
    {"role": "CodeReviewer", "answer": {"verdict": "approve"}},
    {"role": "DocWriter", "answer": {"summary": "It is written down."}},
]
ROLES = ("SeniorEngineer", "CodeReviewer", "DocWriter")
HEARTBEAT = "agents/Manager/.heartbeat"


@pytest.fixture
def staged(farro: Program) -> Program:
    """Make a root whose roles answer from a file."""
    path = farro.path / "agents-config.json"
    config = json.loads(path.read_text())
    config["retry"] = {"base_s": 0.001, "max_delay_s": 0.01}
    config["watchdog"] = {"every_s": 0.2}
    config["providers"] = {"script": {"kind": "scripted", "file": "answers.json"}}
    path.write_text(json.dumps(config))
    (farro.path / "answers.json").write_text(json.dumps({"answers": ANSWERS}))
    (farro.path / "src").mkdir(exist_ok=True)
    task(farro)
    return farro


def task(farro: Program, *, human: bool = False) -> None:
    hops: list[dict[str, Any]] = list(TASK["workflow"])  # type: ignore[call-overload]
    if human:
        hops.insert(1, {"role": "human", "rubric": "Is it polite enough?"})
    (farro.path / "tasks/greet.json").write_text(json.dumps({**TASK, "workflow": hops}))


def enqueue(farro: Program, job_id: str) -> None:
    (farro.path / "prompt.json").write_text(json.dumps(PROMPT))
    farro.call("enqueue", "--prompt-json", "prompt.json", "--task", "greet", "--id", job_id, code=0)


def everybody(farro: Program) -> None:
    for role in ROLES:
        farro.start("worker", "--role", role, "--workers", "1")
    farro.start("watchdog")


def long_gone(farro: Program) -> None:
    """Make the last heartbeat of the manager older than workers accept."""
    then = time.time() - 60
    os.utime(farro.path / HEARTBEAT, (then, then))


def test_task_passes_its_roles_while_the_manager_stops_and_restarts(staged: Program) -> None:
    manager = staged.start("manager").started()
    everybody(staged)
    enqueue(staged, "first")
    eventually(lambda: staged.status("first") == "succeeded", "the task did not end")
    assert staged.job("first")["role"] == "Manager"
    eventually((staged.path / HEARTBEAT).exists, "no heartbeat")
    manager.kill()
    long_gone(staged)
    for number in range(3):
        enqueue(staged, f"without-{number}")
    names = [f"without-{number}" for number in range(3)]
    eventually(lambda: {staged.status(name) for name in names} == {"stale"}, "they were not marked stale")
    # Its folder may move to jobs/stale while its files are listed.
    eventually(lambda: "error.md" in staged.job(names[0])["files"], "it has no error.md")
    assert staged.call("explain", names[0], "--json", code=0).json["reason"] in ("stale", "unroutable")
    staged.start("manager")
    eventually(lambda: {staged.status(name) for name in names} == {"succeeded"}, "not everything drained")
    for name in names:  # no finished hop was run twice
        assert staged.job(name)["cost"]["calls"] == 3


def test_a_task_of_title_and_workflow_alone_passes_its_roles(staged: Program) -> None:
    workflow = [{"role": role} for role in ROLES]
    (staged.path / "tasks/greet.json").write_text(json.dumps({"title": "Greet people", "workflow": workflow}))
    staged.start("manager")
    everybody(staged)
    enqueue(staged, "first")
    eventually(lambda: staged.status("first") == "succeeded", "the task did not end")
    assert staged.job("first")["cost"]["calls"] == 3
    notes = [hop["note"] for hop in staged.job("first")["hops"] if hop["note"]]
    assert "SeniorEngineer succeeded; step 2 of 3 of greet is CodeReviewer's" in notes


def test_stats_count_every_hop_for_its_role_and_whole_jobs_apart(staged: Program) -> None:
    staged.start("manager")
    everybody(staged)
    enqueue(staged, "first")
    eventually(lambda: staged.status("first") == "succeeded", "the task did not end")
    agent_cli = os.path.join(os.path.dirname(sys.executable), "agent-cli")
    out = subprocess.run([agent_cli, "stats"], cwd=staged.path, env=staged.env, capture_output=True, check=True).stdout
    lines = {line["role"]: line for line in map(json.loads, out.splitlines())}
    assert {role: lines[role]["succeeded"] for role in (*ROLES, "Manager", "*")} == {
        **dict.fromkeys(ROLES, 1),
        "Manager": 3,
        "*": 1,
    }
    for role in ROLES:
        assert lines[role]["failure_rate"] == 0
        assert 0 <= lines[role]["work_p50_s"] == lines[role]["work_p95_s"] <= lines[role]["latency_p95_s"]
        assert lines[role]["wait_avg_s"] >= 0
    assert lines["*"]["latency_p50_s"] >= max(lines[role]["latency_p50_s"] for role in ROLES)
    told = staged.run("stats", "--role", "DocWriter", "--json", code=0).json
    assert (told["role"], told["succeeded"]) == ("DocWriter", 1)


def test_only_one_manager_acts_and_the_second_takes_over(staged: Program) -> None:
    first = staged.start("manager").started()
    eventually((staged.path / HEARTBEAT).exists, "no heartbeat")
    told = staged.run("manager", "--once", code=3)
    assert f"another manager acts (pid {first.pid})" in told.err
    second = staged.start("manager").started()
    everybody(staged)
    enqueue(staged, "one")
    eventually(lambda: staged.status("one") == "succeeded", "the task did not end")
    first.kill()
    eventually(
        lambda: json.loads((staged.path / HEARTBEAT).read_text())["pid"] == second.pid,
        "the second manager did not take over",
    )
    enqueue(staged, "two")
    eventually(lambda: staged.status("two") == "succeeded", "the second one does not act")
    said = second.end(signal.SIGTERM)
    assert said.code == 0
    assert "this one waits" in said.out


def test_a_person_decides_at_the_terminal(staged: Program) -> None:
    task(staged, human=True)
    assert staged.call("inbox", code=0).out == "nothing waits for you\n"
    for name in ("yes", "no", "mine"):
        enqueue(staged, name)
    staged.call("manager", "--once", code=0)
    staged.run("worker", "--role", "SeniorEngineer", "--drain", code=0)
    assert "waits for a person" in staged.call("manager", "--once", code=0).out
    waiting = staged.call("inbox", "--json", code=0).json["waiting"]
    assert sorted(one["job_id"] for one in waiting) == ["mine", "no", "yes"]
    assert waiting[0]["question"] == "Is it polite enough?"
    listed = staged.call("inbox", code=0).out
    assert "? Is it polite enough?" in listed
    assert "It says please now." in listed
    assert "waits for a person: farro inbox" in staged.call("ls", code=0).out
    assert staged.call("explain", "yes", "--json", code=0).json["fix"] == "farro approve yes"
    assert "the manager takes it on" in staged.call("approve", "yes", "--note", "good", code=0).out
    assert "does not wait for a person" in staged.call("approve", "yes", code=3).err
    staged.call("refuse", "no", code=2)  # without a reason
    staged.call("refuse", "no", "--note", "too loud", code=0)
    assert "--file" in staged.call("edit", "mine", code=2).err
    staged.call("edit", "mine", "--file", "-", stdin="As I want it.\n", code=0)
    staged.call("manager", "--once", code=0)
    assert [staged.job(name)["role"] for name in ("yes", "no", "mine")] == [
        "CodeReviewer",
        "SeniorEngineer",
        "CodeReviewer",
    ]
    assert "As I want it." in (staged.folder("mine") / "result.md").read_text()
    assert "too loud" in staged.call("history", "no", code=0).out
    assert "sent to DocWriter" in staged.call("route", "yes", "--to", "DocWriter", code=0).out
    assert staged.job("yes")["role"] == "DocWriter"
    assert "no role Nobody" in staged.call("route", "yes", "--to", "Nobody", code=2).err


def test_forbidden_worker_options_are_refused_at_once(staged: Program) -> None:
    assert "farro manager" in staged.call("worker", "--role", "Manager", code=2).err
    told = staged.call("worker", "--role", "DocWriter", "--degraded-bypass", code=3)
    assert "routing.degraded_bypass" in told.err


def test_worker_without_a_manager_leaves_the_job_stale_with_advice(staged: Program) -> None:
    enqueue(staged, "one")
    told = staged.run("worker", "--role", "SeniorEngineer", "--drain", code=0)
    assert "start one with `farro manager`" in told.out
    assert staged.job("one")["status"] == "stale"
    staged.call("watchdog", "--once", code=0)
    assert staged.call("explain", "one", "--json", code=0).json["fix"] == "farro manager --once"
    staged.call("manager", "--once", code=0)
    staged.run("worker", "--role", "SeniorEngineer", "--drain", code=0)
    assert "goes to CodeReviewer" in staged.call("manager", "--once", code=0).out
