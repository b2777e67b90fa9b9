"""Components on a real bus: a decorated function with control, health, status and a workload."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from farro.errors import BusTrouble, InputError
from farro.jobs.times import timestamp
from farro.swarm.bus.files import FilesBus
from farro.swarm.bus.port import Binding, BusMessage
from farro.swarm.component import Component, Drop
from farro.swarm.component.declare import ComponentEnvironment
from farro.swarm.component.testing import SWARM, Trial, trial
from farro.swarm.publish import ControlPublisher
from farro.swarm.wire import messages, names
from farro.swarm.wire.names import Scope, Signal
from support import ROOT
from swarm.component.harness import get, run


@pytest.fixture
def folder(shm: Path) -> str:
    return str(shm / "bus")


def doubler(**options: Any) -> Component[Any]:
    bee: Component[Any] = Component("doubler", **options)

    @bee.transform
    def double(item: dict[str, int]) -> dict[str, int] | list[Any] | None:
        if item["n"] < 0:
            raise Drop("negative")
        if item["n"] == 13:
            raise RuntimeError("unlucky")
        return None if item["n"] == 0 else [{"n": item["n"] * 2}] * (2 if item["n"] == 7 else 1)

    return bee


async def fed(it: Trial, *numbers: int) -> None:
    for number in numbers:
        await it.feed("raw", {"n": number})


def test_a_transform_works_while_it_is_enabled(folder: str) -> None:
    async def play() -> None:
        async with trial(doubler(), folder, inputs=["raw"], outputs=["done"]) as it:
            await fed(it, 1, 0, 7)
            assert (await it.ask()).enabled is False
            assert await it.depth("raw") == 3
            status = await it.enable()
            assert (status.enabled, status.state) == (True, "Running")
            assert [await it.next("done") for _ in range(3)] == [{"n": 2}, {"n": 14}, {"n": 14}]
            assert (await it.disable()).enabled is False
            await fed(it, 5)
            full = await it.ask()
            assert (full.kind, full.data["done"], full.data["failed"]) == ("status-full", 3, 0)
            assert full.queues == messages.StatusQueues(inputs=("ph.trial.raw",), outputs=("ph.trial.done",))
            assert await it.depth("raw") == 1  # disabled: the item waits

    run(play)


def test_a_component_reports_each_state_of_the_document(folder: str) -> None:
    """Seed 003, 5.2: Starting → Running → Stopping → Stopped, each by a status of its own."""

    async def play() -> None:
        async with trial(doubler(), folder, inputs=["raw"], outputs=["done"]) as it:
            assert (await it.ask()).state == "Healthy"
            for enabled, states in ((True, ("Starting", "Running")), (False, ("Stopping", "Stopped"))) * 2:
                updating = asyncio.create_task(update(folder, enabled=enabled))
                reported = [await it.status(), await it.status()]
                await updating
                assert tuple(one.state for one in reported) == states
                assert [one.enabled for one in reported] == [not enabled, enabled]

    run(play)


async def update(folder: str, *, enabled: bool) -> None:
    """Send a config update to the component of a trial."""
    bus = FilesBus(folder, durable=False)
    scope = Scope(swarm=SWARM, role="doubler", instance="trial-doubler")
    publisher = ControlPublisher(bus, lambda: timestamp(datetime.now(UTC)))
    await publisher.signal(Signal.CONFIG, scope, {"enabled": enabled}, origin=SWARM, correlation_id=str(uuid.uuid4()))
    await bus.close()


def test_an_item_that_keeps_failing_becomes_a_dead_letter(folder: str) -> None:
    async def play() -> None:
        async with trial(doubler(tries=2), folder, inputs=["raw"], outputs=["done"]) as it:
            await it.enable()
            await fed(it, -1, 13, 4)
            assert await it.next("done") == {"n": 8}  # it does not wait for items that are tried again
            while await it.dead_letters("raw") < 2:
                await asyncio.sleep(0.01)
            full = await it.ask()
            assert (full.data["deadLetters"], full.data["failed"]) == (2, 3)  # one was tried twice
            assert full.data["lastError"] == "RuntimeError: unlucky"

    run(play)


@dataclass(frozen=True)
class Config:
    word: str = "hello"
    rate: float = 50.0


def test_a_source_makes_items_at_its_rate_and_takes_a_new_config_at_once(folder: str) -> None:
    bee = Component("generator", config=Config)
    expected: list[Config] = []
    bee.on_config(expected.append)

    @bee.source(rate=1)
    def make(config: Config) -> str:
        return config.word

    async def play() -> None:
        async with trial(bee, folder, outputs=["words"], config={"word": "a"}) as it:
            await it.enable()
            assert await it.next("words") == "a"
            status = await it.update(word="b")
            assert status.enabled  # an update without `enabled` leaves it as it is
            assert "error" not in status.data["update"]
            while await it.next("words") != "b":
                pass
            refused = await it.update(word=5, rate=1)
            assert refused.data["update"]["error"] == "config: word must be text, not the number 5"
            assert (await it.ask()).data["config"] == {"word": "b"}  # all of an update or nothing
            assert (await it.update(enabled="yes")).data["update"]["error"] == "enabled must be true or false"
            assert expected == [Config(word="b")]

    run(play)


def test_stopping_finishes_the_items_in_progress(folder: str) -> None:
    bee: Component[Any] = Component("slow", prefetch=2)
    begun, go_on = asyncio.Event(), asyncio.Event()

    @bee.transform
    async def work(item: int) -> int:
        begun.set()
        await go_on.wait()
        return item

    async def play() -> None:
        async with trial(bee, folder, inputs=["raw"], outputs=["done"]) as it:
            for number in range(4):
                await it.feed("raw", number)
            await it.enable()
            await begun.wait()
            ending = asyncio.create_task(it.disable())
            await asyncio.sleep(0.05)
            go_on.set()
            await ending
            assert {await it.next("done"), await it.next("done")} == {0, 1}  # they were begun
            assert await it.depth("raw") == 2  # these were not begun, and went back

    run(play)


def test_forged_signals_and_other_swarms_change_nothing(folder: str) -> None:
    async def play() -> None:
        async with trial(doubler(), folder, inputs=["raw"], outputs=["done"]) as it:
            key = "sig.config-update.doubler.trial-doubler"
            uuid = "123e4567-e89b-12d3-a456-426614174000"
            body = {"correlationId": uuid, "idempotencyKey": uuid, "signal": "config-update", "swarmId": "other"}
            body |= {"role": "doubler", "instance": "trial-doubler", "args": {"enabled": True}}
            for forged in (b"no", b"{}", json.dumps(body).encode(), json.dumps({**body, "swarmId": "a.b"}).encode()):
                await it._bus.publish(names.CONTROL, BusMessage(key=key, body=forged, message_id="m"))
            assert (await it.ask()).enabled is False

    run(play)


def test_health_is_reported_over_http(folder: str) -> None:
    async def play() -> None:
        async with trial(doubler(), folder, inputs=["raw"], outputs=["done"]) as it:
            url = (await it.ask()).data["healthUrl"]
            assert url.endswith("/actuator/health")
            code, expected = await asyncio.to_thread(get, url)
            assert (code, expected["status"], expected["instance"]) == (200, "UP", "trial-doubler")
            other = url.replace("/actuator/health", "/healthz")
            assert (await asyncio.to_thread(get, other))[0] == 200
            assert (await asyncio.to_thread(get, other, "HEAD")) == (200, {})
            assert (await asyncio.to_thread(get, other + "z"))[0] == 404
            assert (await asyncio.to_thread(get, other, "POST"))[0] == 405

    run(play)


def test_an_invalid_component_is_refused_when_it_is_declared() -> None:
    bee: Component[Any] = Component("bee")
    with pytest.raises(InputError, match="one of every_s, rate and cron"):
        bee.source()
    with pytest.raises(InputError, match="one of every_s, rate and cron"):
        bee.source(rate=1, cron="* * * * *")
    with pytest.raises(InputError, match="cron of bee: minute: 61 is not between"):
        bee.source(cron="61 * * * *")
    with pytest.raises(InputError, match="more than 0"):
        bee.source(rate=-1)
    with pytest.raises(InputError, match="must take an item"):
        bee.sink(lambda: None)
    with pytest.raises(InputError, match="must take an event"):
        bee.service(lambda: None)

    @bee.sink
    def first(item: Any) -> None: ...

    with pytest.raises(InputError, match=r"already has a function \(first\)"):
        bee.transform(first)
    with pytest.raises(InputError, match="must be a dataclass"):
        Component("bee", config=dict)
    with pytest.raises(InputError, match="not a valid role"):
        Component("b.*")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"FARRO_BUS": ""}, "not set: FARRO_BUS; a component is started by a swarm"),
        ({"FARRO_ROLE": "other"}, "FARRO_ROLE is 'other', but this is a bee"),
        ({"FARRO_CONFIG": "{"}, "FARRO_CONFIG is not valid JSON"),
        ({"FARRO_CONFIG": "[]"}, "FARRO_CONFIG must be an object"),
        ({"FARRO_HEALTH": "here"}, "FARRO_HEALTH must be HOST:PORT"),
        ({"FARRO_INPUTS": "a,#"}, "is not a valid queue"),
    ],
)
def test_a_wrong_environment_is_reported(changes: dict[str, str], expected: str) -> None:
    about = ComponentEnvironment(
        bus="files:/x", swarm="demo", role="bee", instance="demo-bee", inputs=("a",), outputs=("b",)
    )
    assert ComponentEnvironment.of(about.to_env(), "bee") == ComponentEnvironment(**{**fields_of(about), "config": {}})
    with pytest.raises(InputError) as caught:
        ComponentEnvironment.of({**about.to_env(), **changes}, "bee")
    assert expected in str(caught.value)


def fields_of(about: ComponentEnvironment) -> dict[str, Any]:
    return {name: getattr(about, name) for name in ComponentEnvironment.__dataclass_fields__}


PROGRAM = """
    import os
    from farro.component import Component

    bee = Component("counter", prefetch=3)

    @bee.transform
    def count(item):
        with open(os.environ["LOG"], "a") as log:
            log.write(f"{item}\\n")
        return item

    bee.run()
"""


def test_nothing_is_lost_on_the_way(folder: str, tmp_path: Path) -> None:
    """A component that is killed repeatedly: every item comes out, and one that comes out twice has one id."""
    log = tmp_path / "log"
    log.touch()
    about = ComponentEnvironment(
        bus=f"files:{folder}", swarm="demo", role="counter", instance="demo-counter", inputs=("raw",), outputs=("done",)
    )
    env = {**os.environ, **about.to_env(), "LOG": str(log)}
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, env=env)

    async def play() -> None:
        bus = FilesBus(folder, durable=False)
        for queue in ("raw", "done"):
            await bus.declare(names.work_queue("demo", queue), [Binding(about.exchange, queue)])
        await bus.declare("watch", [Binding(names.CONTROL, "ev.status-full.#")])
        watch = await bus.consume("watch", prefetch=100)
        key = names.signal_key(names.Signal.CONFIG, names.Scope(role="counter", instance="demo-counter"))
        uuid = "123e4567-e89b-12d3-a456-426614174000"
        enable = {"correlationId": uuid, "idempotencyKey": uuid, "signal": "config-update", "role": "counter",
                  "instance": "demo-counter", "args": {"enabled": True}}  # fmt: skip
        for number in range(30):
            await bus.publish(about.exchange, BusMessage(key="raw", body=b"%d" % number, message_id=f"m{number}"))
        out: dict[str, set[int]] = {}
        consumer = await bus.consume(names.work_queue("demo", "done"), prefetch=100)

        async def collect() -> None:
            async for delivery in consumer:
                out.setdefault(delivery.message.message_id, set()).add(json.loads(delivery.message.body))
                await delivery.ack()
                if len(out) == 30:
                    return

        collecting = asyncio.create_task(collect())
        victim = start()
        for worked in (5, 12, 20):
            await anext(watch)
            body = json.dumps(enable).encode()
            await bus.publish(names.CONTROL, BusMessage(key=key, body=body, message_id="on"))
            while len(log.read_text().splitlines()) < worked:
                await asyncio.sleep(0.01)
            os.kill(victim.pid, signal.SIGKILL)
            victim.wait()
            victim = start()
        await anext(watch)
        await bus.publish(names.CONTROL, BusMessage(key=key, body=json.dumps(enable).encode(), message_id="on"))
        await collecting
        victim.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(victim.wait) == 0
        assert sorted(number for numbers in out.values() for number in numbers) == list(range(30))
        await bus.close()

    run(play)


def test_a_program_without_its_environment_prints_one_line() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("FARRO_")}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(PROGRAM)], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("counter: not set: FARRO_BUS, FARRO_SWARM, FARRO_ROLE, FARRO_INSTANCE; a component")
    assert done.stderr.count("\n") == 1


def test_the_example_of_the_page_works(folder: str) -> None:
    page = Path(ROOT, "docs/components.md").read_text()
    example = page.split("```python\n", 2)[1].partition("```")[0]
    space: dict[str, Any] = {"__name__": "moderator"}
    exec(compile(example, "docs/components.md", "exec", dont_inherit=True), space)
    bee = space["bee"]

    async def play() -> None:
        async with trial(bee, folder, inputs=["raw"], outputs=["good"], config={"limit": 3}) as it:
            await it.enable()
            for item in ({"n": 1}, {"n": 5}, {}, {"n": 2}):
                await it.feed("raw", item)
            assert [await it.next("good"), await it.next("good")] == [{"n": 1}, {"n": 2}]
            while await it.dead_letters("raw") < 1:  # the item that is dropped delays no other
                await asyncio.sleep(0.01)

    run(play)


def test_a_source_is_called_again_after_its_items_were_accepted(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After trouble with the bus it sends the same messages again before it is called again."""
    bee: Component[Any] = Component("numbers")
    made: list[int] = []
    sent: list[tuple[bytes, str]] = []

    @bee.source(rate=200)
    def make() -> dict[str, int]:
        made.append(len(made))
        return {"n": made[-1]}

    publish = FilesBus.publish

    async def troubled(bus: FilesBus, exchange: str, message: BusMessage) -> None:
        if exchange == names.work_exchange("trial"):
            sent.append((message.body, message.message_id))
            if len(sent) in (2, 3):
                assert len(made) == 2  # it was not called again
                raise BusTrouble("away")
        await publish(bus, exchange, message)

    monkeypatch.setattr(FilesBus, "publish", troubled)

    async def play() -> None:
        async with trial(bee, folder, outputs=["out"]) as it:
            await it.enable()
            assert [await it.next("out") for _ in range(4)] == [{"n": number} for number in range(4)]
        assert sent[1] == sent[2] == sent[3]

    run(play)


def test_items_that_a_slow_function_has_not_begun_go_back_at_once(folder: str) -> None:
    bee: Component[Any] = Component("slow", prefetch=8)
    begun, go_on = threading.Event(), threading.Event()
    calls: list[int] = []

    @bee.sink
    def work(item: dict[str, int]) -> None:
        calls.append(item["n"])
        begun.set()
        go_on.wait(60)

    async def play() -> None:
        async with trial(bee, folder, inputs=["raw"]) as it:
            await fed(it, *range(5))
            await it.enable()
            await asyncio.to_thread(begun.wait, 60)
            stopping = asyncio.create_task(it.disable())
            await asyncio.sleep(0.05)
            go_on.set()
            assert (await stopping).enabled is False
            assert (calls, await it.depth("raw")) == ([0], 4)
            await it.enable()
            while await it.depth("raw"):
                await asyncio.sleep(0.01)
        assert sorted(calls) == [0, 1, 2, 3, 4]

    run(play)
