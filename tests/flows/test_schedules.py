"""Schedules on the command line: write a file, check it, list it, run it now, and run it when it is due."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flows.program import Program, steps
from support import eventually

PLAN = {"steps": [{"id": "tidy", "command": "echo", "args": ["tidied"]}]}


def put(root: Path, name: str = "nightly.json", text: str | None = None, **changes: Any) -> Path:
    folder = root / "schedules"
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text or json.dumps({"cron": "30 2 * * *", "zone": "Europe/Berlin", "plan": PLAN, **changes}))
    return path


def test_a_root_without_schedules_says_how_to_make_one(farro: Program) -> None:
    assert "farro schedules --help" in farro.call("schedules", code=0).out
    assert "Europe/Berlin" in farro.call("schedules", "--help", code=0).out
    assert farro.call("schedules", "--json", code=0).json == {"schedules": []}


def test_schedules_are_listed_with_their_times_and_problems(farro: Program) -> None:
    put(farro.path)
    put(farro.path, "off.json", enabled=False)
    put(farro.path, "weekly.yaml", "cron: '@weekly'\nplan:\n  steps:\n    - {id: a, command: 'true'}\n")
    put(farro.path, "wrong.json", '{\n  "cron": "61 * * * *",\n  "zone": "Mars/Base",\n  "plan": {"steps": []}\n}')
    done = farro.call("schedules", code=0)
    rows = {line.split()[0]: line for line in done.out.splitlines()}
    assert set(rows) == {"NAME", "nightly", "off", "weekly", "wrong"}
    assert rows["off"].endswith("disabled")
    assert "schedules/wrong.json:2:11: cron: minute: 61 is not between 0 and 59" in done.err
    assert "schedules/wrong.json:4:21: plan.steps: must have at least 1; it has 0" in done.err
    told = {row["name"]: row for row in farro.call("schedules", "--json", code=0).json["schedules"]}
    assert told["nightly"]["next"].endswith(":30:00Z")
    assert told["off"]["next"] is None
    assert len(told["wrong"]["problems"]) == 3


def test_check_reports_every_problem_with_its_position(farro: Program) -> None:
    good = put(farro.path)
    assert "good; next run 20" in farro.call("schedules", "check", str(good), code=0).out
    plan = '"plan": {"steps": [{"id": "a", "command": "x"}]'
    for text, why in (
        (
            f'{{"cron": "* * * * *", {plan}, "id": "b"}}}}',
            "1:72: plan.id: every run",
        ),
        ('{"cron": "* * * * *"}', "1:1: has neither plan nor plan_file"),
        ('{"cron": "* * * * *", "plan_file": "no.json"}', "plan_file: schedules/no.json: cannot be read: No such file"),
        ('{"corn": "* * * * *", "plan_file": "x"}', "corn: is not a known field; did you mean cron?"),
        ('{"cron": 5, "missed": "often", "plan_file": "x"}', "1:10: cron: must be text, not the number 5"),
        (
            f'{{"cron": "* * * * *", "zone": "Mars/Base", {plan}}}}}',
            "1:31: zone: no",
        ),
        (f'{{"cron": "* * * * *", "role": "Nobody", {plan}}}}}', "role: no role"),
        ("[1]", "must be an object"),
        ("{", "1:2: "),
    ):
        path = put(farro.path, "x.json", text)
        done = farro.call("schedules", "check", str(path.relative_to(farro.path)), code=2)
        assert f"schedules/x.json:{why}" in done.err or why in done.err, done.err


def test_schedules_run_starts_one_schedule_now(farro: Program) -> None:
    put(farro.path)
    job_id = farro.call("schedules", "run", "nightly", code=0).out.strip()
    farro.worked()
    assert farro.status(job_id) == "succeeded"
    done = farro.call("schedules", "run", "nigthly", code=2)
    assert "no schedule nigthly" in done.err
    assert "known: nightly" in done.err


def test_a_plan_file_is_read_beside_the_schedule(farro: Program) -> None:
    (farro.path / "plan.json").write_text(json.dumps(steps(("true",))))
    put(farro.path, text='{"cron": "@daily", "plan_file": "../plan.json", "role": "Runner"}')
    job_id = farro.call("schedules", "--json", "run", "nightly", code=0).json["jobs"][0]
    assert farro.job(job_id)["role"] == "Runner"


def test_a_scheduler_and_a_manager_run_what_is_due_once(farro: Program) -> None:
    put(farro.path, cron="* * * * *", zone="UTC")
    assert farro.run("scheduler", "--once", code=0).out == "no schedule is due\n"
    state = farro.path / "jobs" / ".schedules" / "nightly.json"
    state.write_text('{"handled": "2026-01-01T00:00:00.000Z"}')
    daemons = [farro.start("scheduler"), farro.start("manager"), farro.start("manager")]
    for daemon in daemons:
        daemon.started()
    eventually(lambda: farro.call("ls", "--json", code=0).json["jobs"], "no schedule ran")
    for daemon in daemons:
        assert daemon.end().code == 0
    jobs = [job["job_id"] for job in farro.call("ls", "--json", code=0).json["jobs"]]
    assert len(jobs) <= 2, "the minute may have changed meanwhile"
    assert all(job.startswith("sched-nightly-20") for job in jobs)
    told = farro.call("schedules", "--json", code=0).json["schedules"][0]
    assert told["last_job"] == max(jobs)
