"""Aliases from the seeds: the same commands, whose help and errors show the alias."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import farro as package
from farro.cli.aliases import agenix_arguments
from flows.program import Done, Program, endless, once_endless, steps
from servers import free_port
from support import eventually

BIN = os.path.dirname(sys.executable)


def alias(farro: Program, name: str, *args: str, code: int) -> Done:
    done = subprocess.run(
        [os.path.join(BIN, name), *args], cwd=farro.path, env=farro.env, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == code, f"exit {done.returncode} of {name} {' '.join(args)}\n{done.stdout}\n{done.stderr}"
    return Done(code=done.returncode, out=done.stdout, err=done.stderr)


@pytest.mark.parametrize("name", ["agent-cli", "agentd", "managerd", "watchdogd", "agw"])
def test_alias_shows_its_own_name(farro: Program, name: str) -> None:
    assert alias(farro, name, "--version", code=0).out == f"{name} {package.__version__}\n"
    assert alias(farro, name, "--help", code=0).out.startswith(f"Usage: {name} ")
    wrong = alias(farro, name, "--nonsense", code=2)
    assert f"Try '{name} --help'" in wrong.err or f"Try '{name} -h'" in wrong.err
    assert "farro --" not in wrong.err


def test_agent_cli_is_farro(farro: Program) -> None:
    (farro.path / "plan.json").write_text(json.dumps(steps(("true",))))
    job_id = alias(farro, "agent-cli", "enqueue", "plan.json", code=0).out.strip()
    assert alias(farro, "agent-cli", "ls", "--state", "incoming", "--json", code=0).out.count(job_id) == 1
    assert alias(farro, "agent-cli", "show", "nope", code=2).err.startswith("agent-cli: no job nope")
    assert "did you mean `agent-cli enqueue`?" in alias(farro, "agent-cli", "enqueu", code=2).err


def test_agentd_runs_the_jobs_of_a_queue(farro: Program) -> None:
    job_id = farro.enqueue(steps(("true",)))
    alias(farro, "agentd", "--role", "Runner", "--workers", "1", "--drain", code=0)
    assert farro.status(job_id) == "succeeded"


@pytest.mark.parametrize("collected", [True, False], ids=["collected by a watchdog", "not collected"])
def test_managerd_has_the_watchdogs_verbs(farro: Program, collected: bool) -> None:
    """SPEC-1 §12: list-stale, requeue, kill, force-complete; also for jobs of dead agents that no process collected."""
    jobs = [farro.enqueue(endless(f"started-{number}")) for number in range(3)]
    worker = farro.start("worker", "--workers", "3")
    eventually(lambda: all((farro.path / f"started-{number}").exists() for number in range(3)), "not started")
    worker.kill()
    if collected:
        alias(farro, "watchdogd", "--once", code=0)
    told = json.loads(alias(farro, "managerd", "watchdog", "list-stale", "--json", code=0).out)
    assert sorted(job["job_id"] for job in told["jobs"]) == sorted(jobs)
    told = json.loads(alias(farro, "managerd", "--json", "watchdog", "list-stale", code=0).out)
    assert len(told["jobs"]) == 3
    alias(farro, "managerd", "watchdog", "requeue", jobs[0], code=0)
    alias(farro, "managerd", "watchdog", "kill", jobs[1], "--note", "enough", code=0)
    alias(farro, "managerd", "watchdog", "force-complete", jobs[2], code=0)
    assert [farro.status(job) for job in jobs] == ["queued", "killed", "succeeded"]
    assert "no job nope" in alias(farro, "managerd", "watchdog", "kill", "nope", code=2).err


def test_managerd_and_agentd_alone_recover_a_killed_agentd(farro: Program) -> None:
    """SPEC-1 §11: no separate watchdog is needed."""
    farro.enqueue(once_endless(), "--id", "long")
    manager = farro.start("manager").started()
    worker = farro.start("worker")
    eventually((farro.path / "started").exists, "not started")
    worker.kill()
    second = farro.start("worker", "--drain")
    assert second.ended().code == 0
    assert farro.status("long") == "succeeded"
    assert "recovered: stale" in manager.end().out


def test_managerd_runs_with_auto_plan_and_without(farro: Program) -> None:
    assert alias(farro, "managerd", "--auto-plan=off", "--once", code=0).out == "nothing to decide\n"
    assert alias(farro, "managerd", "--auto-plan=on", "--once", code=0).out == "nothing to decide\n"
    process = subprocess.Popen(
        [os.path.join(BIN, "managerd"), "--auto-plan", "off"],
        cwd=farro.path,
        env=farro.env,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert "manager started" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_auto_plan_of_the_running_manager_is_switched_at_once(farro: Program) -> None:
    """SPEC-1, appendix A: pause auto-plan with `managerd --auto-plan=off` while a manager runs."""
    config = farro.path / "agents-config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "watchdog": {"every_s": 60}}))
    manager = farro.start("manager", "--auto-plan=on").started()
    eventually((farro.path / "agents/Manager/.heartbeat").exists, "no heartbeat")
    done = alias(farro, "managerd", "--auto-plan=off", code=0)
    assert done.out == f"auto-plan is off; the running manager (pid {manager.pid}) follows at once\n"
    task = {"title": "Greet", "workflow": [{"role": "SeniorEngineer"}]}
    (farro.path / "tasks/greet.json").write_text(json.dumps(task))
    assert "auto-plan is off, by cli-" in farro.run("status", code=0).out
    farro.run("manager", "--once", code=3)
    manager.end(signal.SIGTERM)
    farro.run("manager", "--once", code=0)  # also a later manager makes no job
    assert farro.run("ls", "--json", code=0).json["jobs"] == []
    manager = farro.start("manager").started()
    eventually(lambda: f"pid {manager.pid}" in farro.run("manager", "--once", code=3).err, "it does not act")
    assert alias(farro, "managerd", "--auto-plan=on", code=0).out.startswith("auto-plan is on; the running manager")
    eventually(lambda: farro.run("ls", "--json", code=0).json["jobs"] != [], "it follows too late")
    assert farro.run("status", "--json", code=0).json["auto_plan"] is True
    events = [json.loads(line)["event"] for line in (farro.path / "logs/audit.log").read_text().splitlines()]
    assert [event for event in events if event.startswith("auto_plan_o")] == [
        "auto_plan_on",
        "auto_plan_off",
        "auto_plan_on",
    ]


def test_every_alias_is_declared(farro: Program) -> None:
    text = Path(package.__file__).parents[2].joinpath("pyproject.toml").read_text()
    for name in ("agent-cli", "agentd", "managerd", "watchdogd", "agw"):
        assert f"\n{name} = " in text


def test_help_of_air_executor_names_only_its_own_commands(farro: Program) -> None:
    told = alias(farro, "air-executor", "--help", code=0).out
    assert "up --detach" not in told
    assert "Start workers, watchdog and manager, in the background." in told


# --- the options of AGEniX's own agq, agw and agx ---


@pytest.mark.parametrize("key_in", ["arguments", "environment"])
def test_agq_agw_and_agx_take_agenix_options_and_variables(farro: Program, key_in: str) -> None:
    key, port = "canary-of-a-key", free_port()
    at = f"127.0.0.1:{port}"
    given = ["--session-key", key] if key_in == "arguments" else []
    if key_in == "environment":
        farro.env |= {"AGQ_SESSION_KEY": key, "AGQ_ADDR": at}
    server = subprocess.Popen(
        [os.path.join(BIN, "agq"), "--bind", at, *given],
        cwd=farro.path,
        env=farro.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        started = server.stdout.readline()
        assert '"key": true' in started or '"key":true' in started, started
        arguments = Path(f"/proc/{server.pid}/cmdline").read_bytes()
        assert key.encode() not in arguments
        assert b"--bind" in arguments
        there = ["--agq-addr", at] if key_in == "arguments" else []
        (farro.path / "plan.json").write_text(json.dumps(LATER))
        if key_in == "environment":
            farro.env["AGX_PLAN_PATH"] = str(farro.path / "plan.json")
            submitted = alias(farro, "agx", "PLAN", "submit", code=0)
        else:
            submitted = alias(farro, "agx", *there, f"--session-key={key}", "submit", "./plan.json", code=0)
            assert "a key in arguments" in submitted.err
        assert json.loads(submitted.out)["job_id"] == "of-the-memo"
        assert key not in submitted.err
        agq_address = ["--agq-address", at] if key_in == "arguments" else []
        worked = alias(farro, "agw", "--worker-id", "worker-1", *agq_address, *given, "--drain", code=0)
        assert ("a key in arguments" in worked.err) is (key_in == "arguments")
        done = farro.job("of-the-memo")
        assert done["status"] == "succeeded"
        assert json.loads(alias(farro, "agx", *there, *given, "job", "result", "of-the-memo", code=0).out)[
            "worker"
        ].startswith("worker-1")
    finally:
        server.terminate()
        _, err = server.communicate(timeout=30)
    assert ("a key in arguments" in err) is (key_in == "arguments")
    assert key not in err


LATER = {
    "job_id": "of-the-memo",
    "plan_id": "plan-456",
    "plan_description": "Sort two words",
    "tasks": [
        {"task_number": 1, "command": "printf", "args": ["b\\na\\n"], "timeout_secs": 300},
        {"task_number": 2, "command": "sort", "args": [], "timeout_secs": 300, "input_from_task": 1},
    ],
}


@pytest.mark.parametrize(
    ("words", "made", "key"),
    [
        (["--agq-addr", "h:1", "PLAN", "submit"], ["--store", "agq://h:1", "PLAN", "submit"], None),
        (["--agq-addr=agq://h:1", "jobs"], ["--store", "agq://h:1", "jobs"], None),
        (["--session-key=k", "jobs"], ["--store", "agq://env:2", "jobs"], "k"),
        (["--store", "agq://h:1", "jobs"], ["--store", "agq://h:1", "jobs"], None),
        (["--store=agq://h:1", "jobs"], ["--store=agq://h:1", "jobs"], None),
        (
            ["add", "--", "x", "--session-key", "k", "--agq-addr", "y"],
            ["--store", "agq://env:2", "add", "--", "x", "--session-key", "k", "--agq-addr", "y"],
            None,
        ),
    ],
)
def test_agenix_options_become_farros(words: list[str], made: list[str], key: str | None) -> None:
    assert agenix_arguments(words, {"--agq-addr": "--store"}, {"AGQ_ADDR": "env:2"}) == (made, key)
