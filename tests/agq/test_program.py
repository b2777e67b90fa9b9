"""`farro agq` as a process: where it listens, what it refuses, and how it ends."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from agq.stage import connected, job, result
from flows.program import Daemon, Program
from servers import free_port
from support import eventually


def served(farro: Program, *args: str) -> tuple[Daemon, int]:
    port = free_port()
    daemon = farro.start("agq", "--bind", f"127.0.0.1:{port}", *args)
    return daemon.started(), port


def client(port: int, **options: object) -> redis.Redis:
    return connected(port, **options)


def test_a_job_goes_through_a_front_a_worker_and_back(farro: Program) -> None:
    """Push over RESP, run by farro's own worker, read over RESP; and the other way round."""
    daemon, port = served(farro)
    with client(port) as one:
        one.lpush("queue:ready", job("a", "date"))
        farro.worked()
        assert one.get("job:a:status") == "succeeded"
        assert json.loads(one.get("job:a:result"))["step_results"][0]["exit_code"] == 0
        assert "20" in one.get("job:a:stdout")
        farro.enqueue({"id": "b", "steps": [{"id": "say", "command": "echo", "args": ["hi"]}]})
        assert json.loads(one.brpop("queue:ready", 20)[1])["steps"][0]["command"] == "echo"
        one.set("job:b:result", result("b", stdout="hi\n", plan_id="b"))
        assert farro.call("logs", "b", code=0).out.strip().endswith("hi")
        assert farro.job("b")["status"] == "succeeded"
    assert daemon.end().code == 0


def test_sigterm_hands_back_popped_jobs(farro: Program, figure: Callable[..., None]) -> None:
    daemon, port = served(farro)
    with client(port) as holder, client(port) as waiter:
        holder.client_setname("worker-1")
        holder.lpush("queue:ready", *(job(f"j{number}") for number in range(5)))
        assert len(holder.rpop("queue:ready", 5)) == 5
        waiter.execute_command("PING")
        began = time.monotonic()
        done = daemon.end(signal.SIGTERM)
        assert done.code == 0
        figure("RESP front: from SIGTERM to its end, 5 jobs held", round(time.monotonic() - began, 2), "s")
    assert {farro.status(f"j{number}") for number in range(5)} == {"queued"}
    assert "agq stopped" in done.out


def test_a_watchdog_recovers_the_jobs_of_a_killed_server(farro: Program) -> None:
    daemon, port = served(farro)
    with client(port) as holder:
        holder.lpush("queue:ready", job("a"))
        holder.rpop("queue:ready")
        daemon.kill()
    farro.run("watchdog", "--once", code=0)
    assert farro.status("a") == "stale"
    farro.run("manager", "--once", code=0)
    again, port = served(farro)
    with client(port) as other:
        assert json.loads(other.brpop("queue:ready", 20)[1])["id"] == "a"
        other.set("job:a:result", result("a"))
    assert farro.status("a") == "succeeded"
    assert again.end().code == 0


def test_beyond_loopback_a_key_is_needed(farro: Program) -> None:
    refused = farro.run("agq", "--bind", "0.0.0.0:0", code=3)
    assert "does not listen on 0.0.0.0 without a key" in refused.err
    (farro.path / "agents-config.json").unlink(missing_ok=True)
    (farro.path / "agents-config.yaml").write_text('agq: {key: "${AGQ_KEY}"}\n')
    missing = farro.run("agq", "--bind", "127.0.0.1:0", code=2)
    assert "AGQ_KEY is not set" in missing.err
    farro.env["AGQ_KEY"] = "a-long-secret"
    port = free_port()
    daemon = farro.start("agq", "--bind", f"0.0.0.0:{port}").started()
    with client(port, password="a-long-secret") as one:
        assert one.ping() is True
    with pytest.raises(redis.AuthenticationError):
        client(port).ping()
    done = daemon.end()
    assert done.code == 0
    assert "a-long-secret" not in done.out + done.err


def test_a_used_port_and_a_bad_address_have_helpful_errors(farro: Program) -> None:
    _, port = served(farro)
    taken = farro.run("agq", "--bind", f"127.0.0.1:{port}", code=1)
    assert f"cannot listen on 127.0.0.1:{port}" in taken.err
    assert "is not an address such as 127.0.0.1:6380" in farro.run("agq", "--bind", "here", code=2).err


def test_agq_is_farro_agq_under_its_own_name(farro: Program) -> None:
    script = "from farro.cli.aliases import agq; agq()"
    done = subprocess.run(
        [sys.executable, "-c", script, "--help"], capture_output=True, text=True, check=False, env=farro.env
    )
    assert done.stdout.startswith("Usage: agq ")


def test_port_0_chooses_a_free_port_and_shows_it(farro: Program) -> None:
    daemon = farro.start("agq", "--bind", "127.0.0.1:0")
    assert daemon.process.stdout is not None
    started = json.loads(daemon.process.stdout.readline())
    with client(started["port"]) as one:
        eventually(one.ping, "it answers")
    assert daemon.end().code == 0


def test_it_may_open_as_many_files_as_its_clients_need(farro: Program) -> None:
    """Each connection and each held job needs one: the usual limit of 1024 is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
    try:
        daemon, _ = served(farro)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    limits = Path(f"/proc/{daemon.process.pid}/limits").read_text(encoding="ascii")
    allowed = next(line for line in limits.splitlines() if line.startswith("Max open files")).split()[3]
    assert int(allowed) >= min(hard, 3000)
    assert daemon.end().code == 0
