"""requeue, kill and force-complete on a job of every status: the answer, the exit code, and the new place."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.program import Program, listing, once_endless, steps
from support import eventually

OK, REFUSED = 0, 3


@pytest.fixture(scope="module")
def every_status(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a root with a job of every status, named after it. `orphaned` is in_progress with a dead worker."""
    path = tmp_path_factory.mktemp("every")
    farro = Program(path)
    farro.call("init", code=0)
    for number, name in enumerate(("stale", "orphaned")):
        farro.enqueue(once_endless(), "--id", name)
        worker = farro.start("worker", "--workers", "1")
        eventually((path / "started").exists, "the step did not start")
        worker.kill()
        (path / "started").unlink()
        (path / "once").rmdir()
        if number == 0:
            farro.call("watchdog", "--once", code=0)
    for name, command in (("succeeded", "true"), ("failed", "false"), ("killed", "true")):
        farro.enqueue(steps([command]), "--id", name)
    farro.call("kill", "killed", code=0)
    worker = farro.start("worker")
    eventually(
        lambda: {farro.status("succeeded"), farro.status("failed")} == {"succeeded", "failed"}, "the job did not run"
    )
    worker.end()
    farro.enqueue(steps(["true"]), "--id", "queued")
    yield path
    farro.clean_up()


@pytest.fixture
def farro(every_status: Path, empty: Program) -> Program:
    shutil.copytree(every_status, empty.path, dirs_exist_ok=True, symlinks=True)
    return empty


CASES = [
    # verb, status, exit code, status afterwards
    ("requeue", "queued", REFUSED, "queued"),
    ("requeue", "orphaned", OK, "queued"),
    ("requeue", "stale", OK, "queued"),
    ("requeue", "succeeded", REFUSED, "succeeded"),
    ("requeue", "failed", REFUSED, "failed"),
    ("requeue", "killed", REFUSED, "killed"),
    ("kill", "queued", OK, "killed"),
    ("kill", "orphaned", OK, "killed"),
    ("kill", "stale", OK, "killed"),
    ("kill", "succeeded", REFUSED, "succeeded"),
    ("kill", "failed", REFUSED, "failed"),
    ("kill", "killed", OK, "killed"),
    ("force-complete", "queued", REFUSED, "queued"),
    ("force-complete", "orphaned", OK, "succeeded"),
    ("force-complete", "stale", OK, "succeeded"),
    ("force-complete", "succeeded", REFUSED, "succeeded"),
    ("force-complete", "failed", REFUSED, "failed"),
    ("force-complete", "killed", REFUSED, "killed"),
]


@pytest.mark.parametrize(("verb", "job", "code", "then"), CASES, ids=[f"{case[0]} {case[1]}" for case in CASES])
def test_command_does_what_the_status_permits(farro: Program, verb: str, job: str, code: int, then: str) -> None:
    before = listing(farro.path)
    told = farro.call(verb, job, "--note", "because", code=code)
    after = farro.call("show", job, "--json", code=0).json
    assert after["status"] == then
    changed = code == OK and (verb, job) != ("kill", "killed")
    if changed:
        assert told.out == f"{job} is {then}\n"
        assert (farro.path / after["place"] / job / "prompt.json").exists()
        assert after["hops"][-1]["note"] == "because"
        assert after["hops"][-1]["by"].startswith("cli-")
    else:
        assert listing(farro.path) == before
    if code == REFUSED:
        assert f"{job} is {then}" in told.out + told.err


@pytest.mark.parametrize("verb", ["requeue", "kill", "force-complete"])
def test_a_verb_answers_in_json(farro: Program, verb: str) -> None:
    told = farro.call(verb, "stale", "--json", code=0).json
    assert told["job_id"] == "stale"
    assert told["status"] == {"requeue": "queued", "kill": "killed", "force-complete": "succeeded"}[verb]


def test_ls_shows_every_status_and_marks_a_dead_agent(farro: Program) -> None:
    told = {line.split()[0]: line for line in farro.call("ls", code=0).out.splitlines()[1:]}
    assert set(told) == {"queued", "orphaned", "stale", "succeeded", "failed", "killed"}
    assert "in_progress" in told["orphaned"]
    assert told["orphaned"].endswith("its agent is dead; `farro watchdog` recovers it")
    assert "agent_died: agent" in told["stale"]
    assert "is dead; `farro watchdog` recovers it" in farro.call("show", "orphaned", code=0).out


def test_requeued_and_recovered_jobs_run_to_their_end(farro: Program) -> None:
    farro.call("requeue", "stale", code=0)
    recovered = farro.run("watchdog", "--once", "--json", code=0).json["recovered"]
    assert ("orphaned", "stale") in [(item["job_id"], item["what"]) for item in recovered]
    decided = farro.run("manager", "--once", "--json", code=0).json["decided"]
    assert decided == [{"job_id": "orphaned", "status": "queued"}]
    (farro.path / "once").mkdir()  # so that no step is endless
    farro.worked()
    assert farro.status("queued") == "succeeded"
    for name in ("stale", "orphaned"):
        job = farro.job(name)
        assert (job["status"], job["attempt"], job["retry_count"]) == ("succeeded", 2, 1)
        assert (farro.folder(name) / "attempts/0001").is_dir()
        assert (farro.folder(name) / "attempts/0002/steps/1/stdout").read_text() == "again\n"


def test_once_reports_that_there_is_nothing_to_do(farro: Program) -> None:
    farro.call("watchdog", "--once", code=0)
    farro.call("manager", "--once", code=0)
    assert farro.call("watchdog", "--once", code=0).out == "nothing to recover\n"
    assert farro.call("manager", "--once", code=0).out == "nothing to decide\n"
    assert farro.call("watchdog", "--once", "--json", code=0).json == {"recovered": []}
    assert farro.call("manager", "--once", "--json", code=0).json == {"decided": []}
