"""`farro import-air`: the files of an Air-Executor become named jobs; completed tasks do not run again.

tests/air/test_air.py covers which tasks of a list remain to be run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from flows.program import Program, listing


class Air:
    """Make an Air-Executor folder beside the root."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.path = home / ".air-executor"
        (self.path / "jobs").mkdir(parents=True)

    def job(self, name: str, state: str, *tasks: dict[str, Any]) -> Path:
        folder = self.path / "jobs" / name
        folder.mkdir()
        at = "2025-10-02T10:00:00Z"
        told = {"id": f"uuid-{name}", "name": name, "state": state, "created_at": at, "updated_at": at}
        (folder / "state.json").write_text(json.dumps(told))
        times = {"created_at": at, "started_at": None, "completed_at": None}
        whole = [{"job_name": name, **times, **task} for task in tasks]
        (folder / "tasks.json").write_text(json.dumps(whole, indent=1))
        return folder


def task(name: str, status: str, *needs: str, **more: Any) -> dict[str, Any]:
    args = {"command": "touch", "args": [f"ran-{name}"], "dependencies": list(needs)}
    return {"id": name, **args, "status": status, "error": None, **more}


@pytest.fixture
def air(farro: Program) -> Air:
    return Air(farro.path / "project")


def taken(farro: Program, *options: str, code: int = 0) -> dict[str, dict[str, Any]]:
    told = farro.call("import-air", "project", "--json", *options, code=code).json
    return {job["name"]: job for job in told["jobs"]}


def actions(farro: Program, *options: str, code: int = 0) -> dict[str, str]:
    return {name: job["action"] for name, job in taken(farro, *options, code=code).items()}


def test_import_runs_unfinished_tasks_only(farro: Program, air: Air) -> None:
    air.job("nightly", "working", task("a", "completed"), task("b", "pending", "a"), task("c", "pending", "a", "b"))
    before = listing(air.home)
    told = taken(farro)["nightly"]
    assert (told["action"], told["tasks"], told["completed"]) == ("imported", 2, ["a"])
    assert listing(air.home) == before, "the original is never changed"
    farro.worked()
    assert farro.status("nightly") == "succeeded"
    assert sorted(path.name for path in air.home.glob("ran-*")) == ["ran-b", "ran-c"], "run in the original folder"
    prompt = json.loads((farro.folder(told["job_id"]) / "prompt.json").read_text())
    assert prompt["metadata"]["air_executor"]["completed"] == ["a"]


def test_importing_again_imports_nothing_twice(farro: Program, air: Air) -> None:
    air.job("nightly", "waiting", task("a", "pending"))
    assert actions(farro) == {"nightly": "imported"}
    first = listing(farro.path)
    assert actions(farro) == {"nightly": "already"}
    farro.worked()
    assert actions(farro) == {"nightly": "already"}
    farro.call("reset", "--job", "nightly", "--yes", code=0)
    assert actions(farro) == {"nightly": "already"}
    assert len(first) > 0


def test_a_dry_run_changes_nothing(farro: Program, air: Air) -> None:
    air.job("nightly", "waiting", task("a", "pending"))
    before = listing(farro.path)
    assert actions(farro, "--dry-run") == {"nightly": "imported"}
    assert "would be imported" in farro.call("import-air", "project", "--dry-run", code=0).out
    assert listing(farro.path) == before


def test_orphaned_task_is_not_imported_as_done(farro: Program, air: Air) -> None:
    """Upstream: a task in state running completed its job when its runner was gone."""
    folder = air.job("nightly", "completed", task("a", "running"))
    (folder / "runner.pid").write_text("999999999\n2025-10-02T10:05:00Z\n")
    told = taken(farro)["nightly"]
    assert told["action"] == "imported"
    assert "its state was wrong: it said completed" in told["message"]
    farro.worked()
    assert (air.home / "ran-a").exists()


def test_job_with_a_live_runner_is_refused_and_others_are_imported(farro: Program, air: Air) -> None:
    runner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        noted = datetime.now(UTC).isoformat()
        for name, stamp in (("alive", noted), ("reused", "2025-10-02T10:05:00Z"), ("torn", "")):
            folder = air.job(name, "working", task("a", "running"))
            (folder / "runner.pid").write_text(f"{runner.pid}\n{stamp}\n" if stamp else "no pid\n")
        told = taken(farro, code=1)
        assert {name: job["action"] for name, job in told.items()} == {
            "alive": "problem",
            "reused": "imported",
            "torn": "imported",
        }
        assert f"process {runner.pid}, is alive; stop that Air-Executor first" in told["alive"]["message"]
    finally:
        runner.communicate(b"\n")
    assert actions(farro) == {"alive": "imported", "reused": "already", "torn": "already"}


def test_failed_job_is_reported_and_queued_only_on_request(farro: Program, air: Air) -> None:
    """Its dependents wait for a failed task; upstream such a job stayed running for ever."""
    air.job("bad", "working", task("a", "completed"), task("b", "failed", "a", error="boom"), task("c", "pending", "b"))
    air.job("done", "completed", task("a", "completed"))
    air.job("idle", "waiting")
    told = taken(farro)
    assert {name: job["action"] for name, job in told.items()} == {
        "bad": "failed",
        "done": "nothing",
        "idle": "nothing",
    }
    assert told["bad"]["message"] == "task b: boom; 2 tasks are not done; queue them with --failed"
    assert farro.call("ls", "--json", code=0).json == {"jobs": []}
    assert actions(farro, "--failed")["bad"] == "imported"
    assert actions(farro)["bad"] == "already"
    farro.worked()
    assert farro.status("bad") == "succeeded"
    assert sorted(path.name for path in air.home.glob("ran-*")) == ["ran-b", "ran-c"]


@pytest.mark.parametrize("file", ["state.json", "tasks.json"])
@pytest.mark.parametrize("text", [b"", b"\xff\x00", b'[{"id": "a",\n "comm', b"{}", b"null", None])
def test_corrupt_job_is_reported_with_its_position_and_others_are_imported(
    farro: Program, air: Air, file: str, text: bytes | None
) -> None:
    """Upstream: a corrupt task file was an empty queue, and an empty queue was a completed job."""
    bad = air.job("bad", "working", task("a", "pending"))
    air.job("good", "working", task("a", "pending"))
    (bad / file).unlink()
    if text is not None:
        (bad / file).write_bytes(text)
    told = taken(farro, code=1)
    assert (told["bad"]["action"], told["good"]["action"]) == ("problem", "imported")
    assert f"{bad / file}:" in told["bad"]["message"]
    assert farro.call("job", "list", "--json", code=0).json["names"].keys() == {"good"}


def test_wrong_tasks_are_reported_with_line_and_column(farro: Program, air: Air) -> None:
    folder = air.job("bad", "working", task("a", "done"), task("b", "pending", "nowhere"))
    assert (
        f"{folder / 'tasks.json'}:13:13: [0].status: must be pending, running" in taken(farro, code=1)["bad"]["message"]
    )
    air.job("lost", "working", task("b", "pending", "nowhere"))
    assert '[0].dependencies[0]: "nowhere" is not a step' in taken(farro, code=1)["lost"]["message"]
    other = air.job("named", "working", task("a", "pending"))
    (other / "state.json").write_text((other / "state.json").read_text().replace('"named"', '"other"'))
    assert "state.json:1:" in taken(farro, code=1)["named"]["message"]


def test_name_of_another_job_is_reported(farro: Program, air: Air) -> None:
    farro.call("job", "create", "nightly", "--tasks", "-", stdin='[{"id": "a", "command": "true"}]', code=0)
    air.job("nightly", "working", task("a", "pending"))
    assert "is already used by job" in taken(farro, code=1)["nightly"]["message"]


def test_imported_config_is_checked_with_line_numbers_and_its_timeout_kept(farro: Program, air: Air) -> None:
    air.job("nightly", "waiting", task("a", "pending"))
    config = air.path / "config.yaml"
    config.write_text("poll_interval: 500\ntask_timeout: 900\nlog_levle: INFO\n")
    refused = farro.call("import-air", "project", code=1)
    assert f"{config}:1:16: poll_interval: must be at most 60" in refused.err
    assert f"{config}:3:1: log_levle: " in refused.err
    assert farro.call("job", "list", "--json", code=0).json == {"names": {}}
    config.write_text(
        "poll_interval: 5\ntask_timeout: 900\nmax_concurrent_runners: 10\nbase_path: .air-executor\n"
        "log_level: INFO\nlog_format: json\n"
    )
    told = farro.call("import-air", "project/.air-executor", "--json", code=0).json
    assert told["config"] == {"task_timeout": 900, "log_format": "json"}
    prompt = json.loads((farro.folder(told["jobs"][0]["job_id"]) / "prompt.json").read_text())
    assert prompt["tasks"][0]["timeout"] == 900


def test_folder_without_air_executor_files_is_refused(farro: Program) -> None:
    assert "no Air-Executor's folder" in farro.call("import-air", "nowhere", code=2).err
    assert "is a farro root" in farro.call("import-air", os.curdir, code=2).err


def test_start_offers_the_jobs_of_an_air_executor_and_imports_them_with_yes(farro: Program) -> None:
    """As the document has it: `air-executor start` in the folder that holds .air-executor."""
    Air(farro.path).job("nightly", "waiting", task("a", "pending"))

    def start(*options: str, reply: str = "") -> str:
        argv = [os.path.join(os.path.dirname(sys.executable), "air-executor"), "start", "--no-web", *options]
        done = subprocess.run(
            argv, cwd=farro.path, env=farro.env, input=reply, capture_output=True, text=True, check=True
        )
        return done.stdout + done.stderr

    assert "farro import-air .air-executor" in start()
    assert "were not imported" in start(reply="n\n")
    assert farro.call("job", "list", "--json", code=0).json["names"] == {}
    assert "nightly  imported" in start("--yes")
    farro.run("wait", "nightly", code=0)
    assert (farro.path / "ran-a").exists()
    assert "import" not in start(), "there is nothing left to offer"
    farro.run("stop", code=0)
