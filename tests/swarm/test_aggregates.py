"""Aggregate status: a controller sends it on a change and every ten seconds, and no more."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from farro.host.clock import ManualClock
from farro.swarm import controller as controllers
from farro.swarm import lifecycle
from farro.swarm.bus.port import BusMessage
from farro.swarm.controller import Controller
from farro.swarm.controller.actions import ControllerContext
from farro.swarm.lifecycle import SwarmState
from farro.swarm.wire import names
from farro.swarm.wire.names import Signal
from farro.worker.runtime import Stopped
from swarm.fake_cluster import PLAN, SWARM, FakeCluster, FakeControllers, MemoryBus, controller_name
from swarm.swarm_under_test import now


def made(folder: Path, bus: MemoryBus, runtime: FakeControllers) -> Controller:
    context = ControllerContext(
        swarm=SWARM, instance=controller_name(), bus_address="", folder=str(folder), cwd="/", env={}
    )
    return Controller(context, bus, runtime, log=lambda *_: None, now=now, durable=False)


def aggregates(bus: MemoryBus) -> list[tuple[str, str | None]]:
    """Return kind and state of each, in order."""
    sent = [json.loads(one.body) for one in bus.said if one.key.startswith("ev.status-")]
    return [(one["kind"], one.get("state")) for one in sent]


def test_an_aggregate_is_sent_on_a_change_and_every_ten_seconds(shm: Path) -> None:
    """At every tenth of a second of five minutes: never more than ten seconds between two, never one without a
    reason."""

    async def act() -> None:
        bus = MemoryBus()
        controller = made(shm, bus, FakeControllers(bus, ManualClock()))
        sent: list[float] = []
        changes = {73.4: SwarmState.READY, 73.5: SwarmState.STARTING, 200.0: SwarmState.RUNNING}
        for tick in range(3000):
            now_s, before = tick / 10, len(bus.said)
            if now_s in changes:
                controller._state.change(state=changes[now_s])
            await controller._report_changes(now_s)
            if len(bus.said) > before:
                sent.append(now_s)
        beats = [*range(0, 71, 10), 73.4, 73.5, *(83.5 + n for n in range(0, 111, 10)), 200.0, *range(210, 291, 10)]
        assert sent == beats
        kinds = [kind for kind, _ in aggregates(bus)]
        deltas = [at for at, kind in zip(sent, kinds, strict=True) if kind == "status-delta"]
        assert deltas == [0, 73.4, 73.5, 200.0]
        assert [state for kind, state in aggregates(bus) if kind == "status-delta"][1:] == [
            "Ready", "Starting", "Running",
        ]  # fmt: skip

    asyncio.run(act())


class SlowRuntime(FakeControllers):
    """Its components end only when the test lets them."""

    def __init__(self, bus: MemoryBus) -> None:
        super().__init__(bus, ManualClock())
        self.let = threading.Event()

    def stop(self, names: Sequence[str], grace_s: float = 10.0) -> Sequence[Stopped]:
        self.let.wait(60)
        return super().stop(names, grace_s)


def test_heartbeats_go_on_while_a_turn_waits_for_a_component_to_end(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Quiet:
        def __aiter__(self) -> Quiet:
            return self

        async def __anext__(self) -> Any:
            await asyncio.Event().wait()

        async def close(self) -> None: ...

    async def consume(self: MemoryBus, queue: str, *, prefetch: int = 1) -> Any:
        return Quiet()

    monkeypatch.setattr(MemoryBus, "consume", consume)
    monkeypatch.setattr(controllers, "BEAT_S", 0.001)
    monkeypatch.setattr(lifecycle, "HEARTBEAT_S", 0.01)

    async def act() -> None:
        bus = MemoryBus()
        runtime = SlowRuntime(bus)
        controller = made(shm, bus, runtime)
        waiting = asyncio.Event()

        async def turn() -> float:
            waiting.set()
            await asyncio.to_thread(runtime.stop, ["demo-generator"], 30.0)
            return 0.0

        monkeypatch.setattr(controller, "_turn", turn)
        running = asyncio.create_task(controller.run())
        await waiting.wait()
        before = len(aggregates(bus))
        async with asyncio.timeout(60):
            while len(aggregates(bus)) < before + 3:
                await asyncio.sleep(0.005)
        controller.stop()
        runtime.let.set()
        await running

    asyncio.run(act())


def test_an_orchestrator_receives_aggregates_and_no_component_status(shm: Path) -> None:
    """Counted at its queue: of a thousand messages of components none, of the controller all; of a component that a
    command asks one, and none after it has answered."""

    async def act() -> None:
        cluster = FakeCluster(shm)
        await cluster.begin()
        for signal, args in ((Signal.CREATE, None), (Signal.TEMPLATE, PLAN), (Signal.START, None)):
            cluster.ask(signal, args=args)
        await cluster.settle()
        inbox = cluster.bus.queues[cluster.queue].messages

        async def say(role: str, instance: str, times: int) -> int:
            before = len(inbox)
            for number in range(times):
                kind = ("status-full", "status-delta")[number % 2]
                key = names.status_key(kind, role, instance)  # type: ignore[arg-type]
                await cluster.bus.publish(names.CONTROL, BusMessage(key=key, body=b"{}", message_id=str(number)))
            return len(inbox) - before

        assert await say("generator", "demo-generator", 1000) == 0
        assert await say(names.CONTROLLER, controller_name(), 10) == 10
        inbox.clear()
        cluster.controllers.mute = True
        asked = cluster.ask(Signal.STATUS, role="generator", instance="demo-generator")
        await cluster.settle()
        assert await say("generator", "demo-generator", 1) == 1
        inbox.clear()
        await cluster.pass_s(60)
        assert cluster.ended(asked).result is not None
        assert await say("generator", "demo-generator", 1000) == 0

    asyncio.run(act())
