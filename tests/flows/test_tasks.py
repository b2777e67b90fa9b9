"""`farro task add`: inside a step, outside of one, and with every mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.program import FARRO, Program, shell
from support import eventually

SCRIPT = """
import sys
from farro.__main__ import main
try:
    main()
finally:
    print(*sorted({name.split(".")[0] for name in sys.modules}), file=sys.stderr)
"""
SLOW = ("click", "dataclasses", "typing", "json", "re", "datetime", "collections", "threading", "subprocess", "ctypes")


def result(farro: Program, job_id: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((farro.folder(job_id) / "attempts/0001/result.json").read_text())
    return told


def inside(folder: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    return {"FARRO_TASKS": str(folder), "FARRO_STEP": "1", "FARRO_ROOT": str(folder.parent)}


def test_added_task_may_add_further_tasks(farro: Program) -> None:
    first = f'"{FARRO}" task add --id child -- sh -c \'echo child; "{FARRO}" task add --id grandchild -- echo deeper\''
    job_id = farro.enqueue(shell(first))
    farro.worked()
    told = result(farro, job_id)
    assert told["success"]
    assert [(one["id"], one["stdout"], one.get("added_by")) for one in told["step_results"]] == [
        ("1", "child\n", None),
        ("child", "child\ngrandchild\n", "1"),
        ("grandchild", "deeper\n", "child"),
    ]
    assert "3 of 3 steps succeeded" in (farro.folder(job_id) / "result.md").read_text()


def test_run_shows_what_added_steps_say(farro: Program) -> None:
    done = farro.run("run", "--", "sh", "-c", f'"{FARRO}" task add --id more -- sh -c "echo more; pwd"', code=0)
    assert done.out == f"more\nmore\n{farro.path}\n"


def test_task_add_with_a_closed_stdout_succeeds(farro: Program) -> None:
    done = farro.run("run", "--", "sh", "-ec", f'"{FARRO}" task add -- echo more >&-; echo first', code=0)
    assert (done.out, done.err) == ("first\nmore\n", "")


def test_task_add_in_a_deleted_folder_requires_another_folder(farro: Program) -> None:
    script = (
        f'mkdir gone; cd gone; rmdir ../gone; "{FARRO}" task add -- pwd; "{FARRO}" task add --cwd / --id there -- pwd'
    )
    done = farro.run("run", "--", "sh", "-c", script, code=0)
    assert done.out == "there\n/\n"
    assert done.err == (
        "farro: --cwd: the folder that this runs in cannot be had (No such file or directory), and the task would run "
        "there; name another by its whole path\n"
    )


def test_python_script_adds_tasks(farro: Program) -> None:
    script = "import farro; print(farro.add_task('echo', ['hello'], timeout=60))"
    job_id = farro.enqueue(shell(f'"{sys.executable}" -c "{script}"'))
    farro.worked()
    first, second = result(farro, job_id)["step_results"]
    assert first["stdout"].strip() == second["id"]
    assert second["id"].startswith("task-")
    assert second["stdout"] == "hello\n"


def test_a_bad_task_fails_the_job_and_is_named(farro: Program) -> None:
    job_id = farro.enqueue(shell(f'"{FARRO}" task add --id late --needs nobody -- true'))
    farro.worked()
    assert farro.status(job_id) == "failed"
    assert farro.job(job_id)["error"] == {
        "category": "bad_task",
        "message": 'task late: needs[0]: "nobody" is not a step of this plan',
    }


def test_a_job_whose_worker_was_killed_adds_its_tasks_again_and_runs_them_once(farro: Program) -> None:
    script = f'"{FARRO}" task add --id child -- true; mkdir once 2>/dev/null && exec sleep 100000; true'
    job_id = farro.enqueue(shell(script))
    worker = farro.start("worker")
    eventually(lambda: (farro.path / "once").exists(), "the step did not begin")
    worker.kill()
    farro.run("watchdog", "--once", code=0)
    farro.run("manager", "--once", code=0)
    farro.worked()
    told = json.loads((farro.folder(job_id) / "attempts/0002/result.json").read_text())
    assert [one["id"] for one in told["step_results"]] == ["1", "child"]


def test_task_add_prints_the_id_or_json(empty: Program) -> None:
    env = inside(empty.path / "tasks")
    assert empty.run("task", "add", "--id", "mine", "--", "true", env=env, code=0).out == "mine\n"
    assert empty.run("task", "add", "--json", "--id=its", "--", "true", env=env, code=0).json == {"task_id": "its"}
    line = ["--needs", "a,b", "--needs=c", "--input-from", "a", "--timeout", "1m", "--cwd", "d", "--env", "A=1=2"]
    line += ["--retries", "2", "--tool", "t", "--root", str(empty.path)]
    told = empty.run("task", "add", *line, "--", "x", "--", "--id", env=env, code=0).out.strip()
    files = sorted((empty.path / "tasks").glob("*-1.new"))
    assert json.loads(files[-1].read_text()) == {
        "id": told,
        "tool": "t",
        "command": "x",
        "args": ["--", "--id"],
        "needs": ["a", "b", "c"],
        "input_from_step": "a",
        "timeout": 60,
        "cwd": str(empty.path / "d"),
        "env": {"A": "1=2"},
        "retries": 2,
    }


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ([], "there is no command; for example: farro task add -- make test"),
        (["--"], "there is no command after --"),
        (["make", "test"], "a command stands after --; write: farro task add -- make test"),
        (["--neds", "a", "--", "x"], "no such option '--neds'; did you mean --needs?"),
        (["-z", "--", "x"], "no such option '-z'; farro task add --help lists them"),
        (["--id"], "--id needs a value"),
        (["--id", "--", "x"], "--id needs a value"),
        (["--id", "a", "--id", "b", "--", "x"], "--id was given twice; keep one"),
        (["--id", "a b", "--", "x"], "id: 'a b' is not an id"),
        (["--timeout", "soon", "--", "x"], "--timeout: 'soon' is not a duration such as 90s"),
        (["--timeout", "0", "--", "x"], "--timeout: 0 must be positive and at most a year"),
        (["--env", "A", "--", "x"], "--env: 'A' is not NAME=VALUE"),
        (["--retries", "many", "--", "x"], "--retries: 'many' is not a whole number from 0 to 100"),
        (["--retries", "10000000", "--", "x"], "--retries: 10000000 is not a whole number from 0 to 100"),
        (["--cwd", "", "--", "x"], "--cwd: it is empty"),
        (["--root", "/", "--", "x"], "--root: this step's job is in"),
        (["--id", "\x1b[31m", "--", "x"], "is not an id"),
    ],
    ids=" ".join,
)
def test_mistakes_of_task_add_are_reported(empty: Program, line: list[str], said: str) -> None:
    env = inside(empty.path / "tasks")
    done = empty.run("task", "add", *line, env=env, code=2)
    assert said in done.err
    assert done.out == ""
    assert "\x1b" not in done.err
    assert os.listdir(empty.path / "tasks") == []


def test_task_add_outside_of_a_step_explains_its_purpose(empty: Program) -> None:
    done = empty.run("task", "add", "--", "true", code=2)
    assert "from inside a running step, and this is none" in done.err
    assert "farro enqueue -- make test" in done.err


def test_task_add_after_the_end_of_the_plan_is_refused(empty: Program) -> None:
    env = {**inside(empty.path / "tasks"), "FARRO_TASKS": str(empty.path / "gone")}
    done = empty.run("task", "add", "--", "true", env=env, code=3)
    assert done.err.startswith("farro: the job's plan is already over; nothing was added.")


def test_help_lists_task_add(empty: Program) -> None:
    assert "Add steps to a plan" in empty.call("--help", code=0).out
    assert "Add a step to the plan" in empty.call("task", "--help", code=0).out
    by_hand = empty.run("task", "add", "--help", code=0).out
    assert by_hand.startswith("Usage: farro task add")
    assert empty.call("task", "add", "-h", code=0).out == by_hand


def test_task_add_imports_almost_nothing(empty: Program) -> None:
    """It must start almost as fast as the interpreter: a plan may add a thousand tasks."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", SCRIPT, "task", "add", "--needs", "a", "--", "true"],
        env={**empty.env, **inside(empty.path / "tasks"), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert not set(SLOW) & set(done.stderr.split())
