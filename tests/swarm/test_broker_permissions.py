"""The example definitions of a broker, loaded into a real one: what each user may send and receive."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from farro.errors import BusTrouble, InputError
from farro.swarm.bus.amqp import AmqpBus
from farro.swarm.bus.port import Binding, Bus, BusMessage
from farro.swarm.wire import names
from farro.swarm.wire.names import Signal
from servers import RabbitServer
from support import ROOT
from swarm.swarm_under_test import PIPELINE, SwarmUnderTest, run_test

DEFINITIONS = Path(ROOT, "examples", "rabbitmq", "definitions.json")
PATIENCE_S = 90.0
SALT = b"salt"


def hashed(password: str) -> str:
    return base64.b64encode(SALT + hashlib.sha256(SALT + password.encode()).digest()).decode()


@pytest.fixture(scope="module")
def broker(rabbit_server: RabbitServer, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return the address of each user: its password is its name, and a second swarm has a controller like demo's."""
    text = DEFINITIONS.read_text(encoding="utf-8")
    shown = json.loads(text)
    other = json.loads(text.replace("demo", "other"))
    for section in ("users", "permissions", "topic_permissions"):
        name = "name" if section == "users" else "user"
        shown[section] += [one for one in other[section] if one[name] == "controller-other"]
    for user in shown["users"]:
        assert user["password_hash"] == ""  # no user can log in before the operator sets a password
        user["password_hash"] = hashed(user["name"])
    whole = {
        "user": "guest",
        "vhost": "farro",
        "configure": ".*",
        "write": ".*",
        "read": ".*",
    }  # for the tests' own listener
    shown["permissions"].append(whole)
    file = tmp_path_factory.mktemp("definitions") / "definitions.json"
    file.write_text(json.dumps(shown))
    rabbit_server.control("import_definitions", str(file))
    return lambda user: f"amqp://{user}:{user}@127.0.0.1:{rabbit_server.port}/farro"


def play(act: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await act()

    asyncio.run(bounded())


async def say(bus: Bus, key: str, exchange: str = names.CONTROL) -> None:
    await bus.publish(exchange, BusMessage(key=key, body=b"{}", message_id=str(uuid.uuid4())))


async def refused(call: Awaitable[object]) -> None:
    with pytest.raises(InputError, match="ACCESS_REFUSED"):
        await call


async def open_bus(address: str) -> AmqpBus:
    return await AmqpBus.connect(address, patience_s=20.0)


def test_a_viewer_receives_events_and_can_change_nothing(broker: Callable[[str], str]) -> None:
    async def act() -> None:
        queen, viewer = await open_bus(broker("orchestrator")), await open_bus(broker("viewer"))
        controller_name = await open_bus(broker("controller-demo"))
        own = f"viewer-{uuid.uuid4().hex[:8]}"
        try:
            await viewer.declare(own, [Binding(names.CONTROL, "ev.#")])
            heard = await viewer.consume(own)
            await say(queen, "sig.swarm-start.demo")
            await say(queen, "ev.ready.swarm-create.demo")
            await say(controller_name, "ev.status-full.generator.demo-generator")
            keys = []
            for _ in range(2):
                delivery = await anext(aiter(heard))
                keys.append(delivery.message.key)
                await delivery.ack()
            assert sorted(keys) == ["ev.ready.swarm-create.demo", "ev.status-full.generator.demo-generator"]
            await controller_name.declare("ph.control.swarm-controller.demo-marshal")
            await controller_name.declare("ph.demo.items", [Binding("ph.demo.hive", "items")])
            for key in ("sig.swarm-remove.demo", "ev.ready.swarm-stop.demo", "ev.status-full.generator.demo-generator"):
                await refused(say(viewer, key))
            await refused(say(viewer, "items", "ph.demo.hive"))
            await refused(viewer.declare("ph.control.viewer.x"))
            await refused(viewer.declare("ph.demo.items"))
            await refused(viewer.declare(own, [Binding(names.CONTROL, "sig.#")]))
            await refused(viewer.declare(own, [Binding("ph.demo.hive", "#")]))
            await refused(viewer.consume("ph.control.swarm-controller.demo-marshal"))
            await refused(viewer.delete("ph.demo.items"))
            assert await controller_name.depth("ph.demo.items") is not None
        finally:
            await viewer.delete(own)
            for queue in ("ph.demo.items", "ph.control.swarm-controller.demo-marshal"):
                await controller_name.delete(queue)
            for bus in (queen, viewer, controller_name):
                await bus.close()

    play(act)


def test_a_controller_sends_and_receives_only_within_its_swarm(broker: Callable[[str], str]) -> None:
    async def act() -> None:
        demo, other = await open_bus(broker("controller-demo")), await open_bus(broker("controller-other"))
        try:
            control = "ph.control.swarm-controller.other-marshal"
            await other.declare(control)
            await other.declare("ph.other.items", [Binding("ph.other.hive", "items")])
            await say(other, "items", "ph.other.hive")
            for key in (
                "ev.ready.swarm-start.demo",
                "ev.error.config-update.generator.demo-generator",
                "ev.ready.swarm-controller.demo-marshal",
                "ev.status-delta.generator.demo-generator",
                "sig.config-update.generator.demo-generator",
            ):
                await say(demo, key)
            for key in (
                "ev.ready.swarm-start.other",
                "ev.ready.swarm-create.demo",  # which only the orchestrator may send
                "ev.error.config-update.generator.other-generator",
                "ev.ready.swarm-controller.other-marshal",
                "ev.status-delta.generator.other-generator",
                "sig.config-update.generator.other-generator",
                "sig.swarm-start.demo",  # only the orchestrator sends lifecycle commands
                "sig.swarm-remove.other",
            ):
                await refused(say(demo, key))
            await refused(say(demo, "items", "ph.other.hive"))
            with pytest.raises(InputError):
                await say(demo, "ph.other.items", "")  # the default exchange reaches every queue
            await refused(demo.declare("ph.other.items", [Binding("ph.other.hive", "items")]))
            await refused(demo.declare("ph.demo.spy", [Binding("ph.other.hive", "#")]))
            await refused(demo.declare("ph.demo.spy", [Binding(names.CONTROL, "ev.#")]))
            await refused(demo.consume(control))
            await refused(demo.delete("ph.other.items"))
            found = await other.depth("ph.other.items")
            assert found is not None
            assert found.ready == 1
        finally:
            for queue in ("ph.other.items", control):
                await other.delete(queue)
            await demo.delete("ph.demo.spy")
            await demo.close()
            await other.close()

    play(act)


def test_a_swarm_runs_its_whole_lifecycle_within_those_rights(broker: Callable[[str], str], tmp_path: Path) -> None:
    async def act(demo: SwarmUnderTest) -> None:
        async with demo.controller():
            assert (await demo.ask(Signal.TEMPLATE, PIPELINE))["state"] == "Ready"
            assert (await demo.ask(Signal.START))["state"] == "Running"
            while not demo.sink.read_text():
                await asyncio.sleep(0.05)
            off = await demo.ask(Signal.CONFIG, {"enabled": False}, role="generator", instance="demo-generator")
            assert off["result"] == "success"
            assert (await demo.ask(Signal.STOP))["state"] == "Stopped"
            assert (await demo.ask(Signal.REMOVE))["state"] == "Removed"

    run_test(act, broker("controller-demo"), tmp_path, queen=broker("orchestrator"), capture=broker("guest"))


def test_without_a_password_nothing_is_accessible(rabbit_server: RabbitServer, broker: Callable[[str], str]) -> None:
    async def act() -> None:
        for user in ("viewer:", "viewer:wrong", "stranger:stranger"):
            with pytest.raises(BusTrouble, match="refuses the user or the password"):
                await open_bus(f"amqp://{user}@127.0.0.1:{rabbit_server.port}/farro")

    play(act)
