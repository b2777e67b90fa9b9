"""Pause and resume queues with the commands, beside real workers."""

from __future__ import annotations

import json

from farro.app import App
from farro.cli.watch import page
from farro.config import reader
from farro.host.clock import SystemClock
from farro.queue.watch import Viewer
from flows.program import Program, shell, steps
from support import eventually


def test_paused_queue_runs_nothing_until_it_is_resumed(farro: Program) -> None:
    worker = farro.start("worker").started()
    told = farro.run("pause", "Runner", "--why", "deploy at noon", "--json", code=0).json["paused"]["Runner"]
    assert told["why"] == "deploy at noon"
    job = farro.enqueue(steps(["echo", "hi"]), "--id", "a")
    said = farro.run("explain", job, code=0).out
    assert "the queue of Runner is paused by" in said
    assert "deploy at noon" in said
    assert "farro resume Runner" in said
    assert farro.run("explain", job, "--json", code=0).json["reason"] == "paused"
    assert "the queue of Runner is paused by" in farro.run("pause", code=0).out
    assert farro.status(job) == "queued"
    assert farro.run("resume", "Runner", code=0).out == "the queue of Runner goes on\n"
    eventually(lambda: farro.status(job) == "succeeded", "its workers were not woken")
    assert farro.run("resume", "Runner", code=0).out == "the queue of Runner was not paused\n"
    assert worker.process.poll() is None


def test_pause_spares_running_jobs_and_a_draining_worker_stops(farro: Program) -> None:
    farro.enqueue(shell("touch began; while [ ! -e go ]; do sleep 0.02; done"), "--id", "runs")
    worker = farro.start("worker", "--drain", "--workers", "1")
    eventually((farro.path / "began").exists)
    farro.enqueue(steps(["true"]), "--id", "stays")
    farro.run("pause", "--all", code=0)
    (farro.path / "go").touch()
    assert worker.process.wait(60) == 0
    assert (farro.status("runs"), farro.status("stays")) == ("succeeded", "queued")
    assert sorted(farro.run("resume", "--all", "--json", code=0).json["resumed"]) == sorted(
        path.name for path in (farro.path / "agents").iterdir() if (path / "incoming").is_dir()
    )
    assert farro.run("pause", code=0).out == "no queue is paused\n"


def test_pause_with_an_unknown_role_pauses_nothing(farro: Program) -> None:
    assert "no role Nobody here" in farro.run("pause", "Runner", "Nobody", code=2).err
    assert farro.run("pause", "--json", code=0).json == {"paused": {}}
    assert "--all" in farro.run("resume", code=2).err
    assert "at most 500" in farro.run("pause", "Runner", "--why", "x" * 501, code=2).err


def test_pause_is_a_file_that_may_be_made_by_hand(farro: Program) -> None:
    (farro.path / "agents/Runner/.paused").write_text("")  # by hand, without a reason
    farro.enqueue(steps(["true"]), "--id", "a")
    farro.run("worker", "--drain", code=0)
    assert farro.status("a") == "queued"
    assert "paused by an unknown user" in farro.run("explain", "a", code=0).out
    (farro.path / "agents/Runner/.paused").unlink()
    farro.run("worker", "--drain", code=0)
    assert farro.status("a") == "succeeded"


def test_every_view_of_queues_shows_a_pause(farro: Program) -> None:
    farro.enqueue(steps(["true"]), "--id", "a")
    farro.run("pause", "Runner", "--why", "deploy at noon", code=0)
    line = next(line for line in farro.run("stats", code=0).out.splitlines() if "paused" in line)
    assert line.startswith("the queue of Runner is paused by ")
    assert line.endswith(": deploy at noon (`farro resume Runner`)")
    assert "paused" not in farro.run("stats", "--role", "Manager", code=0).out
    told = [json.loads(line) for line in farro.run("stats", "--json", code=0).out.splitlines()]
    assert {one["role"] for one in told if one["paused"]} == {"Runner", "*"}
    store = App().open_store(str(farro.path), reader.load(str(farro.path)), brief=True)
    overview = Viewer(store, SystemClock()).overview(SystemClock().now())
    store.close()
    assert line in page(overview, str(farro.path))
