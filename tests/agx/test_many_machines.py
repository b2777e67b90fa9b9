"""The planner with jobs in Redis: the same commands, another store; input is stored with the job."""

from __future__ import annotations

import json
import os

import pytest

from agx.conftest import Agx
from flows.program import Done, Program
from servers import RedisServer


@pytest.fixture
def far(farro: Program, agx: Agx, redis_server: RedisServer) -> Agx:
    config = json.loads((farro.path / "agents-config.json").read_text())
    own = {"redis": {"name": f"agx-{os.urandom(6).hex()}"}}
    (farro.path / "agents-config.json").write_text(json.dumps({**config, **own}))

    def run(*args: str, **how: object) -> Done:
        return agx("--store", redis_server.url, *args, **how)

    return run


def test_a_plan_and_its_input_go_through_redis(farro: Program, far: Agx, redis_server: RedisServer) -> None:
    data = bytes(range(256)) * 64
    far("new", "measure", code=0)
    far("add", "--", "cat | wc -c", code=0)
    far("save", code=0)
    worker = farro.start("worker", "--store", redis_server.url, "--workers", "1").started()
    done = farro.run("agx", "--store", redis_server.url, "submit", "--wait", stdin=data, code=0)
    worker.end()
    told = done.json
    assert told["status"] == "succeeded"
    assert told["result"]["step_results"][1]["stdout"].strip() == str(len(data))
    job = told["job_id"]
    assert far("job", "stdout", job, code=0).out.strip() == str(len(data))
    assert [one["job_id"] for one in far("jobs").json["jobs"]] == [job]
    assert far("queue", "stats").json["queues"][0]["counts"] == {"succeeded": 1}
    assert not list((farro.path / "agents" / "Runner").glob("**/prompt.json"))


def test_commands_of_a_draft_on_redis_have_no_local_folder(farro: Program, far: Agx, redis_server: RedisServer) -> None:
    inner = farro.path / "inner"
    inner.mkdir()
    farro.run("agx", "--root", str(farro.path), "--store", redis_server.url, "add", "--", "pwd", cwd=inner, code=0)
    told = farro.run(
        "agx", "--root", str(farro.path), "--store", redis_server.url, "submit", "--dry-run", cwd=inner, code=0
    ).json
    assert told["ok"]
    job = farro.run("agx", "--root", str(farro.path), "--store", redis_server.url, "submit", cwd=inner, code=0).json[
        "job_id"
    ]
    shown = farro.run("show", job, "--store", redis_server.url, "--json", code=0).json
    assert "inner" not in json.dumps(shown)
    assert far("job", "cancel", job, code=0).json["status"] == "killed"


def test_missing_server_is_reported(agx: Agx) -> None:
    done = agx("--store", "redis://127.0.0.1:1", "jobs", code=1)
    assert "127.0.0.1:1" in done.err
