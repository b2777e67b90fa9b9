"""The daemons as processes: signals, crashes, and jobs from start to end with worker, watchdog and manager.

The tests wait for an event and never assert how long it takes; figures are printed.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.program import Program, endless, marked, once_endless, shell, steps
from support import eventually, need


def started(farro: Program, name: str = "started") -> None:
    eventually((farro.path / name).exists, "the step did not start")


def test_sigterm_waits_for_the_grace_period_then_releases_the_job(farro: Program) -> None:
    farro.enqueue(endless(), "--id", "long")
    worker = farro.start("worker")
    started(farro)
    done = worker.end(signal.SIGTERM)
    assert done.code == 0, done.err
    job = farro.job("long")
    assert (job["status"], job["place"], job["attempt"]) == ("queued", "agents/Runner/incoming", 1)
    assert job["hops"][-1]["reason"] == "released"
    assert job["hops"][-1]["note"] == "the worker was stopped after 0 of 1 steps"
    assert "lock" not in job["files"]
    assert marked(farro.path) == []
    assert not list((farro.path / "agents/Runner/in-progress").iterdir())


def test_step_that_ends_within_the_grace_period_is_committed(farro: Program) -> None:
    farro.enqueue(shell("touch started; while [ ! -e go ]; do sleep 0.02; done; echo done"), "--id", "short")
    worker = farro.start("worker")
    started(farro)
    worker.send(signal.SIGTERM)
    (farro.path / "go").touch()
    assert worker.ended().code == 0
    assert farro.status("short") == "succeeded"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_second_signal_skips_the_grace_period(farro: Program, number: signal.Signals) -> None:
    farro.enqueue(endless(), "--id", "long")
    worker = farro.start("worker")
    started(farro)
    worker.send(number)
    eventually(lambda: worker.send(number) or worker.process.poll() is not None, "it waits for the step's five seconds")
    done = worker.ended()
    assert done.code == 0
    assert done.err == ""
    assert farro.status("long") == "queued"
    assert marked(farro.path) == []


def test_releases_count_against_no_limit(farro: Program) -> None:
    (farro.path / "agents-config.json").write_text('{"retry": {"max_attempts": 1}}')
    script = "if mkdir first 2>/dev/null; then n=1; else n=2; fi; touch started-$n; [ $n = 2 ] || exec sleep 100000"
    farro.enqueue(shell(script), "--id", "long")
    worker = farro.start("worker")
    started(farro, "started-1")
    worker.send(signal.SIGTERM)
    worker.end(signal.SIGTERM)
    farro.worked()
    job = farro.job("long")
    assert (job["status"], job["attempt"], job["retry_count"]) == ("succeeded", 2, 0)


@pytest.mark.parametrize("name", ["worker", "watchdog", "manager"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_idle_daemon_stops_on_a_signal_and_leaves_no_files(farro: Program, name: str, number: signal.Signals) -> None:
    daemon = farro.start(name)
    assert daemon.process.stdout is not None
    first = json.loads(daemon.process.stdout.readline())
    assert first["message"] == f"{name} started"
    assert first["pid"] == daemon.pid
    done = daemon.end(number)
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out.splitlines()[-1])["message"] == f"{name} stopped"
    assert not list((farro.path / "agents/Runner/in-progress").iterdir())
    assert not list((farro.path / "jobs/.held").iterdir())


@pytest.mark.parametrize("name", ["worker", "watchdog", "manager", "scheduler"])
def test_daemon_signalled_during_its_start_exits_cleanly(farro: Program, name: str) -> None:
    daemon = farro.start(name)
    eventually(lambda: catches(daemon.pid, signal.SIGTERM), "it never installs a handler")
    done = daemon.end()
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out.splitlines()[-1])["message"] == f"{name} stopped"
    assert not list((farro.path / "agents/Runner/in-progress").iterdir())


def catches(pid: int, number: signal.Signals) -> bool:
    """Return whether the process has its own handler for that signal."""
    status = Path("/proc", str(pid), "status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_a_log_line_has_the_fields_of_the_seed(farro: Program) -> None:
    farro.enqueue(steps(["true"]), "--id", "one")
    lines = [json.loads(line) for line in farro.worked().out.splitlines()]
    claimed, changed = (line for line in lines if line.get("job_id") == "one")
    assert claimed["event"] == {"type": "state_transition", "from": "queued", "to": "in_progress"}
    assert changed["event"] == {"type": "state_transition", "from": "in_progress", "to": "succeeded"}
    for line in (claimed, changed):
        assert {"timestamp", "level", "message", "app", "actor", "role", "agent", "attempt", "correlation_id"} <= set(
            line
        )
    assert claimed["correlation_id"] == changed["correlation_id"]


def test_worker_continues_when_its_log_is_not_read(farro: Program) -> None:
    worker = farro.start("worker")
    assert worker.process.stdout is not None
    worker.process.stdout.readline()
    worker.process.stdout.close()
    farro.enqueue(steps(["true"]), "--id", "one")
    eventually(lambda: farro.status("one") == "succeeded", "the worker stopped working")
    worker.send(signal.SIGTERM)
    assert worker.process.wait(60) == 0


def test_killed_worker_is_recovered_and_the_job_completes_in_its_second_attempt(farro: Program) -> None:
    farro.enqueue(once_endless(), "--id", "long")
    worker = farro.start("worker")
    started(farro)
    worker.kill()
    job = farro.job("long")
    assert job["status"] == "in_progress"
    assert job["orphaned"]
    assert marked(farro.path) != []  # no process is left to end them

    assert "stale            long" in farro.run("watchdog", "--once", code=0).out.splitlines()
    assert marked(farro.path) == []
    assert farro.job("long")["place"] == "jobs/stale"
    assert farro.run("manager", "--once", code=0).out == "long is queued\n"
    assert farro.job("long")["requeued_from"] == "stale"
    farro.worked()
    job = farro.job("long")
    assert (job["status"], job["attempt"], job["retry_count"]) == ("succeeded", 2, 1)
    assert [hop["reason"] for hop in job["hops"]] == ["agent_died", "requeued", "committed"]


def test_job_that_always_kills_its_worker_fails_with_the_reason(farro: Program) -> None:
    (farro.path / "agents-config.json").write_text(
        '{"retry": {"max_attempts": 2, "base_s": 0.001, "max_delay_s": 0.001}}'
    )
    farro.enqueue(shell("kill -9 $PPID; exec sleep 100000"), "--id", "poison")
    for _ in range(2):
        assert farro.start("worker", "--workers", "1").ended().code == -signal.SIGKILL
        farro.run("watchdog", "--once", code=0)
        farro.run("manager", "--once", code=0)
    job = farro.job("poison")
    assert (job["status"], job["attempt"]) == ("killed", 2)
    assert job["error"]["category"] == "attempts_exhausted"
    assert "gave up after 2 attempts; the last: agent" in job["error"]["message"]
    assert marked(farro.path) == []


def test_kill_ends_the_processes_of_a_running_job_and_the_worker_continues(
    farro: Program, figure: Callable[..., None]
) -> None:
    farro.enqueue(endless(), "--id", "long")
    worker = farro.start("worker", "--workers", "1")
    started(farro)
    assert len(marked(farro.path)) >= 2
    assert "long is killed" in farro.run("kill", "long", "--note", "too long", code=0).out
    killed_s = time.monotonic()
    eventually(lambda: marked(farro.path) == [], "its processes live on")
    figure("flows: processes of a killed job gone after", time.monotonic() - killed_s, "s")
    job = farro.job("long")
    assert (job["status"], job["error"]) == ("killed", {"category": "killed", "message": "too long"})
    farro.enqueue(steps(["true"]), "--id", "next")
    eventually(lambda: farro.status("next") == "succeeded", "the worker did not continue")
    done = worker.end()
    assert "claim_lost" in done.out
    assert done.code == 0


def test_force_complete_of_a_running_job_ends_it_too(farro: Program) -> None:
    farro.enqueue(endless(), "--id", "long")
    farro.start("worker")
    started(farro)
    farro.run("force-complete", "long", code=0)
    eventually(lambda: marked(farro.path) == [], "its processes live on")
    assert farro.status("long") == "succeeded"


def test_drain_waits_for_the_jobs_of_other_workers(farro: Program) -> None:
    farro.enqueue(shell("touch started; while [ ! -e go ]; do sleep 0.02; done"), "--id", "elsewhere")
    farro.start("worker", "--workers", "1")
    started(farro)
    drain = farro.start("worker", "--drain")
    assert drain.process.stdout is not None
    drain.process.stdout.readline()
    with contextlib.suppress(Exception):
        drain.process.wait(1.5)
    assert drain.process.poll() is None
    (farro.path / "go").touch()
    assert drain.ended().code == 0
    assert farro.status("elsewhere") == "succeeded"


def test_drain_recovers_the_job_of_a_dead_worker_and_reports_what_it_waits_for(farro: Program) -> None:
    farro.enqueue(once_endless(), "--id", "long")
    farro.enqueue(steps(["true"], metadata={"tags": ["gpu"]}), "--id", "heavy")
    worker = farro.start("worker")
    started(farro)
    worker.kill()
    drain = farro.start("worker", "--drain")
    assert drain.process.stdout is not None
    told = next(line for line in drain.process.stdout if "drain_waits" in line)
    assert "heavy queued, which this worker may not take" in json.loads(told)["message"]
    farro.run("kill", "heavy", code=0)
    assert drain.ended().code == 0
    assert farro.status("long") == "succeeded"


def test_jobs_complete_while_daemons_crash_and_restart(farro: Program) -> None:
    (farro.path / "agents-config.json").write_text(
        '{"watchdog": {"every_s": 0.2}, "retry": {"base_s": 0.05, "max_delay_s": 0.1}}'
    )
    farro.start("watchdog")
    farro.start("watchdog")  # any number may run
    farro.start("manager")
    worker = farro.start("worker")
    farro.enqueue(once_endless(), "--id", "hard")
    plans = [steps(["echo", str(number)], id=f"easy-{number}") for number in range(12)]
    farro.run("enqueue", "--many", "-", stdin="\n".join(map(json.dumps, plans)), code=0)
    started(farro)
    worker.kill()
    farro.start("worker", "--workers", "3")

    def finished() -> bool:
        jobs = farro.run("ls", "--json", code=0).json["jobs"]
        return len(jobs) == 13 and all(job["status"] == "succeeded" for job in jobs)

    eventually(finished, "not all jobs were done")
    hard = farro.job("hard")
    assert (hard["attempt"], hard["retry_count"]) == (2, 1)
    for number in range(12):
        assert (
            len(
                [
                    hop
                    for hop in farro.call("show", f"easy-{number}", "--json").json["hops"]
                    if hop["reason"] == "committed"
                ]
            )
            == 1
        )
    assert marked(farro.path) == []


def test_kill_spares_the_processes_of_the_same_id_in_another_root(farro: Program, tmp_path: Path) -> None:
    other = Program(tmp_path / "other")
    other.path.mkdir()
    other.run("init", code=0)
    try:
        for program in (farro, other):
            program.enqueue(endless(), "--id", "long")
            program.start("worker")
            started(program)
        here = marked(other.path)
        farro.run("kill", "long", code=0)
        eventually(lambda: marked(farro.path) == [], "its processes live on")
        assert marked(other.path) == here
    finally:
        other.clean_up()


def test_workers_poll_when_no_inotify_instance_is_left(farro: Program) -> None:
    """Editors and containers may use up the inotify instances of a user; doctor reports it, and workers poll."""
    flags = [need("unshare"), "--map-root-user", "--user"]
    without = [*flags, "sh", "-ec", 'echo 0 > /proc/sys/user/max_inotify_instances; exec "$@"', "sh"]
    tried = subprocess.run([*without, "true"], capture_output=True, check=False)
    need(tried.returncode == 0, "a user namespace (unshare --user)")
    farro.enqueue(shell("true"), "--id", "a")
    told = farro.run("worker", "--drain", prefix=without, code=0).out
    assert "polling for changes" in told
    assert farro.status("a") == "succeeded"
    farro.run("wait", "a", prefix=without, code=0)
