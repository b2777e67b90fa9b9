"""A changed plan: components that left it are ended, and nothing of the old plan is left on the bus."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from farro.errors import BusTrouble
from farro.host.clock import ManualClock
from farro.swarm.bus.port import BusMessage
from farro.swarm.controller import actions
from farro.swarm.controller.actions import ComponentActions, ControllerContext
from farro.swarm.controller.confirmations import Confirmations
from farro.swarm.controller.observed import ComponentObserver
from farro.swarm.controller.state import ControllerState
from farro.swarm.ledger import CommandLedger, LedgerEntry
from farro.swarm.lifecycle import SwarmState
from farro.swarm.publish import ControlPublisher, SwarmAudit
from farro.swarm.wire import names
from farro.worker.runtime import Stopped
from stage import Crash
from swarm.fake_cluster import PLAN, SWARM, FakeControllers, MemoryBus
from swarm.swarm_under_test import now

_TWO: dict[str, Any] = {
    "id": SWARM,
    "bees": [
        {"role": "generator", "command": ["true"], "work": {"out": "raw"}, "instances": 2},
        {"role": "sink", "command": ["true"], "work": {"in": "raw", "out": "late"}},
    ],
}


class FailingRuntime(FakeControllers):
    """A runtime that notes what was ended, and may fail to end it."""

    def __init__(self, bus: MemoryBus, error: type[Exception] | None) -> None:
        super().__init__(bus, ManualClock())
        self.error_of_stop = error
        self.ended: list[str] = []

    def stop(self, names: Sequence[str], grace_s: float = 10.0) -> Sequence[Stopped]:
        if self.error_of_stop is not None:
            raise self.error_of_stop("here")
        self.ended += names
        return []


def _life(
    folder: Path, bus: MemoryBus, error: type[Exception] | None = None
) -> tuple[ComponentActions, ControllerState, FailingRuntime]:
    context = ControllerContext(
        swarm=SWARM, instance="demo-marshal", bus_address="", folder=str(folder), cwd="/", env={}
    )
    state, runtime = ControllerState.load(f"{folder}/controller.json", durable=False), FailingRuntime(bus, error)
    publisher, audit = ControlPublisher(bus, now), SwarmAudit(str(folder), "controller", now, lambda *_: None)
    confirmations = Confirmations(
        CommandLedger(f"{folder}/commands.json", durable=False), publisher, audit, str(folder)
    )
    made = ComponentActions(context, bus, runtime, state, ComponentObserver(runtime), confirmations, publisher, audit)
    return made, state, runtime


def _template(plan: dict[str, Any]) -> LedgerEntry:
    return LedgerEntry(
        key="k", signal="swarm-template", swarm=SWARM, role=None, instance=None, correlations=["c"], args=plan
    )


@pytest.mark.parametrize("how", [Crash, BusTrouble])
def test_components_that_left_the_plan_are_ended_after_a_crash(shm: Path, how: type[Exception]) -> None:
    """The new plan is written, and then nothing more: the next controller still knows which components must go."""

    async def act() -> None:
        bus = MemoryBus()
        applying, _, _ = _life(shm, bus)
        await applying.apply(_template(_TWO))
        for role, instance in (("sink", "demo-sink"), ("generator", "demo-generator-2")):
            await bus.declare(names.control_queue(role, instance))
        dying, _, _ = _life(shm, bus, how)
        with pytest.raises(how):
            await dying.apply(_template(PLAN))
        next_one, state, runtime = _life(shm, bus)
        await next_one.apply(_template(PLAN))
        assert runtime.ended == ["demo-generator-1", "demo-generator-2", "demo-sink"]
        assert not {names.control_queue("sink", "demo-sink")} & set(bus.queues)  # else it would never be deleted
        bound = {one.key for one in bus.queues[names.control_queue(names.CONTROLLER, "demo-marshal")].bindings}
        assert bound == set(names.component_keys("generator", "demo-generator"))
        assert ControllerState.load(state.path, durable=False).leaving == {}

    asyncio.run(act())


def test_work_queues_of_earlier_plans_are_deleted_with_the_swarm(shm: Path) -> None:
    async def act() -> None:
        bus = MemoryBus()
        applying, _, _ = _life(shm, bus)
        await applying.apply(_template(_TWO))
        late = names.work_queue(SWARM, "late")
        bus.queues[late].messages.append(BusMessage(key="late", body=b"1", message_id="1"))
        await applying.apply(_template(PLAN))
        assert len(bus.queues[late].messages) == 1  # a template deletes no work
        _, state, _ = _life(shm, bus)
        assert state.plan is not None
        assert state.former == [late]
        await actions.delete_queues(bus, state.plan, state.former)
        assert set(bus.queues) == {names.control_queue(names.CONTROLLER, "demo-marshal")}

    asyncio.run(act())


@pytest.mark.parametrize("left", [None, b"", b'{"plan": 5}'])
def test_a_lost_controller_state_is_restored_from_the_orchestrator(shm: Path, left: bytes | None) -> None:
    path = shm / "controller.json"
    if left is not None:
        path.write_bytes(left)
    (shm / "plan.json").write_text(json.dumps(PLAN))
    (shm / "desired.json").write_text(json.dumps({"swarm": SWARM, "state": "Running", "enabled": True}))
    state = ControllerState.load(str(path), durable=False)
    assert state.plan is not None
    assert ([one.instance for one in state.plan.members()], state.state) == (["demo-generator"], SwarmState.RUNNING)
    assert state.shall_work("demo-generator")
    assert left is None or (shm / "controller.json.damaged").read_bytes() == left
