"""`agw --store agq://…`: workers that reach their queue over RESP.

The tests use a real `farro agq`, real workers, and redis-py as the planner. The connection between them can be cut.

tests/resp covers the commands of agq, tests/storm the Redis store under load.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farro.agq.cli import reached
from farro.agq.client import result_document
from farro.agq.client.connection import AgqAddress
from farro.errors import InputError
from farro.jobs.outcomes import ErrorInfo, Failed, Report
from flows.program import Daemon, Program
from support import ROOT, eventually

AGW = os.path.join(os.path.dirname(sys.executable), "agw")
TTL_S = 1.0
MEMO = {
    "id": "job-123",
    "plan_id": "plan-456",
    "steps": [
        {"step_number": 1, "tool": "unix", "command": "ls", "args": ["-a", "."], "timeout": 30},
        {"step_number": 2, "tool": "unix", "command": "grep", "args": ["agents"], "input_from_step": 1, "timeout": 30},
        {
            "step_number": 3,
            "tool": "agx-ocr",
            "command": "process-image",
            "args": ["--format", "json"],
            "input_from_step": 2,
            "timeout": 120,
        },
    ],
}


class Queue:
    """Run `farro agq` in a root, with a client and workers."""

    def __init__(self, farro: Program) -> None:
        import redis

        self.farro = farro
        config = json.loads((farro.path / "agents-config.json").read_text())
        config["agq"] = {"worker_ttl_s": TTL_S}
        (farro.path / "agents-config.json").write_text(json.dumps(config))
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self.server = self.start()
        self.client = redis.Redis(port=self.port)
        self.workers: list[Daemon] = []

    def start(self, *, key: str | None = None) -> Daemon:
        if key is not None:
            self.farro.env["THE_KEY"] = key
        return self.farro.start("agq", "--bind", f"127.0.0.1:{self.port}", "--json").started()

    def work(self, name: str, *more: str, port: int | None = None) -> Daemon:
        """Run an `agw` in its own root, as on another machine."""
        home = self.machine(name)
        home.mkdir(exist_ok=True)
        env = {**self.farro.env, "XDG_STATE_HOME": str(home / "state")}
        store = f"agq://127.0.0.1:{port or self.port}"
        worker = Daemon([AGW, "--store", store, "--name", name, "--slots", "1", "--json", *more], home, env)
        self.workers.append(worker)
        return worker

    def machine(self, name: str) -> Path:
        """Return a folder outside of the root: only the port connects them."""
        return self.farro.path.parent / f"{self.farro.path.name}-{name}"

    def push(self, job: dict[str, Any]) -> str:
        self.client.lpush("queue:ready", json.dumps(job))
        return str(job["id"])

    def told(self, job_id: str) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.client.hgetall(f"job:{job_id}").items()}

    def status(self, job_id: str) -> str | None:
        return self.told(job_id).get("status")

    def result(self, job_id: str) -> Any:
        eventually(lambda: self.status(job_id) in ("succeeded", "failed"), f"{job_id} does not end")
        return json.loads(self.client.get(f"job:{job_id}:result"))

    def commits(self, job_id: str) -> int:
        life = json.loads(self.farro.run("show", job_id, "--json", code=0).out)
        return sum(hop["reason"] == "committed" for hop in (life.get("lifecycle") or life)["hops"])


@pytest.fixture
def queue(farro: Program) -> Iterator[Queue]:
    made = Queue(farro)
    try:
        yield made
    finally:
        made.client.close()
        for worker in made.workers:
            worker.clean_up()


def shell(job_id: str, script: str) -> dict[str, Any]:
    return {
        "id": job_id,
        "plan_id": "p",
        "steps": [{"step_number": 1, "tool": "unix", "command": "sh", "args": ["-c", script]}],
    }


def waits_for(job_id: str, folder: Path) -> dict[str, Any]:
    """Queue a job that notes its start, and ends when the test allows it."""
    script = (
        f'echo "$FARRO_CLAIM" >> {folder}/{job_id}-began; while [ ! -e {folder}/go ]; do sleep 0.05; done; echo done'
    )
    return shell(job_id, script)


def began(folder: Path, job_id: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return (folder / f"{job_id}-began").read_text().splitlines()
    return []


# --- a job from planner to worker ------------------------------------------------------------------------------------


def test_example_of_the_memo_runs_from_planner_to_worker_and_back(queue: Queue) -> None:
    tool = queue.farro.path / "agx-ocr"
    tool.write_text('#!/bin/sh\n[ "$1" = --describe ] && exit 1\necho "$*"; cat; echo seen >&2\n')
    tool.chmod(0o755)
    queue.farro.env["PATH"] = f"{queue.farro.path}{os.pathsep}{queue.farro.env['PATH']}"
    queue.work("a", "--tag", "gpu")
    queue.work("b", "--tag", "gpu")
    told = queue.result(queue.push(MEMO))
    assert (told["job_id"], told["plan_id"], told["success"]) == ("job-123", "plan-456", True)
    first, second, third = told["step_results"]
    assert "agents" in first["stdout"]
    assert second["stdout"].splitlines() == [line for line in first["stdout"].splitlines() if "agents" in line]
    assert third["stdout"] == f"process-image --format json\n{second['stdout']}"
    assert (third["stderr"], third["exit_code"], third["success"]) == ("seen\n", 0, True)
    (line, *_) = [json.loads(item) for item in queue.client.execute_command("WORKERS.LIST")]
    assert line["tags"] == ["gpu"]
    assert "agx-ocr" in line["tools"]


def test_a_failed_step_halts_the_plan_and_partial_results_are_posted(queue: Queue) -> None:
    queue.work("a")
    job = shell("bad", "echo half; exit 3")
    job["steps"].append({"step_number": 2, "tool": "unix", "command": "true"})
    told = queue.result(queue.push(job))
    assert told["success"] is False
    assert [(step["stdout"], step["exit_code"], step["success"]) for step in told["step_results"]] == [
        ("half\n", 3, False)
    ]
    assert queue.status("bad") == "failed"


@pytest.mark.parametrize(
    ("tool", "error"),
    [
        ("unix", "step 3: process-image was not found on the PATH"),
        ("agx-ocr", "step 3: tool agx-ocr is neither registered nor a program on the PATH"),
    ],
)
def test_example_of_the_memo_without_its_third_tool_posts_two_results_and_an_error(
    queue: Queue, tool: str, error: str
) -> None:
    steps: Any = MEMO["steps"]
    queue.work("a")
    told = queue.result(queue.push({**MEMO, "steps": [*steps[:2], {**steps[2], "tool": tool}]}))
    assert (told["job_id"], told["plan_id"], told["success"]) == ("job-123", "plan-456", False)
    ends = [(step["step_number"], step["exit_code"], step["success"]) for step in told["step_results"]]
    assert ends == [(1, 0, True), (2, 0, True), (3, 127, False)]
    assert "agents" in told["step_results"][1]["stdout"]
    assert told["error"]["category"] == "missing_tool"
    assert told["error"]["message"].startswith(error)
    assert queue.status("job-123") == "failed"


def test_example_of_the_memo_succeeds_with_standard_commands(queue: Queue) -> None:
    steps: Any = MEMO["steps"]
    queue.work("a")
    last = {**steps[2], "tool": "unix", "command": "wc", "args": ["-l"]}
    told = queue.result(queue.push({**MEMO, "steps": [*steps[:2], last]}))
    assert (told["success"], [step["exit_code"] for step in told["step_results"]]) == (True, [0, 0, 0])
    _, second, third = told["step_results"]
    assert int(third["stdout"]) == len(second["stdout"].splitlines()) > 0


def test_draining_worker_stops_when_the_queue_is_empty(queue: Queue) -> None:
    jobs = [queue.push(shell(f"d{number}", "seq 40000")) for number in range(3)]
    assert queue.work("a", "--drain").ended().code == 0
    for job_id in jobs:
        (step,) = queue.result(job_id)["step_results"]
        assert step["stdout_truncated"] is True  # in the summary; the posted output is complete
        assert len(queue.client.get(f"job:{job_id}:stdout")) == len("".join(f"{n}\n" for n in range(1, 40001)))
    assert not list((queue.machine("a") / "state" / "farro" / "jobs" / ".work").iterdir())


# --- failures -----------------------------------------------------------------------------------------------


def test_job_of_a_killed_worker_is_run_by_another(queue: Queue) -> None:
    first = queue.work("a")
    job_id = queue.push(waits_for("x", queue.farro.path))
    eventually(lambda: len(began(queue.farro.path, "x")) == 1, "no worker started the job")
    first.kill()
    queue.work("b")
    eventually(lambda: len(began(queue.farro.path, "x")) == 2, "no other worker took over")
    late = json.dumps({"job_id": job_id, "success": True, "step_results": []})
    with pytest.raises(Exception, match="claim lost"):
        queue.client.set(f"job:{job_id}:result", late)  # from a worker that does not hold the job
    (queue.farro.path / "go").touch()
    told = queue.result(job_id)
    assert told["success"] is True
    assert told["worker"].startswith("b.")
    assert [line.partition("@")[0] for line in began(queue.farro.path, "x")] == ["x/0001", "x/0002"]
    assert queue.commits(job_id) == 1


def test_stopping_worker_returns_its_job_to_the_queue_at_once(queue: Queue) -> None:
    first = queue.work("a")
    queue.push(waits_for("y", queue.farro.path))
    eventually(lambda: len(began(queue.farro.path, "y")) == 1, "no worker started the job")
    queue.work("b")
    first.send(signal.SIGTERM)
    first.send(signal.SIGTERM)  # skips the grace period
    assert first.ended().code == 0
    eventually(lambda: len(began(queue.farro.path, "y")) == 2, "the job was not returned")
    (queue.farro.path / "go").touch()
    assert queue.result("y")["worker"].startswith("b.")


def test_worker_stops_a_job_that_was_killed(queue: Queue) -> None:
    worker = queue.work("a")
    queue.push(waits_for("z", queue.farro.path))
    eventually(lambda: len(began(queue.farro.path, "z")) == 1, "no worker started the job")
    queue.farro.run("kill", "z", code=0)
    queue.push(shell("next", "echo next"))
    assert queue.result("next")["success"] is True
    assert '"claim_lost"' in worker.end().out


def test_worker_posts_its_result_after_a_lost_connection(queue: Queue) -> None:
    with Between(queue.port) as between:
        queue.work("a", port=between.port)
        queue.push(waits_for("c", queue.farro.path))
        eventually(lambda: len(began(queue.farro.path, "c")) == 1, "no worker started the job")
        between.cut()
        (queue.farro.path / "go").touch()
        assert queue.result("c")["success"] is True
    assert queue.told("c")["attempt"] == "1"
    assert queue.commits("c") == 1


def test_result_is_accepted_once(queue: Queue) -> None:
    """When the reply is lost, the worker posts again and continues with the next job."""
    with Between(queue.port, lose_answer_to=b"JOB.DONE") as between:
        queue.work("a", port=between.port)
        queue.push(shell("r1", "echo one"))
        assert queue.result("r1")["success"] is True
        queue.push(shell("r2", "echo two"))
        assert queue.result("r2")["success"] is True
        assert between.lost == 1
    assert queue.commits("r1") == 1
    assert queue.told("r1")["attempt"] == "1"


def test_agq_prints_how_to_start_a_worker(farro: Program) -> None:
    front = farro.start("agq", "--bind", "127.0.0.1:0")
    assert front.process.stdout is not None
    assert re.search(r" started.*agw --store agq://127\.0\.0\.1:[1-9]\d*", front.process.stdout.readline())
    front.end()
    assert reached("::1") == "[::1]"
    assert reached("0.0.0.0") == reached("::") == socket.gethostname()


def test_worker_command_of_the_page_waits_for_its_queue_and_works(queue: Queue) -> None:
    page = Path(ROOT, "docs/agq.md").read_text()
    queue.server.end()
    script = page.split("```python\n")[1].split("```")[0].replace("port=6380", f"port={queue.port}")
    worker = Daemon([sys.executable, "-c", script], queue.farro.path, queue.farro.env)
    assert worker.process.stderr is not None
    queue.workers.append(worker)
    assert "trying again" in worker.process.stderr.readline()
    queue.server = queue.start()
    steps = [{"step_number": 1, "tool": "unix", "command": "seq", "args": ["3"]}]
    steps.append({"step_number": 2, "tool": "unix", "command": "wc", "args": ["-l"], "input_from_step": 1})
    queue.push({"id": "good", "plan_id": "p", "steps": steps})
    queue.push({"id": "bad", "plan_id": "p", "steps": [{"step_number": 1, "tool": "unix", "command": "no-such"}]})
    assert queue.result("good")["step_results"][-1]["stdout"].strip() == "3"
    assert queue.result("bad")["step_results"][0]["exit_code"] == 127


def test_workers_survive_a_restart_of_agq(queue: Queue) -> None:
    worker = queue.work("a")
    queue.push(shell("before", "echo before"))
    assert queue.result("before")["success"] is True
    queue.server.kill()
    eventually(lambda: "StorageTrouble" in _so_far(worker), "the worker does not notice")
    queue.server = queue.start()
    queue.push(shell("after", "echo after"))
    assert queue.result("after")["success"] is True


def _so_far(worker: Daemon) -> str:
    assert worker.process.stdout is not None
    os.set_blocking(worker.process.stdout.fileno(), False)
    said = getattr(worker, "said", "")
    with contextlib.suppress(BlockingIOError):
        said += os.read(worker.process.stdout.fileno(), 1 << 16).decode()
    worker.said = said  # type: ignore[attr-defined]
    return str(said)


def test_wrong_address_or_key_is_reported_in_one_line(farro: Program, empty: Program) -> None:
    def told(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [AGW, *args]
        return subprocess.run(
            command, cwd=farro.path.parent, env={**farro.env, **env}, capture_output=True, text=True, check=False
        )

    nowhere = told("--store", "agq://127.0.0.1:1")
    assert nowhere.returncode == 1
    assert re.search(r"^agw: agq://127\.0\.0\.1:1: no answer .*Check that `farro agq` runs there", nowhere.stderr, re.M)
    assert told("--store", "agq://nohost").returncode == 2
    elsewhere = farro.run("ls", "--store", "agq://127.0.0.1:1", code=2)
    assert "this command needs the store behind it" in elsewhere.err
    queue = Queue(farro)
    config = json.loads((farro.path / "agents-config.json").read_text())
    config["agq"]["key"] = "${THE_KEY}"
    (farro.path / "agents-config.json").write_text(json.dumps(config))
    queue.server.end()
    queue.start(key="s3cret-canary")
    env = {"XDG_STATE_HOME": str(queue.machine("x"))}
    wrong = told("--store", f"agq://127.0.0.1:{queue.port}", "--drain", AGQ_KEY="wrong-canary", **env)
    assert wrong.returncode == 2
    assert "the key is missing or wrong" in wrong.stderr
    assert "canary" not in wrong.stderr + wrong.stdout
    right = told("--store", f"agq://127.0.0.1:{queue.port}", "--drain", AGQ_KEY="s3cret-canary", **env)
    assert right.returncode == 0
    assert "canary" not in right.stderr + right.stdout
    queue.client.close()


class Between:
    """Forward connections to agq; cut all at once, or just before the reply to a request with these bytes."""

    def __init__(self, port: int, *, lose_answer_to: bytes | None = None) -> None:
        self._to = port
        self._losing = lose_answer_to
        self.lost = 0
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Between:
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        self.cut()

    def cut(self) -> None:
        opened, self._open = self._open, []
        for end in opened:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._to))
            self._open += [near, far]
            doomed = threading.Event()
            for source, sink, asks in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._pass, args=(source, sink, asks, doomed), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, asks: bool, doomed: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if asks and self._losing is not None and self._losing in data and not self.lost:
                    doomed.set()
                if not asks and doomed.is_set():
                    self.lost += 1
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            if asks:
                time.sleep(0)
        source.close()


# --- addresses and results -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["agq://", "agq://host", "agq://host:0", "agq://host:99999", "agq://host:x"])
def test_an_address_has_a_host_and_a_port(url: str) -> None:
    with pytest.raises(InputError, match="write agq://HOST:PORT"):
        AgqAddress.of(url, None)
    assert str(AgqAddress.of("agq://[::1]:6380/", "secret")) == "agq://::1:6380"
    assert "secret" not in repr(AgqAddress.of("agq://h:1", "secret"))


def test_a_key_in_an_address_is_refused_and_not_repeated(empty: Program) -> None:
    for env, words in ({}, ("--store", "agq://me:canary@127.0.0.1:1")), ({"FARRO_STORE": "agq://canary@h:1"}, ()):
        done = empty.run("worker", "--drain", *words, env=env, code=2)
        assert "AGQ_KEY" in done.err
        assert "canary" not in done.out + done.err


def test_posted_result_has_the_fields_of_the_memo(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"x" * 100)
    step = {"step_number": 1, "stdout": "x" * 10, "stdout_truncated": True, "stdout_path": "out", "exit_code": None}
    report = Report(result={"plan_id": "p", "step_results": [step]}, markdown="")
    outcome = Failed(error=ErrorInfo(category="timeout", message="too slow"), report=report)
    told = json.loads(result_document("j", "p", str(tmp_path), outcome, inline_bytes=50))
    assert (told["job_id"], told["success"], told["error"]["category"]) == ("j", False, "timeout")
    (posted,) = told["step_results"]
    assert posted["stdout"] == "x" * 50
    assert (posted["exit_code"], posted["success"], posted["stderr"]) == (-1, False, "")
    (tmp_path / "out").unlink()
    told = json.loads(result_document("j", "p", str(tmp_path), outcome, inline_bytes=50))
    assert told["step_results"][0]["stdout"] == "x" * 10
