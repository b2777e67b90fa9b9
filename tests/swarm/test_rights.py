"""The example definitions of a broker, loaded into a real one: who may say and hear what, and who may not."""

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
from farro.swarm.bus.port import Binding, Bus, Message
from farro.swarm.wire import names
from farro.swarm.wire.names import Signal
from servers import RabbitServer
from support import ROOT
from swarm.hive import PIPELINE, Hive, played

DEFINITIONS = Path(ROOT, "examples", "rabbitmq", "definitions.json")
PATIENCE_S = 90.0
SALT = b"salt"


def hashed(password: str) -> str:
    return base64.b64encode(SALT + hashlib.sha256(SALT + password.encode()).digest()).decode()


@pytest.fixture(scope="module")
def broker(rabbit_server: RabbitServer, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The address of each user: its password is its name, and a second swarm has a controller like demo's."""
    text = DEFINITIONS.read_text(encoding="utf-8")
    told = json.loads(text)
    other = json.loads(text.replace("demo", "other"))
    for section in ("users", "permissions", "topic_permissions"):
        name = "name" if section == "users" else "user"
        told[section] += [one for one in other[section] if one[name] == "controller-other"]
    for user in told["users"]:
        assert user["password_hash"] == ""  # nobody gets in before whoever runs the broker sets a password
        user["password_hash"] = hashed(user["name"])
    whole = {
        "user": "guest",
        "vhost": "farro",
        "configure": ".*",
        "write": ".*",
        "read": ".*",
    }  # for the tests' own ears
    told["permissions"].append(whole)
    file = tmp_path_factory.mktemp("definitions") / "definitions.json"
    file.write_text(json.dumps(told))
    rabbit_server.control("import_definitions", str(file))
    return lambda user: f"amqp://{user}:{user}@127.0.0.1:{rabbit_server.port}/farro"


def play(act: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await act()

    asyncio.run(bounded())


async def say(bus: Bus, key: str, exchange: str = names.CONTROL) -> None:
    await bus.publish(exchange, Message(key=key, body=b"{}", message_id=str(uuid.uuid4())))


async def refused(call: Awaitable[object]) -> None:
    with pytest.raises(InputError, match="ACCESS_REFUSED"):
        await call


async def opened(address: str) -> AmqpBus:
    return await AmqpBus.opened(address, patience_s=20.0)


def test_a_viewer_hears_events_and_can_change_nothing(broker: Callable[[str], str]) -> None:
    async def act() -> None:
        queen, viewer = await opened(broker("orchestrator")), await opened(broker("viewer"))
        marshal = await opened(broker("controller-demo"))
        try:
            own = f"viewer-{uuid.uuid4().hex[:8]}"
            await viewer.declare(own, [Binding(names.CONTROL, "ev.#")], exclusive=True)
            heard = await viewer.consume(own)
            await say(queen, "sig.swarm-start.demo")
            await say(queen, "ev.ready.swarm-create.demo")
            await say(marshal, "ev.status-full.generator.demo-generator")
            keys = []
            for _ in range(2):
                delivery = await anext(aiter(heard))
                keys.append(delivery.message.key)
                await delivery.ack()
            assert sorted(keys) == ["ev.ready.swarm-create.demo", "ev.status-full.generator.demo-generator"]
            await marshal.declare("ph.control.swarm-controller.demo-marshal")
            await marshal.declare("ph.demo.items", [Binding("ph.demo.hive", "items")])
            for key in ("sig.swarm-remove.demo", "ev.ready.swarm-stop.demo", "ev.status-full.generator.demo-generator"):
                await refused(say(viewer, key))
            await refused(say(viewer, "items", "ph.demo.hive"))
            await refused(viewer.declare("ph.control.viewer.x"))
            await refused(viewer.declare("ph.demo.items"))
            await refused(viewer.declare(own, [Binding(names.CONTROL, "sig.#")], exclusive=True))
            await refused(viewer.declare(own, [Binding("ph.demo.hive", "#")], exclusive=True))
            await refused(viewer.consume("ph.control.swarm-controller.demo-marshal"))
            await refused(viewer.delete("ph.demo.items"))
            assert await marshal.depth("ph.demo.items") is not None
        finally:
            for queue in ("ph.demo.items", "ph.control.swarm-controller.demo-marshal"):
                await marshal.delete(queue)
            for bus in (queen, viewer, marshal):
                await bus.close()

    play(act)


def test_a_controller_speaks_and_hears_within_its_swarm_alone(broker: Callable[[str], str]) -> None:
    async def act() -> None:
        demo, other = await opened(broker("controller-demo")), await opened(broker("controller-other"))
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
                "ev.ready.swarm-create.demo",  # which is the orchestrator's to say
                "ev.error.config-update.generator.other-generator",
                "ev.ready.swarm-controller.other-marshal",
                "ev.status-delta.generator.other-generator",
                "sig.config-update.generator.other-generator",
                "sig.swarm-start.demo",  # only the orchestrator asks for a swarm's lifecycle
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


def test_a_swarm_lives_its_whole_life_within_those_rights(broker: Callable[[str], str], tmp_path: Path) -> None:
    async def act(hive: Hive) -> None:
        async with hive.controller():
            assert (await hive.ask(Signal.TEMPLATE, PIPELINE))["state"] == "Ready"
            assert (await hive.ask(Signal.START))["state"] == "Running"
            while not hive.sink.read_text():
                await asyncio.sleep(0.05)
            off = await hive.ask(Signal.CONFIG, {"enabled": False}, role="generator", instance="demo-generator")
            assert off["result"] == "success"
            assert (await hive.ask(Signal.STOP))["state"] == "Stopped"
            assert (await hive.ask(Signal.REMOVE))["state"] == "Removed"

    played(act, broker("controller-demo"), tmp_path, queen=broker("orchestrator"), capture=broker("guest"))


def test_whoever_has_no_password_gets_in_nowhere(rabbit_server: RabbitServer, broker: Callable[[str], str]) -> None:
    async def act() -> None:
        for user in ("viewer:", "viewer:wrong", "stranger:stranger"):
            with pytest.raises(BusTrouble, match="refuses the user or the password"):
                await opened(f"amqp://{user}@127.0.0.1:{rabbit_server.port}/farro")

    play(act)
