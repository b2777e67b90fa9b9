"""`farro up`, `down`, `ps`: a root's services and their supervisor, with real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farro.doctor import root
from farro.sandbox import paths
from flows.program import FARRO, PATIENCE_S, Program, kept_stopped, marked, once_endless, shell
from servers import RabbitServer, RedisServer
from support import eventually

ALL = ["farro-manager", "farro-watchdog", "farro-worker-1", "farro-worker-2"]
SETTINGS = {"watchdog": {"every_s": 0.1}, "retry": {"base_s": 0.01, "max_delay_s": 0.05}}


@pytest.fixture
def farro(tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path)
    made.run("init", code=0)
    (tmp_path / "agents-config.json").write_text(json.dumps(SETTINGS))
    yield made
    left = made.run("down")
    made.clean_up()
    assert left.code == 0, left.err


def ps(farro: Program) -> dict[str, dict[str, Any]]:
    return {line["name"]: line for line in farro.run("ps", "--json", code=0).json["components"]}


def supervisor(farro: Program) -> int | None:
    pid: int | None = farro.run("ps", "--json", code=0).json["supervisor"]["pid"]
    return pid


def pids(farro: Program) -> dict[str, int]:
    return {name: line["pid"] for name, line in ps(farro).items()}


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


def kill(*victims: int) -> None:
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    for pid in victims:
        eventually(lambda pid=pid: gone(pid), f"{pid} lives")  # type: ignore[misc]


def test_up_and_down_in_the_background(farro: Program) -> None:
    """Up; a worker is killed in the middle of a job; the supervisor is killed; up again; down."""
    assert farro.run("ps", code=0).out == "nothing runs here; `farro up` starts what a root needs\n"
    (farro.path / ".gitignore").write_text(root._IGNORED_BEFORE[0])  # a root of an older farro
    shown = farro.run("up", "--detach", "--no-web", "--json", code=0).json["components"]
    assert [(one["name"], one["what"]) for one in shown] == [(name, "started") for name in ALL]
    assert "\n/swarms/\n" in (farro.path / ".gitignore").read_text()
    lines = ps(farro)
    assert list(lines) == ALL
    for one in shown:
        line = lines[one["name"]]
        assert (line["pid"], line["state"], line["enabled"]) == (one["pid"], "Running", True)
        assert (line["restarts"], line["swarm"], Path(line["log"]).exists()) == (0, "farro", True)
        assert line["uptime_s"] >= 0
    assert "2 worker" not in farro.run("status", code=0).out  # four slots, of two workers
    text = farro.run("ps", code=0).out.splitlines()
    assert text[0].split() == ["COMPONENT", "ROLE", "STATE", "PID", "UP", "RESTARTS", "LOG"]
    assert text[-1] == f"supervisor: pid {supervisor(farro)}"

    farro.enqueue(once_endless(), "--id", "long")
    eventually((farro.path / "started").exists, "the step did not start")
    kill(lines["farro-worker-1"]["pid"], lines["farro-worker-2"]["pid"])
    eventually(lambda: farro.status("long") == "succeeded", "nobody goes on with the job")
    assert [hop["reason"] for hop in farro.job("long")["hops"]] == ["agent_died", "requeued", "committed"]
    assert marked(farro.path) == []
    eventually(lambda: ps(farro)["farro-worker-2"]["restarts"] == 1, "nobody counts")

    assert "still use the old one" not in farro.run("up", "--detach", "--no-web", code=0).err
    (farro.path / "agents-config.json").write_text(json.dumps({**SETTINGS, "retry": {"base_s": 0.02}}))
    old = farro.run("up", "--detach", "--no-web", code=0).err
    assert re.search(
        "agents-config.json was changed at .* after these were started.*farro-manager, farro-watchdog", old
    )
    assert "`farro down` and `farro up` restart them" in old
    assert farro.run("up", "--detach", "--no-web", "--json", code=0).json["old_config"] == ALL

    before, killed = pids(farro), supervisor(farro)
    assert killed is not None
    kill(killed)
    shown = farro.run("ps", code=0)
    assert "no supervisor runs here, so services that end are not restarted" in shown.err
    assert pids(farro) == before
    again = farro.run("up", "--detach", "--no-web", "--json", code=0).json["components"]
    assert {one["what"] for one in again} == {"already runs"}
    assert pids(farro) == before  # adopted
    assert supervisor(farro) not in (None, killed)
    kill(before["farro-manager"])  # a child of the killed supervisor
    eventually(lambda: ps(farro)["farro-manager"]["pid"] not in (None, before["farro-manager"]), "it is not restarted")

    farro.run("down", code=0)
    assert all(map(gone, before.values()))
    assert farro.living() == []


def test_everything_that_farro_makes_in_a_root_is_its_own(farro: Program) -> None:
    """Else a job that may write there could control it, whatever its sandbox."""
    farro.run("up", "--detach", "--workers", "1", code=0)
    job = farro.enqueue(shell("echo hi"))
    eventually(lambda: farro.status(job) == "succeeded", "nobody works")
    farro.run("down", code=0)
    made = set(os.listdir(farro.path)) - {".gitignore", "job.json"}
    assert {"logs", "jobs"} <= made
    assert not {"swarms", "bus"} & made  # it needs no swarm
    assert [name for name in sorted(made) if not paths.is_own(name)] == []


def test_the_dashboard_takes_another_port_and_its_link_is_in_no_log(farro: Program) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (farro.path / "agents-config.json").write_text(json.dumps({**SETTINGS, "web": {"bind": f"127.0.0.1:{port}"}}))
        shown = farro.run("up", "--detach", "--workers", "1", code=0).out
    link = re.search(r"Dashboard, open this once: (http://127\.0\.0\.1:(\d+)/\S+)", shown)
    assert link is not None, shown
    assert int(link[2]) != port
    log = (farro.path / "logs/farro-web.log").read_text()
    assert "web started" in log
    assert "open this once" not in log


class ForegroundUp:
    """`farro up` in the foreground, and its output."""

    def __init__(self, farro: Program, *options: str, output: str = "front.txt") -> None:
        self._said = farro.path / output
        with self._said.open("wb") as out:
            self.process = subprocess.Popen(
                [FARRO, "up", *options], cwd=farro.path, env=farro.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        eventually(lambda: "Running. Ctrl-C" in self.said() or self.process.poll() is not None, "it does not come up")
        assert self.process.poll() is None, self.said()

    def said(self) -> str:
        return self._said.read_text()

    def ended(self) -> int:
        return self.process.wait(PATIENCE_S)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_ending_the_foreground_command_ends_everything(farro: Program, number: signal.Signals) -> None:
    front = ForegroundUp(farro, "--no-web", "--workers", "1")
    job = farro.enqueue(shell("echo hi $FARRO_BUS"))  # jobs must not see the broker's password
    eventually(lambda: farro.status(job) == "succeeded", "nobody works")
    assert farro.run("logs", job, code=0).out == "hi\n"
    kill(pids(farro)["farro-watchdog"])
    eventually(lambda: "farro-watchdog running" in front.said(), "nobody tells that it died and lives again")
    ended = r"\d\d:\d\d:\d\d UTC  farro-watchdog ended by signal 9; its log: logs/farro-watchdog\.log\n"
    assert re.search(ended, front.said()), front.said()
    assert "provisioning" not in front.said()
    front.process.send_signal(number)
    assert front.ended() == 0, front.said()
    assert front.said().count("stopped") == 3, front.said()
    assert farro.living() == []


def test_a_second_ctrl_c_does_not_wait(farro: Program) -> None:
    front = ForegroundUp(farro, "--no-web", "--workers", "1")
    with kept_stopped(pids(farro)["farro-worker"]):  # it will not end by itself
        front.process.send_signal(signal.SIGINT)
        eventually(lambda: "stopping …" in front.said(), "it does not begin to stop")
        front.process.send_signal(signal.SIGINT)
        assert front.ended() == 130, front.said()
    assert farro.living() == []
    assert [line["state"] for line in ps(farro).values()] == ["Stopped"] * 3


def test_down_with_kill_does_not_wait_and_up_resumes(farro: Program) -> None:
    farro.run("up", "--detach", "--no-web", "--workers", "1", code=0)
    worker = pids(farro)["farro-worker"]
    os.kill(worker, signal.SIGSTOP)
    shown = farro.run("down", "--kill", "--json", code=0).json["components"]
    assert {one["what"] for one in shown} == {"killed"}
    assert {one["name"] for one in shown} == {"farro-manager", "farro-watchdog", "farro-worker"}
    assert farro.living() == []
    shown = farro.run("ps", code=0)
    assert [line["state"] for line in ps(farro).values()] == ["Stopped"] * 3, shown.out
    assert shown.out.splitlines()[-1].startswith("not running: killed, or the machine ended")
    assert "`farro up` starts them again" in shown.out
    assert (shown.err, "Provisioning" in shown.out) == ("", False)
    assert farro.run("down", "--kill", "--json", code=0).json["components"][0]["what"] == "was gone"
    again = farro.run("up", "--detach", "--no-web", "--workers", "1", "--json", code=0).json["components"]
    assert {one["what"] for one in again} == {"started"}


def test_a_root_with_jobs_in_redis_and_a_broker(
    farro: Program, tmp_path: Path, redis_server: RedisServer, rabbit_server: RabbitServer
) -> None:
    there = {"store": redis_server.url, "redis": {"name": f"up-{tmp_path.name}"[:60]}}
    bus = {"bus": f"amqp://127.0.0.1:{rabbit_server.port}/", "amqp": {"user": "guest", "password": "${SECRET}"}}
    (tmp_path / "agents-config.json").write_text(json.dumps({**SETTINGS, **there, **bus}))
    farro.env["SECRET"] = "guest"
    farro.run("up", "--detach", "--no-web", code=0)
    assert sorted(ps(farro)) == ALL
    farro.run("enqueue", "--id", "one", "--", "echo", "done", code=0)
    farro.run("wait", "one", code=0)
    assert farro.run("logs", "one", code=0).out == "done\n"
    for pid in pids(farro).values():
        assert "guest" not in Path(f"/proc/{pid}/cmdline").read_text()
    kill(pids(farro)["farro-worker-1"])
    eventually(lambda: ps(farro)["farro-worker-1"]["restarts"] == 1, "it is not started again")
    farro.run("down", code=0)
    assert farro.living() == []


def test_the_next_up_adopts_the_components_of_a_killed_one(farro: Program) -> None:
    front = ForegroundUp(farro, "--no-web", "--workers", "1")
    before = pids(farro)
    front.process.send_signal(signal.SIGKILL)
    front.ended()
    assert not any(map(gone, before.values()))
    assert {
        one["what"] for one in farro.run("start", "--no-web", "--workers", "1", "--json", code=0).json["components"]
    } == {"already runs"}
    assert pids(farro) == before


def running_services(farro: Program) -> list[str]:
    """Return the services of all live processes that lead a session, each as often as it runs."""
    found = []
    for pid in farro.living():
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        marks = [os.fsdecode(line) for line in environ if line.startswith(b"FARRO_COMPONENT=")]
        if marks and os.getsid(pid) == pid:
            found.append(marks[0].removeprefix("FARRO_COMPONENT=").split(".")[0])
    return sorted(found)


def test_two_ups_at_once_start_no_service_twice(farro: Program) -> None:
    command = [FARRO, "up", "--detach", "--no-web", "--json"]
    both = [
        subprocess.Popen(command, cwd=farro.path, env=farro.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    outs = [one.communicate(timeout=PATIENCE_S)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], outs
    shown = [json.loads(out)["components"] for out in outs]
    assert [one["pid"] for one in shown[0]] == [one["pid"] for one in shown[1]] == list(pids(farro).values())
    assert running_services(farro) == sorted([*ALL, "farro-supervisor"])


def test_a_second_foreground_up_attaches(farro: Program) -> None:
    first = ForegroundUp(farro, "--no-web", "--workers", "1")
    before = pids(farro)
    second = ForegroundUp(farro, "--no-web", "--workers", "1", output="second.txt")
    assert second.said().count("already runs") == 3
    assert pids(farro) == before
    second.process.send_signal(signal.SIGINT)
    assert second.ended() == 0, second.said()
    assert first.ended() == 0, first.said()
    assert "another command stopped everything" in first.said()
    assert farro.living() == []


def test_a_foreground_up_replaces_a_killed_supervisor(farro: Program) -> None:
    front = ForegroundUp(farro, "--no-web", "--workers", "1")
    before, killed = pids(farro), supervisor(farro)
    assert killed is not None
    kill(killed)
    eventually(lambda: supervisor(farro) not in (None, killed), "no supervisor is started")
    assert pids(farro) == before
    kill(before["farro-watchdog"])
    eventually(lambda: "farro-watchdog running" in front.said(), "it is not restarted")
    assert running_services(farro) == sorted(["farro-supervisor", "farro-manager", "farro-watchdog", "farro-worker"])
    front.process.send_signal(signal.SIGINT)
    assert front.ended() == 0, front.said()


@pytest.mark.parametrize(
    "moment",
    ["", "farro-manager ended", "farro-manager was started", "farro-watchdog ended", "farro-worker was started"],
)
def test_down_during_a_restart_leaves_no_service_behind(farro: Program, moment: str) -> None:
    """`down` comes when the supervisor has logged this; it restarts one service after the other."""
    farro.run("up", "--detach", "--no-web", "--workers", "1", code=0)
    victims, log = pids(farro), farro.path / "logs/farro-supervisor.log"
    before = len(log.read_text())
    kill(*victims.values())
    eventually(lambda: moment in log.read_text()[before:], f"the supervisor does not log: {moment}")
    done = farro.run("down", "--json", code=0).json["components"]
    assert [one["name"] for one in done] == list(victims)
    assert farro.living() == []
    assert farro.run("ps", code=0).out == "nothing runs here; `farro up` starts what a root needs\n"


def test_down_ends_a_supervisor_that_hangs(farro: Program) -> None:
    farro.run("up", "--detach", "--no-web", "--workers", "1", code=0)
    pid = supervisor(farro)
    assert pid is not None
    with kept_stopped(pid):
        done = farro.run("down", "--json", code=0).json["components"]
    assert {one["what"] for one in done} == {"stopped"}
    assert farro.living() == []


BRIEF = """
import os, sys
from farro.component import Component
bee = Component(sys.argv[1])
@bee.service
def leave(stop):
    while not os.path.exists("go"):
        if stop.wait(0.05):
            return
    if sys.argv[2] == "eat":
        kept = [b"x" * (1 << 20) for _ in range(600)]
        stop.wait()
    print("out of ideas", file=sys.stderr, flush=True)
    sys.exit(int(sys.argv[2]))
bee.run()
"""


def test_a_custom_plan_with_limits_and_restarts(farro: Program) -> None:
    python = sys.executable

    def brief(role: str, code: int, restart: str) -> dict[str, Any]:
        return {"role": role, "command": [python, "-c", BRIEF, role, str(code)], "restart": restart}

    hog = {"role": "hog", "command": [python, "-c", BRIEF, "hog", "eat"], "restart": "never"}
    bees = [
        {**hog, "limits": {"memory_bytes": 400 << 20}},
        brief("once", 0, "on-failure"),
        brief("fails", 3, "never"),
        brief("again", 3, "on-failure"),
    ]
    plan = {"id": "farro", "bees": bees}
    path = farro.path / "own.json"
    path.write_text(json.dumps(plan))
    wrong = farro.path / "wrong.json"
    wrong.write_text(json.dumps({**plan, "id": "other"}))
    assert "the swarm is farro" in farro.run("up", "--detach", "--plan", str(wrong), code=2).err
    farro.run("up", "--detach", "--plan", str(path), code=0)
    (farro.path / "go").touch()

    def becomes(name: str, state: str) -> None:
        eventually(lambda: ps(farro)[name]["state"] == state, f"{name} does not become {state}")

    becomes("farro-hog", "Failed")
    becomes("farro-fails", "Failed")
    becomes("farro-once", "Stopped")
    eventually(lambda: ps(farro)["farro-again"]["restarts"] >= 2, "it is not started again")
    lines = ps(farro)
    log = "swarms/farro/logs/farro-fails.log"
    said = f"{log} ends with: out of ideas"
    assert lines["farro-fails"]["failure"] == f"ended with exit code 3, and restarts never; {said}"
    assert "and restarts never; " in lines["farro-hog"]["failure"]
    shown = farro.run("ps", code=0).out.splitlines()
    assert shown[3].split()[:3] == ["farro-fails", "fails", "Failed"]  # the failure is not in a column
    assert f"farro-fails failed: it {lines['farro-fails']['failure']}" in shown
    assert (lines["farro-once"]["failure"], lines["farro-once"]["restarts"]) == (None, 0)
    assert "left as they are, with their orchestrator: swarm farro" in farro.run("down", code=0).err
    farro.run("swarm", "stop", "farro", code=0)
    farro.run("swarm", "remove", "farro", code=0)
    farro.run("down", code=0)
    assert farro.living() == []


def test_other_swarms_are_left_alone(farro: Program) -> None:
    other = {"id": "other", "bees": [{"role": "sleeper", "command": [sys.executable, "-c", BRIEF, "sleeper", "0"]}]}
    (farro.path / "other.json").write_text(json.dumps(other))
    farro.run("swarm", "apply", "other.json", code=0)
    farro.run("up", "--detach", "--no-web", "--workers", "1", code=0)
    assert set(ps(farro)) == {"farro-manager", "farro-watchdog", "farro-worker", "other-sleeper"}
    done = farro.run("down", code=0)
    assert "left as they are, with their orchestrator: swarm other" in done.err
    assert list(ps(farro)) == ["other-sleeper"]
    assert farro.run("swarm", "ls", "--json", code=0).json["orchestrator"] is True
    done = farro.run("down", "--kill", code=0)
    assert "left as they are, with their orchestrator: swarm other" in done.err
    assert done.out == ""
    assert farro.run("swarm", "ls", "--json", code=0).json["orchestrator"] is True
    farro.run("swarm", "remove", "other", code=0)
    assert "only an orchestrator ran here" in farro.run("down", code=0).out
    assert farro.run("down", code=0).out == "nothing runs in the background here\n"
    assert farro.living() == []


def test_roles_with_a_provider_have_workers(farro: Program) -> None:
    from farro.cli.up import roles_with_workers
    from farro.config import reader
    from farro.worker.supervisor import default_services

    settings = {
        **SETTINGS,
        "providers": {"one": {"kind": "cli", "command": ["true"]}},
        "roles": {"Tester": {"provider": "one"}},
    }
    assert roles_with_workers(reader.load(str(farro.path))) == ("Runner",)
    (farro.path / "agents-config.json").write_text(json.dumps(settings))
    agents = ("SeniorEngineer", "JuniorEngineer", "Architect", "CodeReviewer", "DocWriter", "Tester")
    assert roles_with_workers(reader.load(str(farro.path))) == ("Runner", *agents)
    made = default_services("/srv/farro", program=("farro",), roles=("Runner", "DocWriter"), workers=1, web=True)
    assert [one.role for one in made] == ["manager", "watchdog", "worker", "worker-docwriter", "web"]
