"""The controller of a swarm: the seed's sequences with real processes, on each bus."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from farro.buses.opening import opened
from farro.kernel.moments import timestamp
from farro.ports.bus import Binding, Bus, Consumer
from farro.runtimes.process import ProcessRuntime
from farro.services.swarms.controller import Controller
from farro.services.swarms.hands import Ground, environment
from farro.services.swarms.telling import Voice
from farro.swarm import messages, names
from farro.swarm.names import Scope, Signal
from farro.system.clock import SystemClock
from servers import RabbitServer
from support import ROOT
from swarms.capture import Capture

PATIENCE_S = 90.0
SWARM = "demo"


def bee(role: str, *, takes: str | None = None, gives: str | None = None, **more: Any) -> dict[str, Any]:
    work = {**({"in": takes} if takes else {}), **({"out": gives} if gives else {})}
    return {"role": role, "command": ["python", "-m", "swarms.bees", role], "work": work, **more}


PIPELINE = {
    "id": SWARM,
    "bees": [
        bee("sink", takes="done"),
        bee("processor", takes="raw", gives="done", instances=2),
        bee("generator", gives="raw"),
    ],
}


class Hive:
    """A swarm under test: its bus, its processes, and everything that is said on the control exchange."""

    def __init__(self, address: str, folder: Path, bus: Bus, events: Consumer) -> None:
        self.address = address
        self.folder = folder
        self.bus = bus
        self.heard: list[tuple[str, dict[str, Any], str]] = []
        self._events = events
        self.sink = folder / "sink"
        self.sink.touch()
        self.runtime = ProcessRuntime(str(folder / "components"), SystemClock())
        self._came = asyncio.Condition()

    async def listen(self) -> None:
        async for delivery in self._events:
            message = delivery.message
            async with self._came:
                self.heard.append((message.key, json.loads(message.body), message.message_id))
                self._came.notify_all()
            await delivery.ack()

    def broke(self, task: asyncio.Task[None]) -> None:
        """A controller that ended by an exception: nothing will come any more."""
        self.failure = task.exception()
        for other in asyncio.all_tasks():
            if other is not task:
                other.cancel(f"the controller broke: {self.failure!r}")

    async def until(self, wanted: Callable[[str, dict[str, Any]], bool], after: int = 0) -> dict[str, Any]:
        async with self._came:
            while True:
                for key, body, _ in self.heard[after:]:
                    if wanted(key, body):
                        return body
                await self._came.wait()

    @asynccontextmanager
    async def controller(self) -> AsyncIterator[Controller]:
        """One life of the controller; its components go on after it."""
        home = self.folder / "swarm"
        (home / "logs").mkdir(parents=True, exist_ok=True)
        ground = Ground(
            swarm=SWARM,
            instance="demo-marshal",
            bus_address=self.address,
            folder=str(home),
            cwd=ROOT,
            env={**environment(), "SINK": str(self.sink), "PYTHONPATH": f"{ROOT}/tests:{ROOT}/src"},
        )
        bus = await opened(self.address, durable=False)
        made = Controller(ground, bus, self.runtime, log=print_nothing, now=now, durable=False)
        before = len(self.heard)
        running = asyncio.create_task(made.run())
        running.add_done_callback(lambda task: task.cancelled() or task.exception() is None or self.broke(task))
        try:
            await self.until(lambda key, body: key == "ev.ready.swarm-controller.demo-marshal", after=before)
            yield made
        finally:
            made.stop()
            await asyncio.gather(running)
            await bus.close()

    async def send(
        self, sig: Signal, args: dict[str, Any] | None = None, *, key: str | None = None, **scope: str
    ) -> str:
        """A signal as the orchestrator sends it; its correlation id."""
        correlation = str(uuid.uuid4())
        about = Scope(swarm=SWARM, **scope)
        told = messages.ControlSignal(
            correlation_id=correlation,
            idempotency_key=key or correlation,
            signal=sig.value,
            timestamp=now(),
            swarm_id=SWARM,
            role=about.role,
            instance=about.instance,
            args=args,
        )
        of_key = Scope(role=about.role, instance=about.instance) if sig.of_component else Scope(swarm=SWARM)
        await Voice(self.bus, now)._send(names.signal_key(sig, of_key), told, correlation)
        return correlation

    async def ask(self, sig: Signal, args: dict[str, Any] | None = None, **scope: str) -> dict[str, Any]:
        """A signal, and its confirmation."""
        correlation = await self.send(sig, args, **scope)
        return await self.confirmed(correlation)

    async def confirmed(self, correlation: str) -> dict[str, Any]:
        return await self.until(lambda key, body: body.get("correlationId") == correlation and _confirms(key))

    def confirmations(self, correlation: str) -> list[str]:
        """Distinct ones, by their message ids."""
        found = [own for key, body, own in self.heard if _confirms(key) and body.get("correlationId") == correlation]
        return sorted(set(found))


def _confirms(key: str) -> bool:
    return key.startswith(("ev.ready.", "ev.error."))


def now() -> str:
    return timestamp(datetime.now(UTC))


def print_nothing(level: str, message: str, fields: Any) -> None: ...


@pytest.fixture(params=["files", "amqp"])
def play(request: pytest.FixtureRequest, tmp_path: Path, shm: Path) -> Callable[[Any], None]:
    server: RabbitServer | None = request.getfixturevalue("rabbit_server") if request.param == "amqp" else None

    def run(act: Callable[[Hive], Awaitable[None]]) -> None:
        address = f"files:{shm}" if server is None else server.url

        async def bounded() -> None:
            bus = await opened(address, durable=False)
            await bus.declare("listener", [Binding(names.CONTROL, "ev.#")])
            hive = Hive(address, tmp_path, bus, await bus.consume("listener", prefetch=200))
            listening = asyncio.create_task(hive.listen())
            try:
                async with asyncio.timeout(PATIENCE_S), Capture.of(address, [SWARM]) as capture:
                    await act(hive)
                    await capture.check()
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
                hive.runtime.stop([seen.name for seen in hive.runtime.list()], 5)
                for queue in ("listener", *_queues()):
                    await bus.delete(queue)
                await bus.close()

        asyncio.run(bounded())

    return run


def _queues() -> list[str]:
    work = [names.work_queue(SWARM, name) for name in ("raw", "done")]
    members = ("sink", "demo-sink"), ("generator", "demo-generator")
    numbered = [("processor", f"demo-processor-{n}") for n in (1, 2)]
    control = [names.control_queue(*one) for one in (*members, *numbered, (names.CONTROLLER, "demo-marshal"))]
    return [*work, *map(names.dead_letters, work), *control]


def test_the_sequences_of_the_seed(play: Callable[[Any], None]) -> None:
    """7.1 to 7.5: template, start, a single component, stop, remove, in the order of the queues."""

    async def act(hive: Hive) -> None:
        async with hive.controller() as controller:
            ready = await hive.ask(Signal.TEMPLATE, PIPELINE)
            assert (ready["result"], ready["state"], ready["scope"]) == ("success", "Ready", {"swarmId": SWARM})
            assert len(hive.runtime.list()) == 4
            assert hive.sink.read_text() == ""  # nothing works before it is started
            before = len(hive.heard)
            started = await hive.ask(Signal.START)
            assert (started["result"], started["state"]) == ("success", "Running")
            on: list[str] = []
            # By when they were said: what two senders say may reach two listeners in different orders.
            told = [body for _, body, _ in hive.heard[before:] if body.get("event") == "status" and body["enabled"]]
            for body in sorted(told, key=lambda body: str(body["timestamp"])):
                if body["role"] not in (names.CONTROLLER, *on):
                    on.append(body["role"])
            assert on == ["generator", "processor", "sink"]
            while len(hive.sink.read_text().splitlines()) < 5:
                await asyncio.sleep(0.05)
            off = await hive.ask(Signal.CONFIG, {"enabled": False}, role="generator", instance="demo-generator")
            assert (off["result"], off["scope"]["instance"]) == ("success", "demo-generator")
            off = await hive.ask(Signal.STOP)
            assert (off["result"], off["state"]) == ("success", "Stopped")
            assert len([seen for seen in hive.runtime.list() if seen.alive]) == 4  # stop is not remove
            gone = await hive.ask(Signal.REMOVE)
            assert (gone["result"], gone["state"]) == ("success", "Removed")
            assert hive.runtime.list() == []
            while not controller.removed:
                await asyncio.sleep(0.01)

    play(act)


def test_a_failure_is_told_once_and_deletes_nothing(play: Callable[[Any], None]) -> None:
    """7.6: a component that never comes up."""
    swarm = {
        "id": SWARM,
        "bees": [bee("generator", gives="raw"), {**bee("dies"), "restart": "never"}],
    }

    async def act(hive: Hive) -> None:
        async with hive.controller():
            error = await hive.ask(Signal.TEMPLATE, swarm)
            assert (error["result"], error["code"], error["phase"]) == ("error", "COMPONENT_FAILED", "template")
            assert error["message"].startswith("demo-dies ended")
            assert [seen.name for seen in hive.runtime.list() if seen.alive] == ["demo-generator"]
            refused = await hive.ask(Signal.TEMPLATE, {"id": SWARM, "bees": [{"role": "a.b"}]})
            assert refused["code"] == "BAD_PLAN"
            assert "bees[0].role" in refused["message"]
            again = await hive.ask(Signal.TEMPLATE, {"id": SWARM, "bees": [bee("generator", gives="raw")]})
            assert again["state"] == "Ready"

    play(act)


def test_a_controller_that_dies_is_followed_by_one_that_adopts(play: Callable[[Any], None]) -> None:
    async def act(hive: Hive) -> None:
        async with hive.controller():
            assert (await hive.ask(Signal.TEMPLATE, PIPELINE))["state"] == "Ready"
        pids = {seen.name: seen.pid for seen in hive.runtime.list()}
        start = await hive.send(Signal.START, key=(key := str(uuid.uuid4())))  # while nobody listens
        async with hive.controller():
            assert (await hive.confirmed(start))["state"] == "Running"
            assert {seen.name: seen.pid for seen in hive.runtime.list()} == pids  # adopted, not started again
            again = await hive.send(Signal.START, key=key)  # a retry of the same command
            assert (await hive.confirmed(again))["state"] == "Running"
            await hive.until(lambda name, body: name == f"ev.duplicate.swarm-start.{SWARM}")
            victim = pids["demo-processor-1"]
            assert victim is not None
            os.kill(victim, signal.SIGKILL)
            await hive.until(
                lambda name, body: name == "ev.status-delta.processor.demo-processor-1" and body["enabled"],
                after=len(hive.heard),
            )
            assert {seen.pid for seen in hive.runtime.list() if seen.name == "demo-processor-1"} != {victim}
            assert [len(hive.confirmations(one)) for one in (start, again)] == [1, 1]

    play(act)
