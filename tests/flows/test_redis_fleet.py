"""Two machines and one server: two roots, one queue, one active manager."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farro.app import App
from farro.config.settings import RedisSettings, Settings
from farro.doctor.root import init
from farro.host.clock import ManualClock
from farro.store.leadership import AWAY_S, BEAT_S
from farro.store.redis import RedisStore
from farro.store.redis.leadership import RedisLeadership
from flows.program import Program, shell
from servers import RedisServer
from support import eventually

TASK = {
    "id": "greet",
    "title": "Greet politely",
    "allowed_paths": ["src/"],
    "success": "It says please.",
    "workflow": [
        {"role": "SeniorEngineer", "rubric": "Make the greeting polite."},
        {"role": "CodeReviewer", "rubric": "Judge the change."},
    ],
}
ANSWERS = [
    {"role": "SeniorEngineer", "answer": {"summary": "It says please now."}},
    {"role": "CodeReviewer", "answer": {"verdict": "approve", "findings": []}},
]


@pytest.fixture
def machines(farro: Program, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Make two roots that share a queue, as two machines do."""
    path = farro.path / "agents-config.json"
    settings = {
        "store": redis_server.url,
        "redis": {"name": f"t-{uuid.uuid4().hex[:12]}"},
        "providers": {"script": {"kind": "scripted", "file": "answers.json"}},
        "retry": {"base_s": 0.001, "max_delay_s": 0.01},
    }
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    (farro.path / "answers.json").write_text(json.dumps({"answers": ANSWERS}))
    (farro.path / "tasks" / "greet.json").write_text(json.dumps(TASK))
    (farro.path / "src").mkdir()
    other = Program(tmp_path_factory.mktemp("other"))
    shutil.copytree(farro.path, other.path, dirs_exist_ok=True)
    yield farro, other
    other.clean_up()


def test_a_task_is_routed_from_machine_to_machine(machines: tuple[Program, Program]) -> None:
    one, other = machines
    prompt = {
        "role": "SeniorEngineer",
        "rubric": "Make the greeting polite.",
        "allowed_paths": ["src/"],
        "success": "It says please.",
        "routing": {"mode": "manager"},
        "inputs": {"task_id": "greet"},
    }
    (one.path / "prompt.json").write_text(json.dumps(prompt))
    one.call("enqueue", "--prompt-json", str(one.path / "prompt.json"), "--id", "job", code=0)
    manager = other.start("manager").started()
    eventually(lambda: "no manager" not in one.call("status", code=0).out, "the manager is not seen from elsewhere")
    one.call("worker", "--role", "SeniorEngineer", "--drain", code=0)
    eventually(lambda: one.job("job")["role"] == "CodeReviewer", "the manager does not route the job")
    # The job keeps the task as of its first claim, though the file has changed since.
    (other.path / "tasks" / "greet.json").write_text(json.dumps({**TASK, "workflow": TASK["workflow"][:1]}))
    other.call("worker", "--role", "CodeReviewer", "--drain", code=0)
    eventually(lambda: one.status("job") == "succeeded", "the manager does not finish the job")
    assert manager.end().code == 0
    hops = one.job("job")["hops"]
    assert [hop["role"] for hop in hops] == ["SeniorEngineer", "Manager", "CodeReviewer", "Manager"]
    for root in (one, other):
        told = root.call("history", "job", "--json", code=0).json
        assert sum(line.get("event") == "claimed" for line in told["audit"]) == 4, "the audit lines of every machine"
        assert "It says please now." in root.call("logs", "job", "--attempt", "1", code=0).out
        assert root.call("replay", "job", code=0).out


def agent_job(here: Program, name: str) -> None:
    prompt = {
        "role": "SeniorEngineer",
        "rubric": "Make it polite.",
        "allowed_paths": ["src/"],
        "success": "It says please.",
        "routing": {"mode": "role", "next": "SeniorEngineer"},
    }
    (here.path / "p.json").write_text(json.dumps(prompt))
    here.call("enqueue", "--prompt-json", "p.json", "--id", name, code=0)


def answer_with(machine: Program, entry: dict[str, Any]) -> None:
    (machine.path / "answers.json").write_text(json.dumps({"answers": [entry]}))


def test_a_budget_is_common_to_all_machines(machines: tuple[Program, Program]) -> None:
    here, other = machines
    for machine in machines:
        path = machine.path / "agents-config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "budgets": {"day_usd": 0.5}}))
        answer_with(machine, {**ANSWERS[0], "cost_usd": 0.4})
    agent_job(here, "one")
    here.worked("--role", "SeniorEngineer")
    assert here.status("one") == "succeeded"
    agent_job(here, "two")
    other.worked("--role", "SeniorEngineer")
    error = here.job("two")["error"]
    assert error["category"] == "budget_exceeded"
    assert "0.10 USD left" in error["message"]
    for machine in machines:
        assert machine.call("costs", "--json", code=0).json["total"]["usd"] == 0.4


def test_a_paused_account_is_paused_on_all_machines(machines: tuple[Program, Program]) -> None:
    here, other = machines
    answer_with(here, {"error": {"kind": "refused", "message": "wrong key"}})
    agent_job(here, "one")
    worker = here.start("worker", "--role", "SeniorEngineer")
    eventually(lambda: here.job("one")["not_before"] is not None, "the job does not wait")
    (line,) = other.call("provider", "list", "--json", code=0).json["providers"]
    assert (line["paused"]["kind"], line["paused"]["jobs"]) == ("refused", 1)
    agent_job(other, "two")
    second = other.start("worker", "--role", "SeniorEngineer")  # it has good answers, and does not ask for them
    eventually(lambda: other.job("two")["not_before"] is not None, "the job does not wait")
    answer_with(here, ANSWERS[0])
    assert "2 jobs start now" in other.call("provider", "resume", "script", code=0).out
    eventually(lambda: {here.status("one"), here.status("two")} == {"succeeded"}, "the jobs do not go on")
    assert [daemon.end().code for daemon in (worker, second)] == [0, 0]


def test_second_manager_waits_for_the_first_on_any_machine(machines: tuple[Program, Program]) -> None:
    one, other = machines
    first = one.start("manager").started()
    eventually(lambda: other.call("manager", "--once").code == 3, "two managers act")
    told = other.call("manager", "--once", code=3).err
    assert "another manager acts" in told
    assert str(first.pid) in told
    assert first.end().code == 0
    other.call("manager", "--once", code=0)


def test_logs_of_a_remote_job_name_its_machine(machines: tuple[Program, Program]) -> None:
    one, other = machines
    one.enqueue(shell("touch started; while test ! -e go; do sleep 0.05; done; echo done"), "--id", "j")
    worker = other.start("worker", "--name", "far").started()
    eventually((other.path / "started").exists, "the step never started")
    told = one.call("logs", "j", code=0)
    assert "another machine (far." in told.err
    assert "has not run" not in told.err
    assert all(line["since"] for line in one.call("workers", "--json", code=0).json["workers"])
    follows = one.start("logs", "j", "--follow")
    (other.path / "go").touch()
    done = follows.ended()
    assert (done.code, done.out) == (0, "done\n")
    assert worker.end().code == 0


# --- leadership ---


@pytest.fixture
def store(tmp_path: Path, redis_server: RedisServer) -> Iterator[RedisStore]:
    init(str(tmp_path), Settings())
    settings = Settings(store=redis_server.url, redis=RedisSettings(name=f"t-{uuid.uuid4().hex[:12]}"))
    opened = App().open_store(str(tmp_path), settings, brief=True)
    assert isinstance(opened, RedisStore)
    yield opened
    opened.close()


def leadership(store: RedisStore, me: str, **more: Any) -> RedisLeadership:
    return RedisLeadership(context=store._context, me=me, **more)


def test_one_manager_acts_across_machines(store: RedisStore) -> None:
    assert isinstance(store.leadership(), RedisLeadership)
    one, two = (leadership(store, name) for name in ("one", "two"))
    assert one.silent_s() is None
    assert one.take()
    assert not two.take()
    assert two.holder() == "one"
    assert not two.stands()
    two.drop()
    assert not two.take(), "dropping without leadership does not free it"
    one.drop()
    assert two.take()
    silent_s = two.silent_s()
    assert silent_s is not None
    assert silent_s < AWAY_S


def test_leader_that_slept_past_its_lease_is_no_leader(store: RedisStore) -> None:
    """It stops acting, whether or not another manager has taken over."""
    store._context.clock = clock = ManualClock()
    seat = leadership(store, "one", lease_s=AWAY_S)
    assert seat.take()
    clock.advance(BEAT_S)
    assert seat.stands()
    seat.beat()
    clock.suspend(AWAY_S)
    assert not seat.stands()
    seat.beat()
    assert not seat.stands(), "a heartbeat does not bring it back"
    assert seat.take(), "asking for it does"


def test_expired_leadership_can_be_taken(store: RedisStore) -> None:
    first, second = leadership(store, "one", lease_s=0.05), leadership(store, "two", lease_s=30)
    assert first.take()
    eventually(second.take, "the lease never expires")
    assert not leadership(store, "one", lease_s=30).take(), "the first cannot take it back"
    first._until_s = float("inf")  # else it would not ask the server
    first.drop()
    assert not leadership(store, "one", lease_s=30).take(), "nor release the lease of the second"
