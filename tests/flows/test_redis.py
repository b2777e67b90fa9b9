"""The everyday commands with jobs in a Redis server: the same session gets the same answers."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import farro as api
from farro.app import servers
from farro.config.reader import load
from farro.host.clock import SystemClock
from farro.jobs.states import Status
from farro.queue.watch import Viewer
from farro.store.ledger import Budgets, Charge
from farro.store.port import CARRIED_BYTES
from farro.store.redis.checks import set_there
from flows.program import Program, listing, shell, steps
from servers import RedisServer
from support import ROOT, eventually

SCRUBBED = {
    "agent",
    "not_before",
    "by",
    "correlation_id",
    "actor",
    "policy_version",
    "result_sha256",
    "root",
    "folder",
    "path",
}


@pytest.fixture
def on_redis(farro: Program, redis_server: RedisServer) -> Program:
    """Make a root whose jobs are in a server, under their own namespace."""
    configure(farro, store=redis_server.url, redis={"name": f"t-{uuid.uuid4().hex[:12]}"})
    return farro


def configure(farro: Program, **changes: Any) -> None:
    path = farro.path / "agents-config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def ids(farro: Program, *args: str) -> list[str]:
    return [job["job_id"] for job in farro.call("ls", "--json", *args, code=0).json["jobs"]]


def scrubbed(value: Any) -> Any:
    """Remove times, agent names and hashes, which differ between sessions."""
    if isinstance(value, dict):
        return {
            name: scrubbed(member)
            for name, member in value.items()
            if name not in SCRUBBED and not name.endswith(("_at", "_s", "_kb")) and name not in ("at", "ts")
        }
    if isinstance(value, str):
        return re.sub(r"\d+\.\d\d", "…", value)  # seconds, in a report
    return [scrubbed(member) for member in value] if isinstance(value, list) else value


def session(farro: Program) -> dict[str, Any]:
    """Run a typical session, and return the answers of the commands."""
    told: dict[str, Any] = {}
    farro.call("enqueue", "--id", "good", "--priority", "P1", "--", "seq", "3", code=0)
    farro.enqueue(steps(("echo", "one"), ("false",), ("echo", "three")), "--id", "bad")
    farro.call("enqueue", "--id", "later", "--delay", "2h", "--", "true", code=0)
    farro.call("enqueue", "--id", "second", "--after", "good", "--", "echo", "after", code=0)
    farro.call("enqueue", "--id", "hopeless", "--after", "bad", "--", "true", code=0)
    farro.call("enqueue", "--id", "unwanted", "--tag", "gpu", "--", "true", code=0)
    told["queued"] = farro.call("ls", "--json", code=0).json
    told["why"] = [farro.call("explain", job, "--json", code=0).json["reason"] for job in ("second", "later", "good")]
    told["kill"] = farro.call("kill", "unwanted", "--json", code=0).json
    farro.call("kill", "later", code=0)
    farro.call("worker", "--drain", code=0)
    told["jobs"] = sorted(farro.call("ls", "--json", code=0).json["jobs"], key=lambda job: str(job["job_id"]))
    told["show"] = [farro.call("show", job, "--json", code=0).json for job in ("good", "bad", "second", "hopeless")]
    told["logs"] = [farro.call("logs", job, code=0).out for job in ("good", "bad", "second")]
    told["tail"] = farro.call("logs", "good", "--tail", "1", "--json", code=0).json["output"]
    told["history"] = [farro.call("history", job, "--json", code=0).json for job in ("good", "bad")]
    told["wait"] = [farro.call("wait", job, "--json").code for job in ("good", "bad")]
    told["tagged"] = ids(farro, "--tag", "gpu")
    told["last"] = sorted(ids(farro, "--last", "50"))
    told["unknown"] = [farro.call("show", "nobody").code, farro.call("requeue", "good").code]
    stats = [json.loads(line) for line in farro.call("stats", "--json", code=0).out.splitlines()]
    told["stats"] = [(line["role"], line["succeeded"], line["failed"], line["killed"]) for line in stats]
    told["pruned"] = farro.call("prune", "--older-than", "0s", "--status", "killed", "--json", code=0).json["jobs"]
    told["after"] = sorted(ids(farro))
    told["again"] = farro.call("enqueue", "--id", "unwanted", "--", "echo", "new", code=0).out
    return told


def test_session_on_redis_gets_the_same_answers(
    farro: Program, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = scrubbed(session(farro))
    other = Program(tmp_path_factory.mktemp("redis"))
    other.call("init", "--store", redis_server.url, code=0)
    configure(other, redis={"name": f"t-{uuid.uuid4().hex[:12]}"})
    there = scrubbed(session(other))
    for name in here:
        assert _ordered(there[name]) == _ordered(here[name]), name


def _ordered(value: Any) -> Any:
    """Sort lists of jobs whose order is not guaranteed."""
    if isinstance(value, dict) and isinstance(value.get("jobs"), list):
        return {**value, "jobs": sorted(value["jobs"], key=lambda job: str(job["job_id"]))}
    return value


def test_no_job_is_a_folder_in_the_root(on_redis: Program) -> None:
    before = {name for name in listing(on_redis.path) if not name.startswith("logs")}
    on_redis.call("enqueue", "--id", "one", "--", "echo", "hi", code=0)
    on_redis.call("worker", "--drain", code=0)
    on_redis.call("show", "one", code=0)
    # Empty folders of steps are removed eight at a time, or when the worker's process exits: here, that of the test.
    new = {name for name in listing(on_redis.path) if not name.startswith(("logs", "jobs/.staging/removed."))} - before
    assert new == {"jobs/.work"}


def test_a_command_runs_here_with_its_output_and_exit_code(on_redis: Program) -> None:
    done = on_redis.run("run", "--", "sh", "-c", "echo hello; exit 3", code=3)
    assert done.out == "hello\n"
    on_redis.run("run", "--json", "--", "true", code=0)


def test_run_waits_for_its_server_as_a_worker_does(
    farro: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other commands give up sooner, but only this process knows the result of the run."""
    server = RedisServer(folder=tmp_path / "own-server", durable=True).start()
    configure(farro, store=server.url)
    monkeypatch.setattr(servers, "BRIEF_S", 0.1)
    before = signal.getsignal(signal.SIGHUP)

    def away() -> None:
        eventually((farro.path / "started").exists)
        server.kill()
        (farro.path / "go").touch()
        eventually((farro.path / "over").exists)
        time.sleep(1.0)  # longer than other commands wait
        server.start()

    meanwhile = threading.Thread(target=away)
    meanwhile.start()
    try:
        script = "touch started; while [ ! -e go ]; do sleep 0.01; done; touch over; exit 3"
        done = farro.call("run", "--id", "one", "--", "sh", "-c", script)
        meanwhile.join()
        assert (done.code, done.err) == (3, "")
        assert farro.status("one") == "failed"
    finally:
        signal.signal(signal.SIGHUP, before)
        server.stop()


def test_function_gets_a_folder_when_it_uses_one(on_redis: Program) -> None:
    (on_redis.path / "wants.py").write_text(
        "import os\n"
        "def nothing(call): pass\n"
        "def words(call): call.stdout.write(b'said')\n"
        "def files(call): call.stdout.write(' '.join(sorted(os.listdir(call.attempt_dir + '/../..'))).encode())\n"
        "def more(call): call.add_task('echo', ['added'])\n"
        "def bad(call): raise ValueError('told')\n"
    )
    names = ("nothing", "words", "files", "more", "bad")
    configure(on_redis, tools={name: {"python": f"wants:{name}"} for name in names})
    jobs = {}
    for name in names:
        jobs[name] = on_redis.enqueue({"plan_id": "p", "steps": [{"step_number": 1, "tool": name, "command": name}]})
    on_redis.run("worker", "--drain", env={"PYTHONPATH": str(on_redis.path)}, code=0)
    told = {name: json.loads(on_redis.call("show", job, "--json", code=0).out) for name, job in jobs.items()}
    assert [told[name]["status"] for name in names] == ["succeeded"] * 4 + ["failed"]
    said = {name: on_redis.call("logs", job).out for name, job in jobs.items()}
    assert "said" in said["words"]
    assert "attempts job.json prompt.json" in said["files"]
    assert "added" in said["more"]
    assert "ValueError: told" in said["bad"]


def test_a_step_finds_the_same_store(on_redis: Program, redis_server: RedisServer) -> None:
    configure(on_redis, store="files")
    command = f"{sys.executable} -m farro enqueue --id child -- true"
    on_redis.run("enqueue", "--store", redis_server.url, "--id", "parent", "--", "sh", "-c", command, code=0)
    on_redis.run("worker", "--drain", "--store", redis_server.url, code=0)
    assert set(ids(on_redis, "--store", redis_server.url)) == {"parent", "child"}
    assert ids(on_redis) == []


def test_the_environment_names_the_store(on_redis: Program, redis_server: RedisServer) -> None:
    configure(on_redis, store="files")
    env = {"FARRO_STORE": redis_server.url}
    on_redis.run("enqueue", "--id", "there", "--", "true", env=env, code=0)
    assert ids(on_redis) == []
    assert "there" in on_redis.run("ls", env=env, code=0).out
    assert "there" not in on_redis.run("ls", "--store", "files", env=env, code=0).out
    wrong = on_redis.run("ls", env={"FARRO_STORE": "redis://user:secret@host/0"}, code=2)
    assert "FARRO_STORE" in wrong.err
    assert "secret" not in wrong.err


def test_killed_worker_loses_no_job(on_redis: Program) -> None:
    configure(on_redis, redis={**json.loads((on_redis.path / "agents-config.json").read_text())["redis"], "lease_s": 2})
    on_redis.enqueue(
        shell("if mkdir once 2>/dev/null; then touch started; exec sleep 100000; fi; echo again"), "--id", "j"
    )
    daemon = on_redis.start("worker").started()
    eventually((on_redis.path / "started").exists, "the step never started")
    assert on_redis.call("logs", "j", code=0).err == "", "the job runs on this machine"
    daemon.kill()

    def recovered() -> bool:
        on_redis.call("watchdog", "--once", code=0)
        on_redis.call("manager", "--once")
        return on_redis.status("j") == "queued"

    eventually(recovered, "the job was not recovered")
    on_redis.call("worker", "--drain", code=0)
    assert on_redis.job("j")["attempt"] == 2
    assert on_redis.call("logs", "j", code=0).out == "again\n"
    assert list((on_redis.path / "jobs/.work").iterdir()) == [], "files of the dead worker are left"


def test_kill_reaches_a_running_job_on_redis(on_redis: Program) -> None:
    on_redis.enqueue(shell("touch started; exec sleep 100000"), "--id", "j")
    daemon = on_redis.start("worker").started()
    eventually((on_redis.path / "started").exists, "the step never started")
    on_redis.call("kill", "j", code=0)
    eventually(lambda: not [pid for pid in on_redis.living() if _sleeps(pid)], "the step lives on")
    assert on_redis.status("j") == "killed"
    assert daemon.end().code == 0


def _sleeps(pid: int) -> bool:
    try:
        return b"100000" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_retried_attempt_skips_the_steps_that_succeeded(on_redis: Program) -> None:
    count = "echo x >> count; echo first"
    on_redis.enqueue(steps(("sh", "-c", count), ("sh", "-c", "test -e ready")), "--id", "j")
    on_redis.call("worker", "--drain", code=0)
    assert on_redis.status("j") == "failed"
    (on_redis.path / "ready").touch()
    for options in ((), ("--from", "2")):
        again = on_redis.call("retry", "j", *options, code=0).out.strip().splitlines()[0]
        on_redis.call("worker", "--drain", code=0)
        assert on_redis.status(again) == "succeeded"
        assert on_redis.call("logs", again, code=0).out == "first\n"
    assert (on_redis.path / "count").read_text() == "x\n", "the first step was run again"
    whole = on_redis.call("retry", "j", "--from-start", code=0).out.strip().splitlines()[0]
    on_redis.call("worker", "--drain", code=0)
    assert on_redis.status(whole) == "succeeded"
    assert (on_redis.path / "count").read_text() == "x\nx\n"


def test_retry_that_would_carry_too_much_output_is_refused(on_redis: Program) -> None:
    (on_redis.path / "shared").mkdir()
    redis = json.loads((on_redis.path / "agents-config.json").read_text())["redis"]
    configure(on_redis, redis={**redis, "shared": str(on_redis.path / "shared")})
    lots = f"head -c {CARRIED_BYTES + 1} /dev/zero | tr '\\0' x"
    on_redis.enqueue(steps(("sh", "-c", lots), ("sh", "-c", "exit 3")), "--id", "j")
    on_redis.call("worker", "--drain", code=0)
    refused = on_redis.call("retry", "j", "--from", "2", code=3)
    assert "farro retry j --from-start" in refused.err
    assert ids(on_redis, "--status", "queued") == []


def test_released_attempt_is_resumed(on_redis: Program) -> None:
    waits = "touch started; while test ! -e go; do sleep 0.05; done; echo second"
    on_redis.enqueue(steps(("sh", "-c", "echo x >> count; echo first"), ("sh", "-c", waits)), "--id", "j")
    daemon = on_redis.start("worker").started()
    eventually((on_redis.path / "started").exists, "the step never started")
    daemon.send(signal.SIGTERM)
    assert daemon.end().code == 0
    assert on_redis.status("j") == "queued"
    (on_redis.path / "go").touch()
    on_redis.call("worker", "--drain", code=0)
    assert on_redis.call("logs", "j", code=0).out == "first\nsecond\n"
    assert (on_redis.path / "count").read_text() == "x\n", "the first step was run again"


def test_large_output_is_cut_or_stored_in_the_shared_directory(on_redis: Program, tmp_path: Path) -> None:
    redis = json.loads((on_redis.path / "agents-config.json").read_text())["redis"]
    configure(on_redis, redis={**redis, "inline_bytes": 1024})
    on_redis.call("enqueue", "--id", "cut", "--", "seq", "100000", code=0)
    on_redis.call("worker", "--drain", code=0)
    for follow in ([], ["--follow"]):
        told = on_redis.call("logs", "cut", *follow, code=0)
        assert len(told.out) == 1024
        assert "step 1 said 588,895 bytes on stdout: only the beginning was kept" in told.err
    (on_redis.path / "shared").mkdir()
    configure(on_redis, redis={**redis, "inline_bytes": 1024, "shared": str(on_redis.path / "shared")})
    on_redis.call("enqueue", "--id", "whole", "--", "seq", "100000", code=0)
    on_redis.call("worker", "--drain", code=0)
    told = on_redis.call("logs", "whole", code=0)
    assert told.out.endswith("\n99999\n100000\n")
    assert "kept" not in told.err


def test_a_schedule_runs_once_for_two_roots(on_redis: Program, tmp_path_factory: pytest.TempPathFactory) -> None:
    (on_redis.path / "schedules").mkdir()
    plan = {"steps": [{"step_number": 1, "command": "true"}]}
    schedule = {"cron": "* * * * *", "plan": plan, "missed": "run_all"}
    (on_redis.path / "schedules" / "often.json").write_text(json.dumps(schedule))
    on_redis.call("scheduler", "--once", code=0)
    fired = on_redis.call("schedules", "run", "often", "--json")
    assert fired.code == 0, fired.err
    on_redis.call("worker", "--drain", code=0)
    assert len(ids(on_redis, "--status", "succeeded")) == 1


def test_named_jobs_are_shown_and_reset(on_redis: Program) -> None:
    tasks = on_redis.path / "tasks.json"
    tasks.write_text(json.dumps([{"id": "a", "command": "true", "args": []}]))
    on_redis.call("job", "create", "nightly", "--tasks", str(tasks), code=0)
    assert on_redis.call("status", "--json", code=0).json["jobs"][0]["name"] == "nightly"
    on_redis.call("worker", "--drain", code=0)
    on_redis.call("reset", "--job", "nightly", "--yes", code=0)
    assert "nightly" in on_redis.call("job", "list", code=0).out


def test_watch_prints_the_changes_of_a_job(on_redis: Program) -> None:
    on_redis.call("enqueue", "--id", "j", "--", "echo", "hi", code=0)
    looks = on_redis.start("watch", "j", "--json")
    on_redis.call("worker", "--drain", code=0)
    done = looks.ended()
    assert done.code == 0, done.err
    assert json.loads(done.out.splitlines()[-1])["status"] == "succeeded"


def test_overview_includes_jobs_that_end_while_it_is_open(on_redis: Program) -> None:
    for name in ("a", "b"):
        on_redis.call("enqueue", "--id", name, "--", "true", code=0)
    with api.open(on_redis.path) as queue:
        viewer = Viewer(queue.store, SystemClock())
        before = viewer.overview(SystemClock().now())
        assert before.counts["Runner"] == {Status.QUEUED: 2}
        on_redis.call("worker", "--drain", code=0)
        eventually(lambda: len(viewer.overview(SystemClock().now()).ended) == 2, "the feed reports no ended jobs")
        assert viewer.overview(SystemClock().now()).counts["Runner"] == {Status.SUCCEEDED: 2}
        assert (
            Viewer(queue.store, SystemClock()).overview(SystemClock().now()).ended
            == viewer.overview(SystemClock().now()).ended
        )


def test_unreachable_server_is_reported_in_plain_words(farro: Program) -> None:
    configure(farro, store="redis://127.0.0.1:1/0", redis={"retry_s": 0.2})
    for command in (["ls"], ["enqueue", "--", "true"], ["show", "x"], ["stats"], ["run", "--", "true"], ["status"]):
        done = farro.run(*command, code=1)
        assert "redis://127.0.0.1:1/0" in done.err, command
        assert len(done.err.splitlines()) <= 3, done.err
    told = farro.run("doctor", "--json", code=1).json["checks"]
    assert [check["id"] for check in told if check["verdict"] != "ok"] == ["redis"], "one trouble is reported once"
    farro.run("worker", "--drain", "--store", "files", code=0)


def test_password_is_read_from_the_environment_and_never_printed(
    farro: Program, tmp_path_factory: pytest.TempPathFactory
) -> None:
    server = RedisServer(folder=tmp_path_factory.mktemp("locked"), options=("--requirepass", "s3cr3t-canary")).start()
    try:
        configure(farro, store=server.url, redis={"password": "${QUEUE_PASSWORD}", "retry_s": 0.2})
        assert "QUEUE_PASSWORD" in farro.run("ls", code=2).err
        wrong = farro.run("ls", env={"QUEUE_PASSWORD": "not-it-canary"})
        assert wrong.code in (1, 2)
        assert "canary" not in wrong.err
        env = {"QUEUE_PASSWORD": "s3cr3t-canary"}
        farro.run("enqueue", "--id", "j", "--", "true", env=env, code=0)
        done = farro.run("worker", "--drain", env=env, code=0)
        assert "canary" not in done.out + done.err
        everything = b"".join(data for data in listing(farro.path).values() if isinstance(data, bytes))
        assert b"s3cr3t-canary" not in everything
    finally:
        server.stop()


def test_doctor_checks_the_server(on_redis: Program, redis_server: RedisServer) -> None:
    told = on_redis.call("doctor", "--json").json["checks"]
    found = {check["id"]: check for check in told}
    assert found["redis"]["verdict"] == "ok"
    assert found["redis-memory"]["verdict"] == "ok"
    assert found["redis-rights"]["verdict"] == "ok"
    assert found["redis-persistence"]["verdict"] == "warning"
    assert found["redis-persistence"]["repair"] == [f"redis-cli -u {redis_server.url} CONFIG SET appendonly yes"]


@pytest.mark.parametrize(
    ("address", "there"),
    [
        ("rediss://me:secret@far:7000/3?password=secret#secret", "-u rediss://far:7000/3"),
        ("unix:///run/redis.sock?password=secret", "-s /run/redis.sock"),
    ],
)
def test_repairs_contain_no_password(address: str, there: str) -> None:
    assert set_there(address, "appendonly", "yes") == f"redis-cli {there} CONFIG SET appendonly yes"


CHARGE = Charge(
    job_id="j",
    attempt=1,
    role="Architect",
    step="answer",
    number=1,
    provider="gpt",
    model=None,
    request_sha256="",
    most_usd=Decimal("0.5"),
)


def test_doctor_passes_with_the_rights_that_the_page_grants(
    on_redis: Program, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = on_redis.path / "agents-config.json"
    name = json.loads(path.read_text())["redis"]["name"]
    line = re.search(r"^ACL SETUSER .*$", Path(ROOT, "docs/redis.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert line is not None
    given = line[0].replace("NAME", name).replace("PASSWORD", "pw-canary").replace("SETUSER farro", f"SETUSER {name}")
    subprocess.run(["redis-cli", "-u", redis_server.url, *given.split()], check=True, capture_output=True)
    configure(on_redis, redis={"name": name, "user": name, "password": "${QUEUE_PASSWORD}"})
    env = {"QUEUE_PASSWORD": "pw-canary"}
    told = on_redis.run("doctor", "--json", env=env, code=0).json["checks"]
    assert {check["verdict"] for check in told if check["id"].startswith("redis")} == {"ok"}
    on_redis.run("run", "--", "true", env=env, code=0)
    monkeypatch.setenv("QUEUE_PASSWORD", "pw-canary")
    settings, clock = load(str(on_redis.path)), SystemClock()
    paused = servers.accounts(settings, clock)
    paused.pause("gpt", kind="refused", reason="wrong key")
    assert paused.resume("gpt")
    ledger = servers.ledger(settings, clock)
    call_id = ledger.reserve(CHARGE, Budgets(day_usd=Decimal(1), job_usd=Decimal(1)))
    ledger.settle(call_id, end="answered", usage=None, cost_usd=Decimal(0))
    assert (
        [call.id for call in ledger.of_day(ledger.days()[0])] == [call.id for call in ledger.of_job("j")] == [call_id]
    )


def test_the_python_api_works_on_it(on_redis: Program) -> None:
    with api.open(on_redis.path) as queue:
        job = queue.enqueue(["echo", "hi"], id="p")
        on_redis.call("worker", "--drain", code=0)
        assert job.result(timeout=60) == "hi\n"
        assert job.status == "succeeded"
    with api.open(on_redis.path, store="files") as queue:
        assert queue.store.find("p") is None
