"""Perform a claim: an error of the prompt, a tool or the machine is an outcome of that job alone."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from farro.errors import StorageTrouble, SyncFailed
from farro.execution import work
from farro.execution.runner import Guarding
from farro.execution.runners.inline import InlineRunner
from farro.execution.tools import Call, Tools
from farro.host import processes
from farro.host.clock import SystemClock
from farro.jobs.states import Status
from farro.sandbox.levels import Probe, Sandbox
from farro.store.port import Submission
from farro.worker.perform import Performer
from farro.worker.worker import Slot
from worker.bench import Bench


def performer(bench: Bench, tools: Tools | None = None) -> Performer:
    clock = SystemClock()
    runner = InlineRunner(tools=tools or Tools(), clock=clock)
    return Performer(root=bench.store.root, base_env={"PATH": os.environ["PATH"]}, runner=runner, clock=clock)


def slot(bench: Bench, tools: Tools | None = None) -> Slot:
    return bench.slot(performer(bench, tools))


def folder(bench: Bench, job_id: str) -> Path:
    return Path(bench.store.root, bench.view(job_id).place, job_id)


def put(bench: Bench, job_id: str, prompt: dict[str, Any]) -> None:
    """Enqueue a prompt without checks, as another version of farro may have done."""
    bench.store.enqueue(Submission(role="Runner", prompt=prompt, job_id=job_id))


def test_a_plan_is_run_and_its_result_is_kept(files: Bench) -> None:
    put(files, "one", {"plan_id": "p", "steps": [{"id": "say", "command": "echo", "args": ["hi"]}]})
    slot(files).run_once()
    attempt = folder(files, "one") / "attempts/0001"
    assert (attempt / "steps/say/stdout").read_text() == "hi\n"
    result = json.loads((attempt / "result.json").read_text())
    assert (result["job_id"], result["plan_id"], result["success"]) == ("one", "p", True)
    assert (folder(files, "one") / "result.md").read_text().startswith("# Succeeded")


def test_a_step_without_a_timeout_gets_the_performers_default(files: Bench) -> None:
    put(files, "long", {"timeout": 1000, "steps": [{"id": "a", "command": "sleep", "args": ["100000"]}]})
    files.slot(replace(performer(files), step_timeout_s=0.05)).run_once()
    error = files.view("long").lifecycle.error
    assert error is not None
    assert error["category"] == "timeout"
    assert "the step's timeout of 0.05 s (runners.task_timeout)" in error["message"]


def test_a_step_whose_time_is_over_has_ten_seconds_until_it_is_killed(
    files: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    graces: list[float] = []
    end_tree = processes.end_tree

    def noting(*args: Any, grace_s: float, **more: Any) -> Any:
        graces.append(grace_s)
        return end_tree(*args, grace_s=grace_s, **more)

    monkeypatch.setattr(processes, "end_tree", noting)
    put(files, "long", {"steps": [{"id": "a", "command": "sleep", "args": ["100000"], "timeout": 0.05}]})
    slot(files).run_once()
    assert (files.view("long").lifecycle.error or {})["category"] == "timeout"
    assert graces == [10.0]


@pytest.mark.parametrize("prompt", [{}, {"steps": 3}, {"steps": [{"id": "a"}]}, {"id": "x", "command": "old"}])
def test_a_bad_prompt_fails_its_job_with_the_places(files: Bench, prompt: dict[str, Any]) -> None:
    put(files, "bad", prompt)
    slot(files).run_once()
    view = files.view("bad")
    assert view.status is Status.FAILED
    assert view.lifecycle.error is not None
    assert view.lifecycle.error["category"] == "bad_prompt"
    assert "prompt.json: " in view.lifecycle.error["message"]
    result = json.loads((folder(files, "bad") / "attempts/0001/result.json").read_text())
    assert (result["job_id"], result["success"], result["step_results"]) == ("bad", False, [])
    assert "**bad_prompt**" in (folder(files, "bad") / "error.md").read_text()


def test_a_plan_with_allowed_paths_is_not_run_unconfined_where_a_sandbox_is_required(files: Bench) -> None:
    put(files, "boxed", {"allowed_paths": ["src"], "steps": [{"id": "a", "command": "touch", "args": ["ran"]}]})
    guarding = Guarding(sandbox="none", required=True)
    files.slot(replace(performer(files), guarding=guarding)).run_once()
    assert (files.view("boxed").lifecycle.error or {})["category"] == "sandbox_missing"
    assert not Path(files.store.root, "ran").exists()


@pytest.mark.parametrize("level", ["A", "B"])
def test_a_configured_sandbox_level_that_does_not_work_is_not_replaced(
    files: Bench, level: Literal["A", "B"], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Sandbox(level="none", probes=(Probe(level=level, works=False, why="it is switched off"),))
    monkeypatch.setattr(Sandbox, "available", staticmethod(lambda _: nothing))
    put(files, "boxed", {"allowed_paths": ["src/"], "steps": [{"id": "a", "command": "touch", "args": ["src/ran"]}]})
    files.slot(replace(performer(files), guarding=Guarding(sandbox=level))).run_once()
    error = files.view("boxed").lifecycle.error or {}
    assert error["category"] == "sandbox_missing"
    assert f"security.sandbox is {level}" in error["message"]
    assert "it is switched off" in error["message"]


def test_a_plan_without_allowed_paths_is_not_run_where_they_are_required(files: Bench) -> None:
    put(files, "free", {"steps": [{"id": "a", "command": "touch", "args": ["ran"]}]})
    files.slot(replace(performer(files), guarding=Guarding(paths_required=True))).run_once()
    assert (files.view("free").lifecycle.error or {})["category"] == "allowed_paths_missing"
    assert not Path(files.store.root, "ran").exists()


def test_a_bug_fails_one_job_and_not_the_worker(files: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def buggy(*args: Any, **more: Any) -> Any:
        raise ZeroDivisionError("division by zero")

    with monkeypatch.context() as patch:
        patch.setattr(work, "run_plan", buggy)
        put(files, "unlucky", {"steps": [{"id": "a", "command": "true"}]})
        worker = slot(files)
        worker.run_once()
    assert (files.view("unlucky").lifecycle.error or {})["category"] == "internal_error"
    assert "ZeroDivisionError: division by zero" in (folder(files, "unlucky") / "error.md").read_text()
    put(files, "lucky", {"steps": [{"id": "a", "command": "true"}]})
    worker.run_once()
    assert files.view("lucky").status is Status.SUCCEEDED


@pytest.mark.parametrize("trouble", [StorageTrouble("the disk is full"), OSError(28, "No space left on device")])
def test_a_job_that_hit_a_storage_error_is_retried_later(
    files: Bench, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    def full(*args: Any, **more: Any) -> Any:
        raise trouble

    monkeypatch.setattr(work, "run_plan", full)
    put(files, "one", {"steps": [{"id": "a", "command": "true"}]})
    slot(files).run_once()
    life = files.view("one").lifecycle
    assert (life.status, life.hops[-1].reason) == (Status.QUEUED, "retried")
    assert (life.error or {})["category"] == "storage"


def test_a_failed_sync_is_raised_and_not_turned_into_an_outcome(files: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def torn(*args: Any, **more: Any) -> Any:
        raise SyncFailed("sync failed")

    monkeypatch.setattr(work, "run_plan", torn)
    put(files, "one", {"steps": [{"id": "a", "command": "true"}]})
    with pytest.raises(SyncFailed):
        slot(files).run_once()


def test_a_stop_releases_the_job_and_says_how_far_it_was(files: Bench) -> None:
    put(files, "long", {"steps": [{"id": "a", "command": "true"}, {"id": "b", "command": "sleep", "args": ["1000"]}]})
    files.stop.request(0.0)
    slot(files).run_once()
    life = files.view("long").lifecycle
    assert (life.status, life.hops[-1].reason) == (Status.QUEUED, "released")
    assert (life.hops[-1].note or "").startswith("the worker was stopped after ")
    assert (life.hops[-1].note or "").endswith(" of 2 steps")


def test_a_python_tool_of_the_mapping_is_called(files: Bench) -> None:
    def shout(call: Call) -> int:
        call.stdout.write(call.stdin.read().upper())
        call.stderr.write(f"{call.job_id} {call.command} {call.args}".encode())
        return 3

    steps = [
        {"id": "say", "command": "echo", "args": ["hello"]},
        {
            "id": "shout",
            "tool": "shout",
            "command": "loud",
            "args": ["x"],
            "input_from_step": "say",
            "ok_exit_codes": [3],
        },
    ]
    put(files, "loud", {"steps": steps})
    slot(files, Tools({"shout": shout})).run_once()
    assert files.view("loud").status is Status.SUCCEEDED
    said = folder(files, "loud") / "attempts/0001/steps/shout"
    assert (said / "stdout").read_text() == "HELLO\n"
    assert (said / "stderr").read_text() == "loud loud ('x',)"


def test_a_python_tool_that_raises_fails_its_step_with_its_traceback(files: Bench) -> None:
    def broken(call: Call) -> None:
        raise RuntimeError("no such thing")

    put(files, "broken", {"steps": [{"id": "a", "tool": "broken", "command": "x"}]})
    slot(files, Tools({"broken": broken})).run_once()
    assert (files.view("broken").lifecycle.error or {})["category"] == "step_failed"
    assert "RuntimeError: no such thing" in (folder(files, "broken") / "attempts/0001/steps/a/stderr").read_text()


def test_a_step_sees_its_job_in_its_environment(files: Bench) -> None:
    put(files, "look", {"steps": [{"id": "a", "command": "env"}]})
    slot(files).run_once()
    said = dict(
        line.split("=", 1) for line in (folder(files, "look") / "attempts/0001/steps/a/stdout").read_text().splitlines()
    )
    assert (said["FARRO_JOB"], said["FARRO_STEP"], said["FARRO_ROOT"]) == ("look", "a", files.store.root)
    assert said["FARRO_CLAIM"].startswith("look/0001")
