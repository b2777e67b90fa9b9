"""`farro start` and `farro stop` with the installed program: a life in the background, crashes, and repetition."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.program import Program, endless, eventually, marked, once_endless, shell

ALL = ["manager", "watchdog", "worker-1"]


@pytest.fixture
def quick(farro: Program) -> Iterator[Program]:
    """A root whose keepers look often."""
    settings = {"watchdog": {"every_s": 0.1}, "retry": {"base_s": 0.01, "max_delay_s": 0.05}}
    (farro.path / "agents-config.json").write_text(json.dumps(settings))
    yield farro
    farro.run("stop", code=0)


def record(farro: Program, name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((farro.path / f"jobs/.components/{name}.json").read_text())
    return told


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def killed(*pids: int) -> None:
    """And gone: a signal that was sent may still be on its way when the next command looks."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        eventually(lambda pid=pid: not alive(pid), "it lives")  # type: ignore[misc]


def becomes(farro: Program, job_id: str, status: str) -> None:
    eventually(lambda: farro.status(job_id) == status, f"{job_id} does not become {status}")


@pytest.mark.parametrize("runner", ["inline", "process"])
def test_start_enqueue_done_stop(quick: Program, runner: str) -> None:
    done = quick.run("start", "--runner", runner, code=0)
    assert [line.split()[:2] for line in done.out.splitlines()[:3]] == [[name, "started"] for name in ALL]
    assert "farro stop" in done.out
    job_id = quick.enqueue(shell("echo hi"))
    becomes(quick, job_id, "succeeded")
    pids = [record(quick, name)["pid"] for name in ALL]
    told = quick.run("stop", "--json", code=0).json
    assert told == {"components": [{"name": name, "what": "stopped"} for name in ALL]}
    assert not any(map(alive, pids))
    for name in ALL:
        said = (quick.path / f"logs/{name}.log").read_text()
        assert " started" in said
        assert " stopped" in said
    again = quick.run("stop", code=0)
    assert again.out == "nothing runs in the background here\n"


def test_starting_twice_starts_what_is_missing(quick: Program) -> None:
    quick.run("start", code=0)
    before = {name: record(quick, name)["pid"] for name in ALL}
    killed(before["watchdog"])
    told = quick.run("start", "--workers", "2", "--json", code=0).json["components"]
    assert [(item["name"], item["what"]) for item in told] == [
        ("manager", "already runs"),
        ("watchdog", "started"),
        ("worker-1", "already runs"),
        ("worker-2", "started"),
    ]
    assert record(quick, "manager")["pid"] == before["manager"]
    assert record(quick, "watchdog")["pid"] != before["watchdog"]
    other = quick.run("start", "--slots", "5", code=0)
    assert "worker-1   already runs, with other options" in other.out
    assert "farro stop" in other.err


def test_a_component_that_dies_at_once_is_reported_with_its_last_words(quick: Program) -> None:
    (quick.path / "agents/Runner/in-progress").rmdir()
    (quick.path / "agents/Runner/in-progress").write_text("in the way")
    done = quick.run("start", code=1)
    assert "worker-1   died" in done.out
    assert "worker-1 ended at once; logs/worker-1.log ends with:" in done.err
    assert "\n  farro: join: " in done.err
    told = quick.run("start", "--json", code=1).json["components"]
    assert [item["what"] for item in told] == ["already runs", "already runs", "died"]
    assert told[-1]["said"].startswith("farro: join: ")


def test_a_wrong_config_starts_nothing(farro: Program) -> None:
    (farro.path / "agents-config.json").write_text('{"runners": {"kind": "thread"}}')
    done = farro.run("start", code=1)
    assert "runners.kind" in done.err
    assert not (farro.path / "jobs/.components").exists()


@pytest.mark.parametrize("runner", ["inline", "process"])
def test_a_graceful_stop_hands_a_running_job_back(quick: Program, runner: str) -> None:
    quick.run("start", "--runner", runner, code=0)
    quick.enqueue(endless(), "--id", "long")
    eventually((quick.path / "started").exists, "the step did not start")
    quick.run("stop", code=0)
    assert marked(quick.path) == []
    job = quick.job("long")
    assert (job["status"], job["hops"][-1]["reason"]) == ("queued", "released")


@pytest.mark.parametrize("runner", ["inline", "process"])
def test_a_restart_in_the_middle_of_a_job_ends_it_once(quick: Program, runner: str) -> None:
    quick.run("start", "--runner", runner, code=0)
    quick.enqueue(once_endless(), "--id", "long")
    eventually((quick.path / "started").exists, "the step did not start")
    killed(*(record(quick, name)["pid"] for name in ALL))
    quick.run("start", "--runner", runner, code=0)
    becomes(quick, "long", "succeeded")
    assert marked(quick.path) == []
    job = quick.job("long")
    assert [hop["reason"] for hop in job["hops"]] == ["agent_died", "requeued", "committed"]
    assert (quick.folder("long") / "attempts/0002/steps/1/stdout").read_text() == "again\n"


def test_a_worker_that_hangs_is_killed_by_stop_with_what_it_runs(quick: Program) -> None:
    quick.run("start", "--runner", "process", code=0)
    quick.enqueue(endless(), "--id", "long")
    eventually((quick.path / "started").exists, "the step did not start")
    killed(record(quick, "worker-1")["pid"])  # its steps may be left for a moment
    told = quick.run("stop", "--json", code=0).json["components"]
    assert {"name": "worker-1", "what": "was gone"} in told
    assert marked(quick.path) == []
    quick.run("start", code=0)
    quick.run("kill", "long", code=0)


def test_what_runs_in_the_background_outlives_the_terminal(quick: Program) -> None:
    quick.run("start", code=0, prefix=["setsid", "--wait", "timeout", "60"])
    pid = record(quick, "manager")["pid"]
    assert os.getsid(pid) == pid
    assert alive(pid)


def test_workers_of_named_roles_are_started(farro: Program) -> None:
    told = farro.run(
        "start", "--role", "DocWriter", "--role", "Architect", "--role", "DocWriter", "--json", code=0
    ).json
    assert [item["name"] for item in told["components"]] == [
        "manager",
        "watchdog",
        "worker-docwriter-1",
        "worker-architect-1",
    ]
    assert {item["what"] for item in told["components"]} == {"started"}
    eventually(
        lambda: "worker/DocWriter" in (farro.path / "logs/worker-docwriter-1.log").read_text(), "it says nothing"
    )
    assert "worker-architect-1" in farro.run("stop", code=0).out
    assert "is not a role here" in farro.run("start", "--role", "Nobody", code=2).err
    assert "worked by the manager" in farro.run("start", "--role", "Manager", code=2).err
