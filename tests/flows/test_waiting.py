"""`farro wait` and `farro watch`: progress, exit codes for scripts, and a terminal that is restored."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from datetime import UTC, datetime

import pytest

from farro.cli.watch import page
from farro.jobs.states import Status
from farro.queue.watch import JobsOverview, RecentJob
from flows.program import FARRO, PATIENCE_S, Program, endless, shell, steps
from support import eventually


def test_wait_returns_when_the_jobs_end_and_prints_how(farro: Program) -> None:
    gate = "until test -e go; do sleep 0.05; done"
    farro.enqueue(shell(gate), "--id", "slow")
    farro.enqueue(steps(["true"]), "--id", "quick")
    waiting = farro.start("wait", "slow", "quick")
    worker = farro.start("worker")
    assert waiting.process.stdout is not None
    assert waiting.process.stdout.readline().startswith("quick succeeded after ")
    assert waiting.process.poll() is None
    (farro.path / "go").touch()
    done = waiting.ended()
    worker.end()
    assert done.code == 0
    assert done.out.startswith("slow succeeded after ")


def test_wait_exits_with_1_after_a_failure(farro: Program) -> None:
    farro.enqueue(steps(["true"]), "--id", "good")
    farro.enqueue(steps(["false"]), "--id", "bad")
    farro.worked()
    assert "bad failed after" in farro.call("wait", "good", "bad", code=1).out
    told = farro.call("wait", "bad", "good", "--json", code=1).json
    assert {job["job_id"]: job["status"] for job in told["jobs"]} == {"good": "succeeded", "bad": "failed"}
    assert (told["waiting"], told["timed_out"]) == ([], False)
    farro.enqueue(steps(["true"]), "--id", "ended")
    farro.call("kill", "ended", code=0)
    farro.call("wait", "ended", code=1)


def test_wait_any_returns_with_the_first(farro: Program) -> None:
    farro.enqueue(steps(["true"]), "--id", "good")
    farro.worked()
    farro.enqueue(steps(["true"]), "--id", "queued")
    told = farro.call("wait", "--any", "queued", "good", "--json", code=0).json
    assert [job["job_id"] for job in told["jobs"]] == ["good"]
    assert (told["waiting"], told["timed_out"]) == (["queued"], False)


def test_wait_stops_after_its_timeout(farro: Program) -> None:
    farro.enqueue(steps(["true"]), "--id", "queued")
    told = farro.call("wait", "queued", "--timeout", "0s", "--json", code=1)
    assert told.json == {"jobs": [], "waiting": ["queued"], "timed_out": True}
    assert "still not ended" in told.err
    assert "farro explain queued" in told.err
    assert "is not a duration" in farro.call("wait", "queued", "--timeout", "soon", code=2).err


def test_wait_reports_once_that_the_queue_has_no_worker(farro: Program) -> None:
    farro.enqueue(steps(["true"]), "--id", "first")
    farro.enqueue(steps(["true"]), "--id", "second")
    said = "first waits: no worker of role Runner runs. What helps: farro worker --role Runner\n"
    told = farro.call("wait", "first", "second", "--timeout", "0s", code=1).err
    assert told.startswith(said)
    assert told.count("waits") == 1
    waiting = farro.start("wait", "first", "second")
    farro.worked()
    done = waiting.ended()
    assert (done.code, done.out.count("succeeded after")) == (0, 2)
    assert farro.call("wait", "first", code=0).err == ""


def test_wait_for_many_jobs_reports_all_of_them(farro: Program) -> None:
    plans = "\n".join(json.dumps(steps(["true"], id=f"job-{number}")) for number in range(80))
    farro.call("enqueue", "--many", "-", stdin=plans, code=0)
    waiting = farro.start("wait", *(f"job-{number}" for number in range(80)))
    farro.worked()
    done = waiting.ended()
    assert done.code == 0
    assert done.out.count("succeeded after") == 80


def test_a_failed_job_that_is_not_final_is_still_waited_for(farro: Program) -> None:
    farro.enqueue(steps(["false"]), "--id", "bad")
    farro.worked()
    path = farro.folder("bad") / "job.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "finalized_at": None}))
    waiting = farro.start("wait", "bad", "--timeout", "60s")
    farro.run("ls", code=0)
    assert waiting.process.poll() is None
    farro.call("kill", "bad", code=0)
    assert waiting.ended().code == 1


def test_wait_notices_a_job_that_was_removed(farro: Program) -> None:
    farro.enqueue(steps(["true"]), "--id", "good")
    waiting = farro.start("wait", "good", "--timeout", "60s")
    farro.call("ls", code=0)
    folder = farro.folder("good")
    folder.rename(farro.path / "elsewhere")
    done = waiting.ended()
    assert done.code in (1, 2)  # 2: it was removed before the first read


def test_watch_a_job_until_it_ends(farro: Program) -> None:
    farro.enqueue(steps(["true"], ["false"]), "--id", "bad")
    watching = farro.start("watch", "bad", "--json")
    assert watching.process.stdout is not None
    assert json.loads(watching.process.stdout.readline())["status"] == "queued"
    farro.worked()
    done = watching.ended()
    assert done.code == 1
    assert json.loads(done.out.splitlines()[-1])["status"] == "failed"
    farro.enqueue(steps(["true"]), "--id", "good")
    farro.worked()
    assert "good  succeeded" in farro.call("watch", "good", code=0).out


@pytest.mark.parametrize(
    ("number", "option"), [(signal.SIGINT, ["--json"]), (signal.SIGTERM, [])], ids=["json", "lines"]
)
def test_watch_into_a_pipe_prints_a_line_for_each_change(
    farro: Program, number: signal.Signals, option: list[str]
) -> None:
    seen = farro.path / "seen"
    with open(seen, "wb") as sink:
        watching = subprocess.Popen([FARRO, "watch", *option], cwd=farro.path, env=farro.env, stdout=sink)
    try:
        tries = iter(range(100_000))
        # Before its first line, the test cannot know whether it watches already.
        eventually(
            lambda: farro.enqueue(steps(["true"]), "--id", f"warm-{next(tries)}") and seen.stat().st_size,
            "it told nothing",
        )
        farro.enqueue(steps(["true"]), "--id", "job")
        farro.worked()
        found = b'"job_id": "job", "role": "Runner", "status": "succeeded"' if option else b"  job  Runner  succeeded\n"
        eventually(lambda: found in seen.read_bytes(), "it did not print the end")
        watching.send_signal(number)
        assert watching.wait(PATIENCE_S) == 0
    finally:
        watching.kill()
        watching.wait()
    if option:
        told = [json.loads(line) for line in seen.read_text().splitlines()]
        mine = [line["status"] for line in told if line["job_id"] == "job"]
        assert mine == sorted(mine, key=["queued", "in_progress", "succeeded"].index)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_watch_draws_the_queues_and_restores_the_terminal(farro: Program, number: signal.Signals) -> None:
    farro.enqueue(endless(), "--id", "running")
    farro.start("worker", "--workers", "1")
    eventually((farro.path / "started").exists, "the step did not start")
    farro.enqueue(steps(["true"]), "--id", "behind")
    ours, theirs = pty.openpty()
    env = {**farro.env, "TERM": "xterm"}
    process = subprocess.Popen([FARRO, "watch"], cwd=farro.path, env=env, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    until = time.monotonic() + PATIENCE_S
    while b"RUNNING (1)" not in said:
        assert time.monotonic() < until, "it did not draw the running job"
        said += os.read(ours, 65536)
    process.send_signal(number)
    try:
        while chunk := os.read(ours, 65536):
            said += chunk
    except OSError:  # EIO: the other side is closed
        pass
    os.close(ours)
    assert process.wait(PATIENCE_S) == 0
    assert said.startswith(b"\x1b[?1049h\x1b[?25l")
    assert said.endswith(b"\x1b[?25h\x1b[?1049l")
    assert b"Traceback" not in said
    assert b"running" in said
    assert b"step 1" in said
    assert b"sh -c" in said


@pytest.mark.parametrize(
    ("columns", "shown"), [(80, "job-20261118-060455-2740"), (44, "…261118-060455-2740"), (9, "…55-2740")]
)
def test_narrow_screen_still_shows_how_a_job_ended(columns: int, shown: str) -> None:
    ended = RecentJob(job_id="job-20261118-060455-2740", role="Runner", status=Status.FAILED, took_s=0.79)
    told = JobsOverview(at=datetime.now(UTC), counts={}, running=(), running_total=0, ended=(ended,), alive={}, dead=())
    assert page(told, "here", columns)[-1] == f"  {shown}  Runner  failed  0.79s"


def test_a_dumb_terminal_gets_lines_and_no_drawing(farro: Program) -> None:
    """An editor's shell and a script's pty print escape sequences literally."""
    assert b"  Runner  queued\r\n" in on_a_dumb_terminal(farro, "watch", until=b"queued\r\n")
    on_a_dumb_terminal(farro, "top", until=b"`farro watch` (a line a change)")
    assert b"ok       config " in on_a_dumb_terminal(farro, "doctor", until=b" failed\r\n")


def on_a_dumb_terminal(farro: Program, command: str, *, until: bytes) -> bytes:
    ours, theirs = pty.openpty()
    env = {name: value for name, value in farro.env.items() if name != "NO_COLOR"} | {"TERM": "dumb"}
    process = subprocess.Popen([FARRO, command], cwd=farro.path, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    until_s = time.monotonic() + PATIENCE_S
    try:
        while until not in said:
            assert time.monotonic() < until_s, said
            farro.enqueue(steps(["true"]))  # watch prints changes only, and the test cannot know when it started
            while until not in said and select.select([ours], [], [], 0.1)[0]:
                said += os.read(ours, 65536)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"\x1b" not in said
    return said
