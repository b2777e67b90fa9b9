"""The whole of it as a user has it: the program, an orchestrator, controllers and components as processes, on each bus.
Every message between them is captured and judged."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.program import Program
from support import ROOT
from swarms.capture import Capture
from swarms.hive import bee

PATIENCE_S = 180.0
SWARM = "whole"


@pytest.fixture(params=["files", "amqp"])
def bus(request: pytest.FixtureRequest) -> str:
    return "files" if request.param == "files" else request.getfixturevalue("rabbit_server").url


@pytest.fixture
def farro(tmp_path: Path, bus: str) -> Iterator[Program]:
    program = Program(tmp_path)
    program.run("init", code=0)
    config = tmp_path / "agents-config.json"
    told = json.loads(config.read_text())
    told |= {"bus": "files" if bus == "files" else f"amqp://{bus.partition('@')[2]}", "durability": "process"}
    config.write_text(json.dumps(told))
    yield program
    program.clean_up()


def plan(sink: Path) -> dict[str, Any]:
    env = {"PYTHONPATH": f"{ROOT}/tests:{ROOT}/src", "SINK": str(sink)}
    bees = [bee("sink", takes="done"), bee("processor", takes="raw", gives="done"), bee("generator", gives="raw")]
    return {"id": SWARM, "bees": [{**one, "env": env} for one in bees]}


def test_a_swarm_from_its_making_to_its_end(farro: Program, bus: str, tmp_path: Path) -> None:
    """Sequences 7.1 to 7.6 by the orchestrator: what it says, and what is said to it."""
    sink, file = tmp_path / "sink", tmp_path / "plan.json"
    file.write_text(json.dumps(plan(sink)))

    async def command(*words: str, code: int = 0) -> Any:
        done = await asyncio.to_thread(farro.run, "swarm", *words, "--json", code=code)
        return done.json if done.out else None

    async def act() -> None:
        async with Capture.of(f"files:{tmp_path}/bus" if bus == "files" else bus, [SWARM]) as capture:
            await command("create", SWARM, "--plan", str(file))
            key = str(uuid.uuid4())
            await command("start", SWARM, "--idempotency-key", key)
            await command("start", SWARM, "--idempotency-key", key)  # the same command: it gets the same end
            while not (sink.exists() and sink.read_text()):
                await asyncio.sleep(0.1)
            await command("config", "generator", f"{SWARM}-generator", "--disable")
            await command("config", "nobody", f"{SWARM}-nobody", "--disable", code=2)  # no plan has it
            await command("remove", SWARM, code=3)  # it runs: refused, and nothing is gone
            await command("stop", SWARM)
            view = await command("status", SWARM)
            assert view["state"] == "Stopped"
            file.write_text(json.dumps({"id": SWARM, "bees": [{**bee("dies"), "restart": "never"}]}))
            await command("apply", str(file), code=1)  # 7.6: a failure is told, and deletes nothing
            await command("remove", SWARM)
            await capture.check()
            keys = [one.key for one in capture.messages]
            wanted = [f"sig.swarm-{what}.{SWARM}" for what in ("template", "start", "stop", "template", "remove")]
            assert [key for key in keys if key.startswith("sig.swarm-")] == wanted
            assert keys.count(f"ev.ready.swarm-create.{SWARM}") == 1
            assert f"ev.error.swarm-template.{SWARM}" in keys
            assert f"ev.duplicate.swarm-start.{SWARM}" in keys
            trail = [
                json.loads(line) for line in (tmp_path / "swarms" / SWARM / "audit.jsonl").read_text().splitlines()
            ]
            asked = {body["correlationId"] for body in capture.said("sig.swarm-*.*")}
            assert asked <= {line.get("correlationId") for line in trail}  # every command is in the audit trail

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await act()

    asyncio.run(bounded())


def test_a_name_that_is_more_than_a_word_is_refused_by_every_command(farro: Program, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    for name in ("a.b", "*", "#", "../x"):
        file.write_text(json.dumps({**plan(tmp_path / "sink"), "id": name}))
        for words in (("create", name, "--plan", str(file)), ("start", name), ("stop", name), ("status", name)):
            said = farro.run("swarm", *words, code=2).err
            assert "small letters, digits and -" in said, said
        assert "no role" in farro.run("swarm", "config", name, "x", "a=1", code=2).err
    assert not any((tmp_path / "swarms").glob("orchestrator/wishes/*"))
