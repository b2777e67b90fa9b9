"""A plan that changes, and what is kept of it: nobody who left it goes on, and nothing of it is left on the bus."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from farro.errors import BusTrouble
from farro.host.clock import ManualClock
from farro.swarm.bus.port import Message
from farro.swarm.controller import queues
from farro.swarm.controller.actions import Ground
from farro.swarm.controller.apply_plan import Applying
from farro.swarm.controller.observed import Watch
from farro.swarm.controller.state import Kept
from farro.swarm.ledger import Entry
from farro.swarm.lifecycle import SwarmState
from farro.swarm.publish import Voice
from farro.swarm.wire import names
from farro.worker.runtime import Stopped
from stage import Crash
from swarm.fake_cluster import PLAN, SWARM, MemoryBus, Puppets
from swarm.hive import now

_TWO: dict[str, Any] = {
    "id": SWARM,
    "bees": [
        {"role": "generator", "command": ["true"], "work": {"out": "raw"}, "instances": 2},
        {"role": "sink", "command": ["true"], "work": {"in": "raw", "out": "late"}},
    ],
}


class Mortal(Puppets):
    """A runtime that notes who was ended, and may fail to."""

    def __init__(self, bus: MemoryBus, error: type[Exception] | None) -> None:
        super().__init__(bus, ManualClock())
        self.error_of_stop = error
        self.ended: list[str] = []

    def stop(self, names: Sequence[str], grace_s: float = 10.0) -> Sequence[Stopped]:
        if self.error_of_stop is not None:
            raise self.error_of_stop("here")
        self.ended += names
        return []


def _life(folder: Path, bus: MemoryBus, error: type[Exception] | None = None) -> tuple[Applying, Kept, Mortal]:
    ground = Ground(swarm=SWARM, instance="demo-marshal", bus_address="", folder=str(folder), cwd="/", env={})
    kept, runtime = Kept.load(f"{folder}/controller.json", durable=False), Mortal(bus, error)
    return Applying(ground, bus, runtime, kept, Watch(runtime), Voice(bus, now)), kept, runtime


def _template(plan: dict[str, Any]) -> Entry:
    return Entry(key="k", signal="swarm-template", swarm=SWARM, role=None, instance=None, correlations=["c"], args=plan)


@pytest.mark.parametrize("how", [Crash, BusTrouble])
def test_who_left_the_plan_is_ended_though_the_controller_dies_in_between(shm: Path, how: type[Exception]) -> None:
    """The new plan is written, and then nothing more: whoever goes on still knows who must go."""

    async def act() -> None:
        bus = MemoryBus()
        applying, _, _ = _life(shm, bus)
        await applying.apply(_template(_TWO))
        for role, instance in (("sink", "demo-sink"), ("generator", "demo-generator-2")):
            await bus.declare(names.control_queue(role, instance))
        dying, _, _ = _life(shm, bus, how)
        with pytest.raises(how):
            await dying.apply(_template(PLAN))
        next_one, kept, runtime = _life(shm, bus)
        await next_one.apply(_template(PLAN))
        assert runtime.ended == ["demo-generator-1", "demo-generator-2", "demo-sink"]
        assert not {names.control_queue("sink", "demo-sink")} & set(bus.queues)  # nobody would ever delete it
        bound = {one.key for one in bus.queues[names.control_queue(names.CONTROLLER, "demo-marshal")].bindings}
        assert bound == set(names.component_keys("generator", "demo-generator"))
        assert Kept.load(kept.path, durable=False).leaving == {}

    asyncio.run(act())


def test_work_queues_of_a_plan_before_are_kept_and_go_with_the_swarm(shm: Path) -> None:
    async def act() -> None:
        bus = MemoryBus()
        applying, _, _ = _life(shm, bus)
        await applying.apply(_template(_TWO))
        late = names.work_queue(SWARM, "late")
        bus.queues[late].messages.append(Message(key="late", body=b"1", message_id="1"))
        await applying.apply(_template(PLAN))
        assert len(bus.queues[late].messages) == 1  # a template deletes no work
        _, kept, _ = _life(shm, bus)
        assert kept.plan is not None
        assert kept.former == [late]
        await queues.drop(bus, kept.plan, kept.former)
        assert set(bus.queues) == {names.control_queue(names.CONTROLLER, "demo-marshal")}

    asyncio.run(act())


@pytest.mark.parametrize("left", [None, b"", b'{"plan": 5}'])
def test_what_a_controller_lost_its_orchestrator_knows(shm: Path, left: bytes | None) -> None:
    path = shm / "controller.json"
    if left is not None:
        path.write_bytes(left)
    (shm / "plan.json").write_text(json.dumps(PLAN))
    (shm / "desired.json").write_text(json.dumps({"swarm": SWARM, "state": "Running", "enabled": True}))
    kept = Kept.load(str(path), durable=False)
    assert kept.plan is not None
    assert ([one.instance for one in kept.plan.members()], kept.state) == (["demo-generator"], SwarmState.RUNNING)
    assert kept.wants("demo-generator")
    assert left is None or (shm / "controller.json.damaged").read_bytes() == left
