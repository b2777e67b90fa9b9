"""`farro start` and `farro stop` with the installed program: daemons in the background, crashes, repeated starts."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.program import Program, endless, kept_stopped, marked, once_endless, shell
from support import eventually

ALL = ["farro-manager", "farro-watchdog", "farro-worker-1", "farro-worker-2"]


@pytest.fixture
def quick(farro: Program) -> Iterator[Program]:
    """Make a root whose watchdog and manager check often."""
    settings = {"watchdog": {"every_s": 0.1}, "retry": {"base_s": 0.01, "max_delay_s": 0.05}}
    (farro.path / "agents-config.json").write_text(json.dumps(settings))
    yield farro
    farro.run("stop", code=0)
    assert running(farro) == []


def record(farro: Program, name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((farro.path / f"jobs/.components/{name}.json").read_text())
    return told


def running(farro: Program) -> list[str]:
    return sorted(path.stem for path in (farro.path / "jobs/.components").glob("*.json"))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def killed(*pids: int) -> None:
    """Kill them and wait for their end: a signal may not be delivered yet when the next command checks."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        eventually(lambda pid=pid: not alive(pid), "the process lives on")  # type: ignore[misc]


def becomes(farro: Program, job_id: str, status: str) -> None:
    eventually(lambda: farro.status(job_id) == status, f"{job_id} does not become {status}")


def test_start_enqueue_done_stop(quick: Program) -> None:
    done = quick.run("start", "--no-web", "--runner", "inline", code=0)
    assert [line.split()[:2] for line in done.out.splitlines()[:4]] == [[name, "started"] for name in ALL]
    assert "farro down" in done.out
    job_id = quick.enqueue(shell("echo hi"))
    becomes(quick, job_id, "succeeded")
    pids = [record(quick, name)["pid"] for name in ALL]
    told = quick.run("stop", "--json", code=0).json
    assert told == {
        "components": [{"name": name, "what": "stopped"} for name in ALL],
        "others": [],
        "orchestrator": None,
    }
    assert not any(map(alive, pids))
    for name in ALL:
        said = (quick.path / f"logs/{name}.log").read_text()
        assert " started" in said
        assert " stopped" in said
    again = quick.run("stop", code=0)
    assert again.out == "nothing runs in the background here\n"


def test_second_start_starts_only_the_missing_components(quick: Program) -> None:
    quick.run("start", "--no-web", code=0)
    before = {name: record(quick, name)["pid"] for name in ALL}
    told = quick.run("start", "--no-web", "--workers", "3", "--json", code=0).json["components"]
    assert [(item["name"], item["what"]) for item in told] == [
        *((name, "already runs") for name in ALL),
        ("farro-worker-3", "started"),
    ]
    assert {name: record(quick, name)["pid"] for name in ALL} == before
    other = quick.run("start", "--no-web", "--slots", "5", "--json", code=0).json["components"]
    assert [item["what"] for item in other] == ["already runs", "already runs", "started", "started"]  # other options
    assert "--slots 5" in " ".join(record(quick, "farro-worker-1")["argv"])
    assert not (quick.path / "jobs/.components/farro-worker-3.json").exists()


def test_failing_component_is_reported_with_its_last_log_line(quick: Program) -> None:
    """It is started again, later and later, because the cause may disappear."""
    place = quick.path / "agents/Runner/in-progress"
    place.rmdir()
    place.write_text("in the way")
    done = quick.run("start", "--no-web", "--workers", "1", code=1)
    assert "farro-worker   failed (pid" in done.out
    assert "farro-worker is failed; logs/farro-worker.log ends with:" in done.err
    assert f"{place} is in the way (Not a directory)" in done.err
    assert "df -h" not in done.err
    place.unlink()
    place.mkdir()
    job_id = quick.enqueue(shell("echo hi"))
    becomes(quick, job_id, "succeeded")
    eventually(lambda: quick.run("start", "--no-web", "--workers", "1").code == 0, "it does not recover")


def test_a_wrong_config_starts_nothing(farro: Program) -> None:
    (farro.path / "agents-config.json").write_text('{"runners": {"kind": "thread"}}')
    done = farro.run("start", code=1)
    assert "runners.kind" in done.err
    assert running(farro) == []


def test_graceful_stop_releases_a_running_job(quick: Program) -> None:
    quick.run("start", "--no-web", "--workers", "1", "--runner", "process", code=0)
    quick.enqueue(endless(), "--id", "long")
    eventually((quick.path / "started").exists, "the step did not start")
    quick.run("stop", code=0)
    assert marked(quick.path) == []
    job = quick.job("long")
    assert (job["status"], job["hops"][-1]["reason"]) == ("queued", "released")


def test_job_interrupted_by_a_restart_completes_once(quick: Program) -> None:
    """Kill every daemon, the supervisor included."""
    runner = "process"
    quick.run("start", "--no-web", "--runner", runner, code=0)
    quick.enqueue(once_endless(), "--id", "long")
    eventually((quick.path / "started").exists, "the step did not start")
    killed(*(record(quick, name)["pid"] for name in ("farro-supervisor", *ALL)))
    quick.run("start", "--no-web", "--runner", runner, code=0)
    becomes(quick, "long", "succeeded")
    assert marked(quick.path) == []
    job = quick.job("long")
    assert [hop["reason"] for hop in job["hops"]] == ["agent_died", "requeued", "committed"]
    assert (quick.folder("long") / "attempts/0002/steps/1/stdout").read_text() == "again\n"


def test_stop_kills_a_hanging_worker_and_its_steps(quick: Program) -> None:
    quick.run("start", "--no-web", "--runner", "process", "--workers", "1", code=0)
    quick.enqueue(endless(), "--id", "long")
    eventually((quick.path / "started").exists, "the step did not start")
    with kept_stopped(record(quick, "farro-worker")["pid"]):
        told = quick.run("stop", "--json", code=0).json["components"]
    assert {"name": "farro-worker", "what": "killed"} in told
    assert marked(quick.path) == []
    quick.run("start", "--no-web", "--workers", "1", code=0)
    quick.run("kill", "long", code=0)


def test_background_daemons_survive_the_end_of_the_terminal(quick: Program) -> None:
    quick.run("start", "--no-web", "--workers", "1", code=0, prefix=["setsid", "--wait", "timeout", "60"])
    pid = record(quick, "farro-manager")["pid"]
    assert os.getsid(pid) == pid
    assert alive(pid)


def test_workers_of_named_roles_are_started(farro: Program) -> None:
    told = farro.run(
        "start", "--no-web", "--role", "DocWriter", "--role", "Architect", "--role", "DocWriter", "--json", code=0
    ).json
    names = ["farro-worker-docwriter-1", "farro-worker-docwriter-2"]
    names += ["farro-worker-architect-1", "farro-worker-architect-2"]
    assert [item["name"] for item in told["components"]] == ["farro-manager", "farro-watchdog", *names]
    assert {item["what"] for item in told["components"]} == {"started"}
    eventually(lambda: "worker/DocWriter" in (farro.path / f"logs/{names[0]}.log").read_text(), "no log")
    assert names[-1] in farro.run("stop", code=0).out
    assert "is not a role here" in farro.run("start", "--role", "Nobody", code=2).err
    assert "worked by the manager" in farro.run("start", "--role", "Manager", code=2).err
