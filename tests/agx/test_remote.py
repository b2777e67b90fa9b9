"""The planner at a RESP queue (`farro agq`) on another machine: the same commands over the network."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import pytest
import redis

import farro as package
from agx.conftest import Agx
from flows.program import Daemon, Done, Program

KEY = "a-key-that-nobody-guesses"


@pytest.fixture
def queue(farro: Program) -> Iterator[str]:
    """Start a queue with a key and a worker; return its address."""
    config = json.loads((farro.path / "agents-config.json").read_text())
    (farro.path / "agents-config.json").write_text(json.dumps({**config, "agq": {"key": "${QUEUE_KEY}"}}))
    farro.env["QUEUE_KEY"] = KEY
    front = farro.start("agq", "--bind", "127.0.0.1:0")
    port = _port(front)
    worker = farro.start("worker", "--workers", "1").started()
    yield f"agq://127.0.0.1:{port}"
    worker.end()
    front.end()


def _port(front: Daemon) -> int:
    assert front.process.stdout is not None
    line = b""
    while b" started" not in line or not line.endswith(b"\n"):
        piece = os.read(front.process.stdout.fileno(), 1)
        assert piece, line
        line += piece
    told = re.search(rb'"port": (\d+)', line)
    assert told is not None, line
    return int(told[1])


@pytest.fixture
def far(agx: Agx, queue: str, monkeypatch: pytest.MonkeyPatch) -> Agx:
    monkeypatch.setenv("AGQ_KEY", KEY)

    def run(*args: str, **how: object) -> Done:
        return agx("--store", queue, *args, **how)

    return run


def test_submit_without_a_worker_prints_how_to_start_one_for_that_queue(far: Agx, queue: str) -> None:
    far("add", "--", "true", code=0)
    told = far("--text", "submit", "--role", "CodeReviewer", code=0).err
    assert told == f"no worker is alive that could take it; start one with: agw --store {queue} --role CodeReviewer\n"


def test_plan_is_submitted_over_resp_and_its_end_is_reported(far: Agx) -> None:
    far("new", "loud", code=0)
    far("add", "--", "echo hello | tr a-z A-Z", code=0)
    rehearsed = far("submit", "--dry-run", code=0).json
    assert (rehearsed["role"], len(rehearsed["takers"])) == ("Runner", 1)
    told = far("submit", "--wait", "--priority", "P1", code=0).json
    assert (told["status"], told["plan_id"]) == ("succeeded", "loud")
    assert told["result"]["step_results"][1]["stdout"] == "HELLO\n"
    job = told["job_id"]
    assert far("job", "stdout", job, code=0).out == "HELLO\n"
    assert far("job", "stdout", job, "--step", "1", code=0).out == "hello\n"
    assert far("job", "result", job, code=0).json["success"] is True
    assert [one["job_id"] for one in far("jobs", "--status", "succeeded").json["jobs"]] == [job]
    assert far("queue", "stats").json["queues"][0]["counts"] == {"succeeded": 1}
    assert far("workers").json["workers"][0]["alive"] is True


@pytest.mark.parametrize("words", [("submit",), ("job", "submit")], ids=" ".join)
def test_piped_input_reaches_the_first_step_over_resp(
    farro: Program, far: Agx, queue: str, words: Sequence[str]
) -> None:
    far("add", "--", "sha256sum | cut -c -64", code=0)
    data = bytes(range(256)) * (36 << 10)  # 9 MiB, in two pieces
    done = farro.run("agx", "--store", queue, *words, "--wait", "--json", stdin=data, env={"AGQ_KEY": KEY}, code=0)
    assert done.json["result"]["step_results"][1]["stdout"].strip() == sha256(data).hexdigest()


def test_a_worker_over_resp_gets_the_piped_input(farro: Program, far: Agx, queue: str, tmp_path: Path) -> None:
    far("add", "--", "sort", code=0)
    env = {"AGQ_KEY": KEY}
    words = ("submit", "--role", "CodeReviewer")
    job = farro.run("agx", "--store", queue, *words, stdin=b"b\na\n", env=env, code=0).json["job_id"]
    other = {**env, "FARRO_ROOT": "", "HOME": str(tmp_path / "other"), "XDG_DATA_HOME": str(tmp_path / "other")}
    farro.run("worker", "--store", queue, "--role", "CodeReviewer", "--drain", env=other, code=0)
    assert far("job", "stdout", job, code=0).out == "a\nb\n"


def test_more_input_than_a_job_may_bring_is_refused_by_the_queue(far: Agx, queue: str) -> None:
    with redis.Redis.from_url(queue.replace("agq://", "redis://"), password=KEY) as client:
        job = '{"id": "a", "plan_id": "p", "steps": [{"step_number": 1, "tool": "unix", "command": "cat"}]}'
        with pytest.raises(redis.ResponseError, match="more than a job may bring"):
            client.execute_command("JOB.PUSH", "queue:ready", job, b"x" * (15 << 20), b"x" * (11 << 20))
        assert client.execute_command("JOB.PUSH", "queue:CodeReviewer", job, b"x", b"y") == 1
        assert client.execute_command("JOB.INPUT", "a") == b"xy"
        assert client.execute_command("JOB.INPUT", "none") is None


def test_failure_is_reported_with_its_exit_code(far: Agx) -> None:
    far("add", "--", "sh", "-c", "exit 5", code=0)
    assert far("submit", "--wait", code=5).json["category"] == "step_failed"


def test_plans_and_actions_are_stored_in_the_remote_queue(far: Agx) -> None:
    far("add", "--", "echo", "{{input.n}}", code=0)
    far("save", "say", code=0)
    assert [(one["plan_id"], one["wants"]) for one in far("list").json["plans"]] == [("say", ["n"])]
    ended = far(
        "action", "submit", "say", "--inputs", "-", "--name", "both", "--wait", stdin='[{"n": 1}, {"n": 2}]', code=0
    )
    assert ended.json["failed"] == []
    assert far("job", "stdout", "both-002", code=0).out == "2\n"
    assert far("action", "get", "both").json["plan_id"] == "say"
    assert far("action", "submit", "both", code=0).json["jobs"] == ["both-001", "both-002"]
    assert "needs an input" in far("submit", "say", code=2).err


def test_refusals_of_the_remote_queue_are_reported(farro: Program, far: Agx, queue: str) -> None:
    far("add", "--", "true", code=0)
    assert "queue:Nobody" in far("submit", "--role", "Nobody", code=2).err
    assert "whole id" in far("job", "status", "nobody", code=2).err
    assert "no plan nope" in far("get", "nope", code=2).err
    assert "no action nope" in far("action", "submit", "nope", code=2).err
    assert "handed in" in far("action", "new", "x", "--inputs", "-", stdin="[1]", code=2).err


def test_remote_job_is_cancelled(far: Agx) -> None:
    far("add", "--", "true", code=0)
    job = far("submit", "--tag", "nobody-has-this", code=0).json["job_id"]
    assert far("job", "cancel", job, code=0).json["status"] == "killed"


def test_wrong_key_is_reported_and_no_key_is_printed(agx: Agx, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "AGQ_KEY" in agx("--store", queue, "jobs", code=3).err
    monkeypatch.setenv("AGQ_KEY", "wrong-key")
    done = agx("--store", queue, "jobs", code=3)
    assert "AGQ_KEY" in done.err
    assert "wrong-key" not in done.err
    assert "no key" in agx("--store", "agq://:secret@127.0.0.1:1", "jobs", code=2).err


def test_unreachable_queue_is_reported_with_its_address(agx: Agx) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    done = agx("--store", f"agq://127.0.0.1:{port}", "jobs", code=1)
    assert f"agq://127.0.0.1:{port}" in done.err
    assert "farro agq" in done.err
    assert "is not agq://HOST:PORT" in agx("--store", "agq://", "jobs", code=2).err
    assert "Port" in agx("--store", "agq://x:99999999", "jobs", code=2).err


def test_agx_alias_shows_its_own_name(farro: Program) -> None:
    def alias(*args: str) -> subprocess.CompletedProcess[str]:
        program = os.path.join(os.path.dirname(sys.executable), "agx")
        return subprocess.run(
            [program, *args], cwd=farro.path, env=farro.env, capture_output=True, text=True, check=False
        )

    assert alias("--version").stdout == f"agx {package.__version__}\n"
    assert alias("--help").stdout.startswith("Usage: agx ")
    assert "Try 'agx add --help'" in alias("add").stderr
    assert alias("get", "nope").stderr.startswith("agx: no plan nope")


def test_arguments_that_are_not_utf8_are_reported_in_one_line(far: Agx) -> None:
    strange = os.fsdecode(b"\xff")
    far("add", "--", "true", code=0)
    for words in (("get", strange), ("submit", "--role", strange, "--no-input"), ("job", "status", strange)):
        done = far(*words, code=2)
        assert "Traceback" not in done.err, words
        assert len(done.err.strip().splitlines()) == 1, done.err
