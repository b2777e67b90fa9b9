"""Everyday submissions with the installed program: commands, start times, priorities and chains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from flows.program import PATIENCE_S, Program, shell, steps
from support import eventually


def queued(farro: Program, *args: str) -> str:
    return farro.call("enqueue", *args, code=0).out.strip()


def prompt(farro: Program, job_id: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((farro.folder(job_id) / "prompt.json").read_text())
    return told


def refused(farro: Program, *args: str, code: int = 2, stdin: str = "") -> str:
    """Return the error message; require that nothing was queued."""
    before = farro.call("ls", "--json", code=0).out
    told = farro.call("enqueue", *args, stdin=stdin, code=code).err
    assert farro.call("ls", "--json", code=0).out == before
    return told


# --- commands ----------------------------------------------------------------------------------------------------


def test_a_command_is_queued_and_runs_where_it_was_typed(farro: Program) -> None:
    here = farro.path / "here"
    here.mkdir()
    job_id = farro.run("enqueue", "--", "sh", "-c", "pwd > where", cwd=here, code=0).out.strip()
    farro.worked()
    assert (here / "where").read_text() == f"{here}\n"
    assert prompt(farro, job_id)["name"] == "sh -c 'pwd > where'"


def test_options_before_the_dashes_are_farros_and_later_ones_the_commands(farro: Program) -> None:
    job_id = queued(
        farro, "--id", "mine", "--role", "CodeReviewer", "--tag", "gpu", "--tag", "big", "--priority", "P1",
        "--timeout", "1h30m", "--cwd", "/", "--env", "A=1", "--", "grep", "--id", "x", "--", "-",
    )  # fmt: skip
    assert (job_id, farro.job(job_id)["role"]) == ("mine", "CodeReviewer")
    assert prompt(farro, "mine") == {
        "name": "grep --id x -- -",
        "steps": [
            {
                "step_number": 1,
                "tool": "unix",
                "command": "grep",
                "args": ["--id", "x", "--", "-"],
                "timeout": 5400.0,
                "cwd": "/",
                "env": {"A": "1"},
            }
        ],
        "metadata": {"tags": ["gpu", "big"], "priority": "P1"},
    }


def test_enqueue_creates_the_personal_root_when_no_root_exists(empty: Program) -> None:
    empty.run("enqueue", "--", "true", code=0)
    assert empty.run("worker", "--drain", code=0)
    assert [job["status"] for job in empty.run("ls", "--json", code=0).json["jobs"]] == ["succeeded"]
    other = Program(empty.path / "other")
    other.path.mkdir()
    told = other.run("ls", code=2).err
    assert "make one here with: farro init; or begin without one: farro run -- COMMAND" in told
    assert os.listdir(other.path) == [], "read commands create nothing"


def test_options_apply_to_a_plan_as_well(farro: Program) -> None:
    (farro.path / "plan.json").write_text(json.dumps(steps(["true"], ["true"], metadata={"tags": ["gpu"], "own": 1})))
    job_id = queued(
        farro, "plan.json", "--tag", "big", "--priority", "P0", "--timeout", "10s", "--cwd", ".", "--env", "A=1"
    )
    told = prompt(farro, job_id)
    assert told["metadata"] == {"tags": ["gpu", "big"], "own": 1, "priority": "P0"}
    assert told["timeout"] == 10.0
    assert [(step["cwd"], step["env"]) for step in told["steps"]] == [(str(farro.path), {"A": "1"})] * 2
    (farro.path / "tasks.json").write_text(json.dumps([{"id": "a", "command": "true"}]))
    assert prompt(farro, queued(farro, "tasks.json", "--env", "A=1"))["tasks"][0]["env"] == {"A": "1"}


@pytest.mark.parametrize(
    ("plan", "args", "said"),
    [
        ({"metadata": {"priority": "P1"}}, ["--priority", "P2"], "metadata.priority: is P1, but --priority says P2"),
        (
            {"metadata": {"priority": "high"}},
            [],
            'metadata.priority: "high" is not a priority; choose one of P0, P1, P2, P3',
        ),
        ({"timeout": 5}, ["--timeout", "10s"], "timeout: is 5, but --timeout says 10"),
        ({"metadata": {"after": "x"}}, [], "metadata.after: must be a list of job ids"),
        ({"metadata": {"after_any": ["ok", 5]}}, [], "metadata.after_any[1]: 5 is not a job id"),
        ({"metadata": {"after": ["nobody"]}}, [], "metadata.after[0]: no job nobody; `farro ls` lists what there is"),
        ({"id": "me", "metadata": {"after": ["me"]}}, [], "metadata.after[0]: me cannot run after itself"),
    ],
)
def test_plan_that_contradicts_an_option_is_refused_with_its_position(
    farro: Program, plan: dict[str, Any], args: list[str], said: str
) -> None:
    queued(farro, "--id", "ok", "--", "true")
    told = refused(farro, "-", *args, stdin=json.dumps(shell("true", **plan), indent=1))
    assert said in told
    assert told.startswith("farro: <stdin>:"), told


def test_steps_that_contradict_an_option_are_refused_with_their_position(farro: Program) -> None:
    plan = steps(["true"])
    plan["steps"][0].update(cwd="/tmp", env={"A": "1"})
    told = refused(farro, "-", "--cwd", ".", "--env", "A=2", stdin=json.dumps(plan))
    assert 'steps[0].cwd: is "/tmp", but --cwd was given' in told
    assert 'steps[0].env.A: is "1", but --env says "2"' in told


def test_missing_double_dash_is_reported_with_the_right_command(farro: Program) -> None:
    assert "make: no such file. To queue a command write: farro enqueue -- make" in refused(farro, "make")
    assert "to queue a command write: farro enqueue -- make test" in refused(farro, "make", "test")
    assert "there is no command after --" in refused(farro, "--")
    assert "name one thing to queue" in refused(farro)
    assert "name one thing to queue" in refused(farro, "plan.json", "--", "true")


# --- start times -------------------------------------------------------------------------------------------------


def test_delayed_command_waits_for_its_start_time(farro: Program) -> None:
    job_id = queued(farro, "--delay", "1s", "--", "true")
    before = farro.job(job_id)
    assert before["not_before"] > before["created_at"]
    farro.worked()
    told = farro.job(job_id)
    assert told["status"] == "succeeded"
    assert told["first_claimed_at"] >= before["not_before"]


def test_start_time_may_be_local_or_name_its_zone(farro: Program) -> None:
    env = {"TZ": "Asia/Tokyo"}
    year = datetime.now(UTC).year + 5
    told = farro.run("enqueue", "--at", f"{year}-11-16T09:00", "--", "true", env=env, code=0).out.strip()
    assert farro.job(told)["not_before"] == f"{year}-11-16T00:00:00.000Z"
    told = farro.run("enqueue", "--at", f"{year}-11-16 09:00+02:00", "--", "true", env=env, code=0).out.strip()
    assert farro.job(told)["not_before"] == f"{year}-11-16T07:00:00.000Z"
    told = farro.run("enqueue", "--at", "tomorrow 09:30", "--", "true", env=env, code=0).out.strip()
    assert farro.job(told)["not_before"].endswith("T00:30:00.000Z")
    assert f"not before {farro.job(told)['not_before']}" in farro.call("ls", code=0).out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--at", "2020-01-01T00:00"), "--at: '2020-01-01T00:00' is in the past"),
        (("--at", "2126-02-30"), "--at: '2126-02-30' names a day that does not exist: February 2126 has 28 days"),
        (("--at", "25:00"), "is not a time of day: hours go from 00 to 23"),
        (("--at", "soon"), "is not a time such as"),
        (("--delay", "soon"), "--delay: 'soon' is not a duration such as 90s, 10m"),
        (("--delay", "1,5h"), "the decimal mark is a point: 1.5h"),
        (("--delay", "999w"), "at most ten years"),
        (("--delay", "1m", "--at", "tomorrow 09:00"), "--delay and --at both set the start time"),
        (("--priority", "P4"), "'P4' is not one of 'P0', 'P1', 'P2', 'P3'"),
        (("--timeout", "0s"), "--timeout: 0s must be positive and at most a year"),
        (("--after", "nobody"), "--after: no job nobody in "),
        (("--after-any", "no body"), "--after-any: no job no in "),
        (("--after", "../x"), "--after: '../x' is not a job id"),
        (("--id", "me", "--after", "me"), "--after: me cannot run after itself"),
    ],
)
def test_mistakes_are_reported(farro: Program, args: tuple[str, ...], said: str) -> None:
    assert said in refused(farro, *args, "--", "true")


# --- priorities --------------------------------------------------------------------------------------------------


def test_urgent_jobs_run_first(farro: Program) -> None:
    for name in ("P3", "P2", "P0", "P1"):
        queued(farro, "--priority", name, "--", "sh", "-c", f"echo {name} >> order")
    queued(farro, "--", "sh", "-c", "echo plain >> order")
    farro.worked("--workers", "1")
    assert (farro.path / "order").read_text().split() == ["P0", "P1", "P2", "plain", "P3"]


# --- chains ------------------------------------------------------------------------------------------------------

CHAIN = """
set -e
a=$(farro enqueue -- sh -c 'sleep 0.3; echo build >> order')
b=$(farro enqueue --after $a -- sh -c 'echo test >> order; exit 1')
c=$(farro enqueue --after $b -- sh -c 'echo never >> order')
d=$(farro enqueue --after-any $b --delay 1s -- sh -c 'echo done >> order')
farro ls > listed
farro worker --drain > log
"""


def test_chained_jobs_run_in_order_and_a_failure_kills_the_rest(farro: Program) -> None:
    env = {**farro.env, "PATH": os.pathsep.join((os.path.dirname(sys.executable), farro.env["PATH"]))}
    subprocess.run(["bash", "-c", CHAIN], cwd=farro.path, env=env, check=True, timeout=PATIENCE_S)
    assert (farro.path / "order").read_text().split() == ["build", "test", "done"]
    a, b, c, d = sorted(job["job_id"] for job in farro.call("ls", "--json", code=0).json["jobs"])
    listed = (farro.path / "listed").read_text()
    for job_id, dependency in ((b, a), (c, b), (d, b)):
        (line,) = [line for line in listed.splitlines() if line.startswith(job_id)]
        assert line.split()[1:3] == ["Runner", "queued"]
        assert line.endswith(f"after {dependency}")
    assert [farro.status(job_id) for job_id in (a, b, c, d)] == ["succeeded", "failed", "killed", "succeeded"]
    assert farro.job(c)["error"] == {"category": "dependency_failed", "message": f"{b} did not succeed"}
    assert "still waiting" not in (farro.path / "log").read_text()


def test_draining_worker_waits_for_a_dependency_of_another_role(farro: Program) -> None:
    review = queued(
        farro, "--role", "CodeReviewer", "--", "sh", "-c", "touch started; while [ ! -e go ]; do sleep 0.02; done"
    )
    after = queued(farro, "--after", review, "--", "true")
    other = farro.start("worker", "--role", "CodeReviewer")
    eventually((farro.path / "started").exists, "it did not start")
    drain = farro.start("worker", "--drain")
    eventually(lambda: os.listdir(farro.path / "agents/Runner/in-progress"), "the worker did not join")
    assert drain.process.poll() is None
    (farro.path / "go").touch()
    assert drain.ended().code == 0
    assert farro.status(after) == "succeeded"
    other.end()


def test_after_takes_several_jobs(farro: Program) -> None:
    a, b, c = (queued(farro, "--", "true") for _ in range(3))
    last = queued(farro, "--after", f"{a},{b}", "--after", c, "--", "true")
    assert farro.job(last)["waits_for"] == [a, b, c]
    assert f"after     {a}, {b}, {c}" in farro.call("show", last, code=0).out
    farro.worked()
    assert farro.status(last) == "succeeded"


def test_after_accepts_the_beginning_of_an_id(farro: Program) -> None:
    for name in ("build-1", "build-2", "tests"):
        queued(farro, "--id", name, "--", "true")
    chained = ("--id", "last", "--after", "tes", "--after-any", "build-2", "--", "true")
    assert queued(farro, *chained) == queued(farro, *chained)
    assert farro.job("last")["waits_for"] == ["tests", "build-2"]
    assert "2 jobs begin with build" in refused(farro, "--after", "build", "--", "true")
    assert "did you mean tests?" in refused(farro, "--after", "test-s", "--", "true")


def test_after_refuses_a_failed_job_and_after_any_accepts_it(farro: Program) -> None:
    bad = queued(farro, "--", "false")
    farro.worked()
    told = refused(farro, "--after", bad, "--", "true", code=3)
    assert f"{bad} did not succeed" in told
    assert "--after-any" in told
    assert farro.status(queued(farro, "--after-any", bad, "--", "true")) == "queued"


def test_killing_a_waiting_job_kills_its_dependents(farro: Program) -> None:
    a = queued(farro, "--", "true")
    b = queued(farro, "--after", a, "--", "true")
    c = queued(farro, "--after", b, "--", "true")
    assert farro.call("kill", b, code=0).out == f"{b} is killed\n"
    assert [farro.status(job_id) for job_id in (a, b, c)] == ["queued", "killed", "killed"]


def test_job_of_a_batch_may_depend_on_an_earlier_line(farro: Program) -> None:
    lines = [
        shell("echo a >> order", id="a"),
        shell("echo b >> order", id="b", metadata={"after": ["a"]}),
        shell("echo c >> order", id="c", metadata={"after_any": ["a", "b"]}),
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    for _ in range(2):
        assert farro.call("enqueue", "--many", "-", stdin=text, code=0).out.split() == ["a", "b", "c"]
    farro.worked()
    assert (farro.path / "order").read_text().split() == ["a", "b", "c"]
    backwards = "".join(json.dumps({**line, "id": f"{line['id']}2"}) + "\n" for line in reversed(lines))
    told = refused(farro, "--many", "-", stdin=backwards.replace('"a", "b"', '"a2", "b2"'))
    assert "<stdin>:1:" in told
    assert "no job a2" in told


def test_watchdog_unblocks_dependents_that_a_dead_worker_left_waiting(farro: Program) -> None:
    """Simulate a worker that died after its commit and before it read the index."""
    a = queued(farro, "--", "true")
    b = queued(farro, "--after", a, "--", "true")
    aside = farro.path / "aside"
    os.rename(farro.path / "jobs/.after", aside)
    worker = farro.start("worker")
    eventually(lambda: farro.status(a) == "succeeded", "the job did not run")
    worker.end()
    assert farro.job(b)["place"] == "agents/Manager/waiting"
    os.rename(aside, farro.path / "jobs/.after")
    assert f"unblocked        {b}" in farro.call("watchdog", "--once", code=0).out
    farro.worked()
    assert farro.status(b) == "succeeded"
    assert list(Path(farro.path, "jobs/.after").iterdir()) == []
