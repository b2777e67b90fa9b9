"""Jobs in their own processes, with the installed program: crashes, kills, stops, limits, and leftovers."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from crash.history import ENDS
from farro.execution.runners import runner_slots
from flows.program import Program, endless, marked, shell, steps
from support import eventually

TOOLS = """
import ctypes, os, time

def segfault(call):
    ctypes.string_at(0)

def chat(call):
    print("a word of the tool", flush=True)
    call.stdout.write(b"of the step\\n")

def deaf(call):
    open("started", "w").close()
    ctypes.PyDLL(None).sleep(1000)  # with the interpreter's lock: no thread of this runner can do anything
"""


def config(farro: Program, **runners: Any) -> None:
    names = ("segfault", "chat", "deaf")
    tools = {name: {"python": f"runner_tools:{name}"} for name in names}
    settings = {
        "tools": tools,
        "runners": {"kind": "process", **runners},
        "retry": {"base_s": 0.01, "max_delay_s": 0.05, "max_attempts": 3},
    }
    (farro.path / "agents-config.json").write_text(json.dumps(settings))
    (farro.path / "runner_tools.py").write_text(TOOLS)
    farro.env["PYTHONPATH"] = str(farro.path)


@pytest.fixture
def runners(farro: Program) -> Program:
    config(farro)
    return farro


def calls(tool: str) -> dict[str, Any]:
    return {"plan_id": "p", "steps": [{"step_number": 1, "tool": tool, "command": "x"}]}


def started(farro: Program) -> None:
    eventually((farro.path / "started").exists, "the step did not start")


def records(farro: Program) -> list[Any]:
    return list(runner_slots.records(str(farro.path)))


def written(farro: Program) -> list[str]:
    """Return the records of the runner slots, held or not."""
    folder = farro.path / runner_slots.FOLDER
    return [path.read_text() for path in folder.iterdir() if path.read_text()] if folder.exists() else []


def test_a_job_runs_in_a_process_of_its_own(runners: Program) -> None:
    job_id = runners.enqueue(shell("tr '\\0' '\\n' < /proc/$PPID/cmdline | grep . | tail -n 2"))
    runners.worked()
    assert (runners.folder(job_id) / "attempts/0001/steps/1/stdout").read_text() == f"run-job\n{job_id}\n"
    assert written(runners) == []


def test_the_option_is_stronger_than_the_config(runners: Program) -> None:
    job_id = runners.enqueue(shell("tr '\\0' '\\n' < /proc/$PPID/cmdline"))
    runners.worked("--runner", "inline")
    assert "run-job" not in (runners.folder(job_id) / "attempts/0001/steps/1/stdout").read_text()


def test_crashing_job_kills_neither_the_worker_nor_other_jobs(runners: Program) -> None:
    good = [runners.enqueue(shell(f"echo {number}")) for number in range(4)]
    bad = runners.enqueue(calls("segfault"))
    good += [runners.enqueue(shell(f"echo {number}")) for number in range(4)]
    worker = runners.start("worker")
    eventually(lambda: runners.status(bad) == "failed", "the bad job does not end")
    eventually(lambda: all(runners.status(job) == "succeeded" for job in good), "the others do not end")
    assert worker.process.poll() is None
    job = runners.job(bad)
    assert (job["attempt"], job["error"]["category"]) == (3, "runner_died")
    assert "signal 11 (SIGSEGV)" in job["error"]["message"]
    assert worker.end().code == 0


def test_output_of_a_runner_is_in_the_logs_of_its_job(runners: Program) -> None:
    job_id = runners.enqueue(calls("chat"))
    runners.worked()
    assert runners.call("logs", job_id, code=0).out == "of the step\na word of the tool\n"
    told = runners.call("logs", job_id, "--json", code=0).json["output"]
    assert [(item["step"], item["stream"]) for item in told] == [("1", "stdout"), (None, "runner")]
    assert runners.call("logs", job_id, "--stdout", code=0).out == "of the step\n"
    assert runners.call("logs", job_id, "--step", "1", code=0).out == "of the step\n"


def test_after_a_kill_no_process_of_the_job_lives(runners: Program, figure: Callable[..., None]) -> None:
    runners.enqueue(endless(), "--id", "long")
    worker = runners.start("worker")
    started(runners)
    began = time.monotonic()
    runners.call("kill", "long", code=0)
    eventually(lambda: marked(runners.path) == [], "a process of the job lives on")
    figure("kill of a job in a runner: until no process of it lives", round(time.monotonic() - began, 3), "s")
    assert runners.status("long") == "killed"
    eventually(lambda: written(runners) == [], "its slot is still taken")
    assert worker.process.poll() is None


def test_runner_that_ignores_signals_is_killed(runners: Program) -> None:
    runners.enqueue(calls("deaf"), "--id", "long")
    runners.start("worker")
    started(runners)
    runners.call("kill", "long", code=0)
    eventually(lambda: marked(runners.path) == [], "the runner lives on")


def test_sigterm_waits_for_the_runner_then_releases_the_job(runners: Program) -> None:
    runners.enqueue(endless(), "--id", "long")
    worker = runners.start("worker")
    started(runners)
    assert worker.end().code == 0
    job = runners.job("long")
    assert (job["status"], job["hops"][-1]["reason"]) == ("queued", "released")
    assert job["hops"][-1]["note"] == "the worker was stopped after 0 of 1 steps"
    assert marked(runners.path) == []


def test_runner_of_a_killed_worker_ends_its_steps_and_itself(runners: Program) -> None:
    runners.enqueue(endless(), "--id", "long")
    worker = runners.start("worker")
    started(runners)
    worker.kill()
    eventually(lambda: marked(runners.path) == [], "runner or step outlives the worker")
    assert len(written(runners)) == 1
    # An ending process loses its memory, by which it is found here, a moment before its locks.
    eventually(lambda: records(runners) == [], "its slot is still taken")
    runners.run("watchdog", "--once", code=0)
    assert written(runners) == []
    assert runners.status("long") == "stale"


@pytest.mark.parametrize("plan", [endless(), calls("deaf")], ids=["stopped", "deaf"])
def test_runner_that_outlives_its_worker_is_ended_before_the_job_is_requeued(
    runners: Program, plan: dict[str, Any]
) -> None:
    runners.enqueue(plan, "--id", "long")
    worker = runners.start("worker")
    started(runners)
    (runner,) = records(runners)
    os.kill(runner["pid"], signal.SIGSTOP)  # it cannot notice that its worker dies
    worker.kill()
    assert runner["pid"] in marked(runners.path)
    assert len(records(runners)) == 1  # it still holds its slot
    runners.run("watchdog", "--once", code=0)
    assert marked(runners.path) == []
    assert runners.status("long") == "stale"
    assert written(runners) == []


def test_runner_that_wakes_after_its_job_was_reassigned_writes_nothing(runners: Program) -> None:
    """R6: its path contains the name of a dead agent, and agent names are never reused."""
    script = "touch started; while [ ! -e go ]; do sleep 0.02; done; touch ended"
    runners.enqueue(shell(script), "--id", "long")
    worker = runners.start("worker")
    started(runners)
    folder = runners.folder("long")
    (runner,) = records(runners)
    # Simulate a recovery that missed its processes: the job is moved while they live and their worker is stopped.
    worker.send(signal.SIGSTOP)
    os.kill(runner["pid"], signal.SIGSTOP)
    taken = runners.path / "taken"
    folder.rename(taken)
    before = sorted(path.relative_to(taken).as_posix() for path in taken.rglob("*"))
    (runners.path / "go").touch()
    eventually((runners.path / "ended").exists, "the step does not end")
    os.kill(runner["pid"], signal.SIGCONT)
    eventually(lambda: marked(runners.path) == [], "the runner does not end")
    assert sorted(path.relative_to(taken).as_posix() for path in taken.rglob("*")) == before
    assert not folder.exists()
    worker.send(signal.SIGCONT)
    assert worker.end().code == 0


def test_no_more_runners_live_than_the_config_permits(farro: Program) -> None:
    config(farro, max_concurrent_runners=2)
    (farro.path / "running").mkdir()
    script = "touch running/$FARRO_JOB; ls running | wc -l >> counts; sleep 0.15; rm running/$FARRO_JOB"
    jobs = [farro.enqueue(shell(script)) for _ in range(10)]
    workers = [farro.start("worker", "--workers", "4", "--drain") for _ in range(2)]
    for worker in workers:
        assert worker.ended().code == 0
    assert {farro.status(job) for job in jobs} == {"succeeded"}
    counts = [int(line) for line in (farro.path / "counts").read_text().split()]
    assert len(counts) == 10
    assert max(counts) == 2


def test_every_job_ends_once_though_runners_are_killed_at_random(farro: Program, figure: Callable[..., None]) -> None:
    config(farro, max_concurrent_runners=4)
    settings = json.loads((farro.path / "agents-config.json").read_text())
    settings["retry"]["max_attempts"] = 100
    (farro.path / "agents-config.json").write_text(json.dumps(settings))
    jobs = [farro.enqueue(steps(("sleep", "0.02"), ("echo", "done"), ("sleep", "0.02"))) for _ in range(16)]
    worker = farro.start("worker", "--workers", "4", "--drain")
    dice = random.Random(4)
    killed = 0
    until = time.monotonic() + 60
    while killed < 30 and worker.process.poll() is None and time.monotonic() < until:
        time.sleep(dice.uniform(0.0, 0.08))  # a random moment
        for record in records(farro):
            if dice.random() < 0.5:
                try:
                    os.kill(record["pid"], signal.SIGKILL)
                    killed += 1
                except ProcessLookupError:
                    continue
    assert worker.ended().code == 0
    figure("runners killed at random moments", killed)
    assert killed > 5
    for job_id in jobs:
        job = farro.job(job_id)
        ends = [hop for hop in job["hops"] if hop["reason"] in ENDS]
        assert job["status"] == "succeeded"
        assert len(ends) == 1
        assert [hop["reason"] for hop in job["hops"][:-1]] == ["retried"] * (len(job["hops"]) - 1)
        assert (farro.folder(job_id) / f"attempts/{job['attempt']:04d}/steps/2/stdout").read_text() == "done\n"
    audit = [json.loads(line) for line in (farro.path / "logs/audit.log").read_text().splitlines()]
    committed = [line["job_id"] for line in audit if line["event"] == "committed"]
    assert sorted(committed) == sorted(jobs)
    assert marked(farro.path) == []
    assert written(farro) == []


def test_run_job_by_hand_explains_its_purpose(farro: Program) -> None:
    done = farro.run("run-job", code=2)
    assert "started by a worker" in done.err


def test_run_job_is_not_in_the_help(farro: Program) -> None:
    assert "run-job" not in farro.run("--help", code=0).out
