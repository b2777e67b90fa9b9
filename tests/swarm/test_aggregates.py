"""What goes up from a swarm: its controller's word, when something changed and every ten seconds, and no more."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from farro.host.clock import ManualClock
from farro.swarm import status
from farro.swarm.bus.port import Message
from farro.swarm.controller import controller as controllers
from farro.swarm.controller.actions import Ground
from farro.swarm.controller.controller import Controller
from farro.swarm.lifecycle import SwarmState
from farro.swarm.wire import names
from farro.swarm.wire.names import Signal
from farro.worker.runtime import Stopped
from swarm.fake_cluster import PLAN, SWARM, Court, MemoryBus, Puppets, marshal
from swarm.hive import now


def made(folder: Path, bus: MemoryBus, runtime: Puppets) -> Controller:
    ground = Ground(swarm=SWARM, instance=marshal(), bus_address="", folder=str(folder), cwd="/", env={})
    return Controller(ground, bus, runtime, log=lambda *_: None, now=now, durable=False)


def aggregates(bus: MemoryBus) -> list[tuple[str, str | None]]:
    """Kind and state of each, in order."""
    told = [json.loads(one.body) for one in bus.said if one.key.startswith("ev.status-")]
    return [(one["kind"], one.get("state")) for one in told]


def test_an_aggregate_is_told_on_change_and_every_ten_seconds(shm: Path) -> None:
    """At every tenth of a second of five minutes: never more than ten between two, never one without a reason."""

    async def act() -> None:
        bus = MemoryBus()
        controller = made(shm, bus, Puppets(bus, ManualClock()))
        told: list[float] = []
        changes = {73.4: SwarmState.READY, 73.5: SwarmState.STARTING, 200.0: SwarmState.RUNNING}
        for tick in range(3000):
            now_s, before = tick / 10, len(bus.said)
            if now_s in changes:
                controller._kept.change(state=changes[now_s])
            await controller._say_if_changed(now_s)
            if len(bus.said) > before:
                told.append(now_s)
        beats = [*range(0, 71, 10), 73.4, 73.5, *(83.5 + n for n in range(0, 111, 10)), 200.0, *range(210, 291, 10)]
        assert told == beats
        kinds = [kind for kind, _ in aggregates(bus)]
        deltas = [at for at, kind in zip(told, kinds, strict=True) if kind == "status-delta"]
        assert deltas == [0, 73.4, 73.5, 200.0]
        assert [state for kind, state in aggregates(bus) if kind == "status-delta"][1:] == [
            "Ready", "Starting", "Running",
        ]  # fmt: skip

    asyncio.run(act())


class Slow(Puppets):
    """Whose components end when they are let."""

    def __init__(self, bus: MemoryBus) -> None:
        super().__init__(bus, ManualClock())
        self.let = threading.Event()

    def stop(self, names: Sequence[str], grace_s: float = 10.0) -> Sequence[Stopped]:
        self.let.wait(60)
        return super().stop(names, grace_s)


def test_the_heart_beats_while_a_turn_waits_for_a_component_to_end(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(status, "HEARTBEAT_S", 0.01)

    async def act() -> None:
        bus = MemoryBus()
        runtime = Slow(bus)
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


def test_an_orchestrator_hears_aggregates_and_no_component(shm: Path) -> None:
    """Counted at its queue: of a thousand words of components none, of their controller's each; of a component that
    somebody asks one, and none when it has answered."""

    async def act() -> None:
        court = Court(shm)
        await court.begin()
        for signal, args in ((Signal.CREATE, None), (Signal.TEMPLATE, PLAN), (Signal.START, None)):
            court.ask(signal, args=args)
        await court.settle()
        inbox = court.bus.queues[court.queue].messages

        async def say(role: str, instance: str, times: int) -> int:
            before = len(inbox)
            for number in range(times):
                kind = ("status-full", "status-delta")[number % 2]
                key = names.status_key(kind, role, instance)  # type: ignore[arg-type]
                await court.bus.publish(names.CONTROL, Message(key=key, body=b"{}", message_id=str(number)))
            return len(inbox) - before

        assert await say("generator", "demo-generator", 1000) == 0
        assert await say(names.CONTROLLER, marshal(), 10) == 10
        inbox.clear()
        court.puppets.mute = True
        asked = court.ask(Signal.STATUS, role="generator", instance="demo-generator")
        await court.settle()
        assert await say("generator", "demo-generator", 1) == 1
        inbox.clear()
        await court.pass_s(60)
        assert court.ended(asked).result is not None
        assert await say("generator", "demo-generator", 1000) == 0

    asyncio.run(act())
