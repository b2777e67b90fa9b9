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

from farro.swarm import requests, views
from farro.swarm.bus.port import BusMessage
from farro.swarm.wire import names
from farro.swarm.wire.names import Signal
from servers import RabbitServer
from swarm.running_root import SWARM, RunningRoot, bee, pipeline, running_root

Act = Callable[[RunningRoot], Awaitable[None]]


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
            async with running_root(shm / "root", address) as made:
                await act(made)

        asyncio.run(bounded())

    return run


def test_the_sequences_of_the_seed(play: Callable[[Act], None]) -> None:
    """7.1 to 7.5: each command is confirmed once, and all messages are checked."""

    async def act(root: RunningRoot) -> None:
        root.begin()
        plan = pipeline(root.sink)
        made = root.ask(Signal.CREATE)
        applied = root.ask(Signal.TEMPLATE, args=plan)
        assert (await root.end(made)).state == "Creating"
        assert (await root.end(applied)).state == "Ready"
        assert len(root.alive()) == 4  # and the controller
        assert not root.sink.exists()
        started = root.ask(Signal.START)
        assert (await root.end(started)).state == "Running"
        await root.until(lambda: root.sink.exists() and len(root.sink.read_text().splitlines()) >= 3)
        about = {"role": "generator", "instance": "demo-generator"}
        off = root.ask(Signal.CONFIG, None, args={"enabled": False}, **about)
        assert (await root.end(off)).state == "Stopped"
        shown = root.ask(Signal.STATUS, None, **about)
        assert (await root.end(shown)).result == "success"
        whole = root.ask(Signal.STATUS, None, role=names.CONTROLLER, instance="demo-marshal")
        assert (await root.end(whole)).result == "success"
        view = views.swarm(root.files.folder, SWARM)
        assert [one["name"] for one in view.queues] == ["ph.demo.done", "ph.demo.raw"]
        assert view.totals == {"total": 3, "desired": 3, "healthy": 3, "running": 2, "enabled": 2}
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
        stopped = root.ask(Signal.STOP)
        assert (await root.end(stopped)).state == "Stopped"
        assert len(root.alive()) == 4  # stop is not remove
        gone = root.ask(Signal.REMOVE)
        assert (await root.end(gone)).state == "Removed"
        await root.until(lambda: root.runtime.list() == [])
        asked = [made, applied, started, off, stopped, gone]
        await root.until(lambda: all(root.confirmations(one) for one in asked))
        assert [len(root.confirmations(one)) for one in asked] == [1] * 6
        await root.judge()
        assert await root.bus.depth(names.work_queue(SWARM, "raw")) is None

        def audit() -> list[tuple[str, str]]:
            lines = Path(root.files.swarm_folder(SWARM), "audit.jsonl").read_text().splitlines()
            return [(line["by"], line["what"]) for line in map(json.loads, lines)]

        await root.until(lambda: audit()[-1] == ("orchestrator", "controller-removed"))
        assert ("controller", "received") in audit()

    play(act)


@pytest.mark.parametrize("foreign_signals", ["refuse", "accept"])
def test_signals_of_another_sender_are_refused_or_adopted(shm: Path, foreign_signals: str) -> None:
    """§11: the status of the swarm is true either way, also when it was removed."""

    async def act(root: RunningRoot) -> None:
        root.begin()
        root.ask(Signal.CREATE)
        root.ask(Signal.TEMPLATE, args=pipeline(root.sink))
        await root.done(Signal.START)
        for name in ("swarm-stop", "swarm-remove"):
            ids = {"correlationId": str(uuid.uuid4()), "idempotencyKey": str(uuid.uuid4())}
            body = json.dumps({**ids, "swarmId": SWARM}).encode()
            message = BusMessage(key=f"sig.{name}.{SWARM}", body=body, message_id=str(uuid.uuid4()))
            await root.bus.publish(names.CONTROL, message)
            kind = "ready" if foreign_signals == "accept" else "error"
            end = await root.heard_end(f"ev.{kind}.{name}.{SWARM}", ids["correlationId"])
            assert end.get("code") == (None if foreign_signals == "accept" else "NOT_ORCHESTRATOR")
        if foreign_signals == "accept":
            await root.until(lambda: views.swarm(root.files.folder, SWARM).state == "Removed")
            await root.until(lambda: root.runtime.list() == [])
        else:
            view = views.swarm(root.files.folder, SWARM)
            assert (view.state, view.totals["running"]) == ("Running", 3)
            assert len(root.alive()) == 4
        await root.judge()

    async def bounded() -> None:
        config = {"foreign_signals": foreign_signals}
        async with running_root(shm / "root", f"files:{shm}/bus", swarm=config) as made:
            await act(made)

    asyncio.run(bounded())


def test_a_failure_deletes_nothing_and_says_why(play: Callable[[Act], None]) -> None:
    """7.6: a component that never comes up."""

    async def act(root: RunningRoot) -> None:
        root.begin()
        bees = [bee("generator", gives="raw"), {**bee("dies"), "restart": "never"}]
        root.ask(Signal.CREATE)
        end = await root.done(Signal.TEMPLATE, args={"id": SWARM, "bees": bees})
        assert (end.result, end.code) == ("error", "COMPONENT_FAILED")
        view = views.swarm(root.files.folder, SWARM)
        assert (view.state, view.health, view.failures) == ("Failed", "Degraded", {"COMPONENT_FAILED": 1})
        assert set(root.alive()) == {"demo-marshal", "demo-generator"}
        await root.until(lambda: bool(views.swarm(root.files.folder, SWARM).recent_errors))
        errors = views.swarm(root.files.folder, SWARM).recent_errors
        assert "demo-dies" in {one.get("instance") for one in errors}
        again = await root.done(Signal.TEMPLATE, args={"id": SWARM, "bees": bees[:1]})
        assert again.state == "Ready"
        await root.judge()

    play(act)


def test_a_swarm_survives_the_kill_of_any_process(play_files: Callable[[Act], None]) -> None:
    """Kill the orchestrator at several moments, and the controller: commands end once, components go on."""

    async def act(root: RunningRoot) -> None:
        root.begin()
        asked = [root.ask(Signal.CREATE), root.ask(Signal.TEMPLATE, args=pipeline(root.sink))]
        for moment_s in (0.3, 0.6, 0.9):  # while it starts, creates or applies
            await asyncio.sleep(moment_s)
            root.kill()
            root.begin()
        assert [(await root.end(one)).state for one in asked] == ["Creating", "Ready"]
        before = root.alive()
        key = str(uuid.uuid4())
        asked.append(root.ask(Signal.START, idempotency_key=key))
        root.kill()
        controller_name = before["demo-marshal"]
        assert controller_name is not None
        os.kill(controller_name, signal.SIGKILL)
        await root.until(lambda: "demo-marshal" not in root.alive())
        root.begin()  # finds the command and launches a controller, which adopts the components
        assert (await root.end(asked[-1])).state == "Running"
        after = root.alive()
        assert {name: pid for name, pid in after.items() if name != "demo-marshal"} == {
            name: pid for name, pid in before.items() if name != "demo-marshal"
        }
        asked.append(root.ask(Signal.START, idempotency_key=key))  # a retry of the same command
        assert (await root.end(asked[-1])).state == "Running"
        await root.until(lambda: all(root.confirmations(one) for one in asked))
        assert [len(root.confirmations(one)) for one in asked] == [1] * len(asked)
        assert any(one.key == f"ev.duplicate.swarm-start.{SWARM}" for one in root.heard)
        assert views.swarm(root.files.folder, SWARM).state == "Running"
        await root.judge()

    play_files(act)


def test_a_second_orchestrator_of_a_root_is_refused(play_files: Callable[[Act], None]) -> None:
    async def act(root: RunningRoot) -> None:
        root.begin()
        await root.until(lambda: views.orchestrator_runs(root.files.folder))
        second = await asyncio.to_thread(root.farro, "orchestrator")
        assert second.returncode == 3
        assert "is already running" in second.stderr

    play_files(act)


def test_swarms_from_the_command_line(play_files: Callable[[Act], None]) -> None:
    async def act(root: RunningRoot) -> None:
        async def farro(*arguments: str, code: int = 0) -> str:
            done = await asyncio.to_thread(root.farro, "swarm", *arguments)
            assert done.returncode == code, done.stderr
            return done.stdout if code == 0 else done.stderr

        plan = root.root / "demo.json"
        plan.write_text(json.dumps(pipeline(root.sink)))
        wrong = root.root / "wrong.yaml"
        wrong.write_text("id: demo\nbees:\n  - role: a.b\n    command: [x]\n")
        assert f"{wrong.name}:3:11: bees[0].role" in await farro("apply", str(wrong), code=2)
        assert "+ demo-generator" in await farro("apply", str(plan), "--dry-run")
        assert await farro("ls") == "no swarm here; make one: farro swarm apply FILE\n"
        out = await farro("apply", str(plan))
        assert "demo: swarm-create done" in out
        assert "demo: swarm-template done, Ready" in out
        assert await farro("apply", str(plan)) == "demo is as the plan says\n"
        assert "exists already" in await farro("create", "demo", code=3)
        assert await farro("start", "demo") == "demo: swarm-start done, Running\n"
        shown = json.loads(await farro("status", "demo", "--json"))
        assert (shown["state"], len(shown["components"])) == ("Running", 3)
        assert shown["commands"][-1]["signal"] == "swarm-start"
        shown = await farro("status", "demo")
        assert "demo-generator" in shown
        assert "swarm-start done" in shown
        refused = await farro("config", "generator", "demo-generator", "--json", "--disable")
        assert json.loads(refused)["commands"][0]["state"] == "Stopped"
        bigger = pipeline(root.sink)
        bigger["bees"][1]["instances"] = 2
        plan.write_text(json.dumps(bigger))
        out = await farro("apply", str(plan))
        assert "+ demo-processor-2" in out
        assert "- demo-processor" in out
        assert "swarm-start done" in out
        (asked,) = (await farro("stop", "demo", "--no-wait")).split()
        assert requests.wait(root.files.folder, asked, 90) is not None
        assert await farro("remove", "demo") == "demo: swarm-remove done, Removed\n"
        assert json.loads((await farro("watch", "demo", "--json")).splitlines()[0])["state"] == "Removed"
        assert "there is no swarm demo" in await farro("start", "demo", code=3)
        await root.judge()

    play_files(act)
