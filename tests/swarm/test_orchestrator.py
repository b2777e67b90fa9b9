"""The seed's sequences through the real orchestrator, with real controllers and components, on each bus."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from farro.swarm import requests
from farro.swarm.wire import names
from farro.swarm.wire.names import Signal
from servers import RabbitServer
from swarm.kingdom import SWARM, Kingdom, bee, kingdom, pipeline

Act = Callable[[Kingdom], Awaitable[None]]


@pytest.fixture(params=["files", "amqp"])
def play(request: pytest.FixtureRequest, shm: Path) -> Callable[[Act], None]:
    server: RabbitServer | None = request.getfixturevalue("rabbit_server") if request.param == "amqp" else None
    return _player(shm, server)


@pytest.fixture
def play_files(shm: Path) -> Callable[[Act], None]:
    return _player(shm, None)


def _player(shm: Path, server: RabbitServer | None) -> Callable[[Act], None]:
    def run(act: Act) -> None:
        async def bounded() -> None:
            address = f"files:{shm}/bus" if server is None else server.url
            async with kingdom(shm / "root", address) as made:
                await act(made)

        asyncio.run(bounded())

    return run


def test_the_sequences_of_the_seed(play: Callable[[Act], None]) -> None:
    """7.1 to 7.5, each command confirmed once, and everything that was said judged."""

    async def act(kingdom: Kingdom) -> None:
        kingdom.begin()
        plan = pipeline(kingdom.sink)
        made = kingdom.ask(Signal.CREATE)
        applied = kingdom.ask(Signal.TEMPLATE, args=plan)
        assert (await kingdom.end(made)).state == "Creating"
        assert (await kingdom.end(applied)).state == "Ready"
        assert len(kingdom.alive()) == 4  # and the controller
        assert not kingdom.sink.exists()
        started = kingdom.ask(Signal.START)
        assert (await kingdom.end(started)).state == "Running"
        await kingdom.until(lambda: kingdom.sink.exists() and len(kingdom.sink.read_text().splitlines()) >= 3)
        about = {"role": "generator", "instance": "demo-generator"}
        off = kingdom.ask(Signal.CONFIG, None, args={"enabled": False}, **about)
        assert (await kingdom.end(off)).state == "Stopped"
        told = kingdom.ask(Signal.STATUS, None, **about)
        assert (await kingdom.end(told)).result == "success"
        whole = kingdom.ask(Signal.STATUS, None, role=names.CONTROLLER, instance="demo-marshal")
        assert (await kingdom.end(whole)).result == "success"
        view = requests.look(kingdom.place.folder, SWARM)
        assert [one["name"] for one in view.queues] == ["ph.demo.done", "ph.demo.raw"]
        assert view.totals == {"desired": 3, "healthy": 3, "running": 2, "enabled": 2}
        assert (view.state, view.controller["alive"], sorted(view.durations)) == (
            "Running",
            True,
            ["provision", "ready", "start"],
        )
        assert {one.instance: one.starts for one in view.components} == {
            "demo-generator": 1,
            "demo-processor": 1,
            "demo-sink": 1,
        }
        stopped = kingdom.ask(Signal.STOP)
        assert (await kingdom.end(stopped)).state == "Stopped"
        assert len(kingdom.alive()) == 4  # stop is not remove
        gone = kingdom.ask(Signal.REMOVE)
        assert (await kingdom.end(gone)).state == "Removed"
        await kingdom.until(lambda: kingdom.runtime.list() == [])
        asked = [made, applied, started, off, stopped, gone]
        await kingdom.until(lambda: all(kingdom.confirmations(one) for one in asked))
        assert [len(kingdom.confirmations(one)) for one in asked] == [1] * 6
        await kingdom.judge()
        assert await kingdom.bus.depth(names.work_queue(SWARM, "raw")) is None

        def trail() -> list[tuple[str, str]]:
            lines = Path(kingdom.place.of(SWARM), "audit.jsonl").read_text().splitlines()
            return [(line["by"], line["what"]) for line in map(json.loads, lines)]

        await kingdom.until(lambda: trail()[-1] == ("orchestrator", "controller-removed"))
        assert ("controller", "received") in trail()

    play(act)


def test_a_failure_deletes_nothing_and_says_why(play: Callable[[Act], None]) -> None:
    """7.6: a component that never comes up."""

    async def act(kingdom: Kingdom) -> None:
        kingdom.begin()
        bees = [bee("generator", gives="raw"), {**bee("dies"), "restart": "never"}]
        kingdom.ask(Signal.CREATE)
        end = await kingdom.done(Signal.TEMPLATE, args={"id": SWARM, "bees": bees})
        assert (end.result, end.code) == ("error", "COMPONENT_FAILED")
        view = requests.look(kingdom.place.folder, SWARM)
        assert (view.state, view.health, view.failures) == ("Failed", "Degraded", {"COMPONENT_FAILED": 1})
        assert set(kingdom.alive()) == {"demo-marshal", "demo-generator"}
        await kingdom.until(lambda: bool(requests.look(kingdom.place.folder, SWARM).recent_errors))
        errors = requests.look(kingdom.place.folder, SWARM).recent_errors
        assert "demo-dies" in {one.get("instance") for one in errors}
        again = await kingdom.done(Signal.TEMPLATE, args={"id": SWARM, "bees": bees[:1]})
        assert again.state == "Ready"
        await kingdom.judge()

    play(act)


def test_whoever_is_killed_the_swarm_goes_on(play_files: Callable[[Act], None]) -> None:
    """The orchestrator, at several moments, and the controller: commands end once, components go on."""

    async def act(kingdom: Kingdom) -> None:
        kingdom.begin()
        asked = [kingdom.ask(Signal.CREATE), kingdom.ask(Signal.TEMPLATE, args=pipeline(kingdom.sink))]
        for moment_s in (0.3, 0.6, 0.9):  # while it starts, creates, applies: wherever it happens to be
            await asyncio.sleep(moment_s)
            kingdom.kill()
            kingdom.begin()
        assert [(await kingdom.end(one)).state for one in asked] == ["Creating", "Ready"]
        before = kingdom.alive()
        key = str(uuid.uuid4())
        asked.append(kingdom.ask(Signal.START, idempotency_key=key))
        kingdom.kill()
        marshal = before["demo-marshal"]
        assert marshal is not None
        os.kill(marshal, signal.SIGKILL)
        await kingdom.until(lambda: "demo-marshal" not in kingdom.alive())
        kingdom.begin()  # finds the command, launches a controller, which adopts the components
        assert (await kingdom.end(asked[-1])).state == "Running"
        after = kingdom.alive()
        assert {name: pid for name, pid in after.items() if name != "demo-marshal"} == {
            name: pid for name, pid in before.items() if name != "demo-marshal"
        }
        asked.append(kingdom.ask(Signal.START, idempotency_key=key))  # a retry of the same command
        assert (await kingdom.end(asked[-1])).state == "Running"
        await kingdom.until(lambda: all(kingdom.confirmations(one) for one in asked))
        assert [len(kingdom.confirmations(one)) for one in asked] == [1] * len(asked)
        assert any(one.key == f"ev.duplicate.swarm-start.{SWARM}" for one in kingdom.heard)
        assert requests.look(kingdom.place.folder, SWARM).state == "Running"
        await kingdom.judge()

    play_files(act)


def test_a_second_orchestrator_of_a_root_is_refused(play_files: Callable[[Act], None]) -> None:
    async def act(kingdom: Kingdom) -> None:
        kingdom.begin()
        await kingdom.until(lambda: requests.running(kingdom.place.folder))
        second = await asyncio.to_thread(kingdom.farro, "orchestrator")
        assert second.returncode == 3
        assert "runs already" in second.stderr

    play_files(act)


def test_swarms_from_the_command_line(play_files: Callable[[Act], None]) -> None:
    async def act(kingdom: Kingdom) -> None:
        async def farro(*arguments: str, code: int = 0) -> str:
            done = await asyncio.to_thread(kingdom.farro, "swarm", *arguments)
            assert done.returncode == code, done.stderr
            return done.stdout if code == 0 else done.stderr

        plan = kingdom.root / "demo.json"
        plan.write_text(json.dumps(pipeline(kingdom.sink)))
        wrong = kingdom.root / "wrong.yaml"
        wrong.write_text("id: demo\nbees:\n  - role: a.b\n    command: [x]\n")
        assert f"{wrong.name}:3:11: bees[0].role" in await farro("apply", str(wrong), code=2)
        assert "+ demo-generator" in await farro("apply", str(plan), "--dry-run")
        assert await farro("ls") == "no swarm here; make one: farro swarm apply FILE\n"
        out = await farro("apply", str(plan))
        assert "demo: swarm-create done" in out
        assert "demo: swarm-template done, Ready" in out
        assert await farro("apply", str(plan)) == "demo is as the plan says\n"
        assert "is there already" in await farro("create", "demo", code=3)
        assert await farro("start", "demo") == "demo: swarm-start done, Running\n"
        told = json.loads(await farro("status", "demo", "--json"))
        assert (told["state"], len(told["components"])) == ("Running", 3)
        assert told["commands"][-1]["signal"] == "swarm-start"
        shown = await farro("status", "demo")
        assert "demo-generator" in shown
        assert "swarm-start done" in shown
        refused = await farro("config", "generator", "demo-generator", "--json", "--disable")
        assert json.loads(refused)["commands"][0]["state"] == "Stopped"
        bigger = pipeline(kingdom.sink)
        bigger["bees"][1]["instances"] = 2
        plan.write_text(json.dumps(bigger))
        out = await farro("apply", str(plan))
        assert "+ demo-processor-2" in out
        assert "- demo-processor" in out
        assert "swarm-start done" in out
        (asked,) = (await farro("stop", "demo", "--no-wait")).split()
        assert requests.wait(kingdom.place.folder, asked, 90) is not None
        assert await farro("remove", "demo") == "demo: swarm-remove done, Removed\n"
        assert json.loads((await farro("watch", "demo", "--json")).splitlines()[0])["state"] == "Removed"
        assert "there is no swarm demo" in await farro("start", "demo", code=3)
        await kingdom.judge()

    play_files(act)
