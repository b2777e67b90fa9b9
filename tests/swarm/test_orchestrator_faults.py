"""Faults that an orchestrator must survive: an unreachable bus, invalid bodies, reused keys."""

from __future__ import annotations

import asyncio
import json
import stat
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farro.errors import InputError
from farro.swarm import processes, views
from farro.swarm.bus.port import BusMessage
from farro.swarm.cli.inspect import page
from farro.swarm.files import SwarmFiles
from farro.swarm.requests import CommandReceipt
from farro.swarm.wire import messages, names
from farro.swarm.wire.names import Signal
from swarm.fake_cluster import (
    PLAN,
    SWARM,
    Act,
    Delivery,
    FakeCluster,
    controller_name,
    ready,
)

ABOUT = {"role": "generator", "instance": "demo-generator"}


async def hear(cluster: FakeCluster, key: str, body: dict[str, Any]) -> None:
    assert cluster.orchestrator is not None
    delivery = Delivery(BusMessage(key=key, body=json.dumps(body).encode(), message_id=str(uuid.uuid4())))
    await cluster.orchestrator.receive(delivery)
    assert delivery.acknowledged


def test_every_command_waits_for_a_bus_that_is_away(run_in_cluster: Callable[[Act], None]) -> None:
    """No command is refused for it, and each is confirmed once when the bus is back."""

    async def act(cluster: FakeCluster) -> None:
        assert cluster.orchestrator is not None
        asked = []
        for signal, more in (
            (Signal.CREATE, {}),
            (Signal.TEMPLATE, {"args": PLAN}),
            (Signal.START, {}),
            (Signal.CONFIG, {"args": {"enabled": False}, **ABOUT}),
            (Signal.STOP, {}),
            (Signal.REMOVE, {}),
        ):
            cluster.bus.away = True
            asked.append(cluster.ask(signal, **more))  # type: ignore[arg-type]
            for _ in range(3):
                await cluster.orchestrator.run_once()
            assert cluster.ended(asked[-1]).result is None
            cluster.bus.away = False
            await cluster.settle()
        assert [cluster.ended(one).state for one in asked] == [
            "Creating", "Ready", "Running", "Stopped", "Stopped", "Removed",
        ]  # fmt: skip
        assert [len(cluster.confirmations(one)) for one in asked] == [1] * 6
        assert cluster.violations() == []

    run_in_cluster(act)


def test_a_removed_swarm_is_cleaned_up_though_the_bus_went_away(
    run_in_cluster: Callable[[Act], None],
) -> None:
    async def act(cluster: FakeCluster) -> None:
        await ready(cluster)
        cluster.controllers.mute = True
        key = str(uuid.uuid4())
        first, again = (cluster.ask(Signal.REMOVE, idempotency_key=key) for _ in range(2))
        await cluster.settle()
        shown = {
            "ts": "2026-11-16T12:00:00Z",
            "correlationId": first.correlation_id,
            "idempotencyKey": key,
            "signal": "swarm-remove",
            "scope": {"swarmId": SWARM},
            "result": "success",
            "state": "Removed",
        }
        cluster.bus.away = True
        await hear(cluster, f"ev.ready.swarm-remove.{SWARM}", shown)
        cluster.bus.away = False
        await cluster.settle()
        assert cluster.controllers.list() == []
        assert len(cluster.confirmations(again)) == 1

    run_in_cluster(act)


def test_no_message_body_breaks_the_orchestrator_or_its_readers(run_in_cluster: Callable[[Act], None]) -> None:
    async def act(cluster: FakeCluster) -> None:
        await ready(cluster)
        status: dict[str, Any] = {
            "event": "status",
            "messageId": str(uuid.uuid4()),
            "timestamp": "2026-11-16T12:00:00Z",
            "role": names.CONTROLLER,
            "instance": controller_name(),
            "swarmId": SWARM,
            "enabled": True,
            "state": "Ready",
        }
        line = {"instance": "demo-generator", "role": "generator", "state": "Healthy"}
        strange: list[Any] = [5, "x", {}, [5, "x", {}, None], [{**line, "tps": "fast", "starts": []}], [line]]
        for name in ("errors", "queues", "warnings", "components"):
            for value in strange:
                for kind in ("status-full", "status-delta"):
                    key = f"ev.{kind}.{names.CONTROLLER}.{controller_name()}"
                    await hear(cluster, key, {**status, "kind": kind, "data": {name: value}})
                    view = views.swarm(cluster.files.folder, SWARM, cluster.clock)
                    page(view, views.commands(cluster.files.folder, SWARM))
        assert [one.state for one in views.swarm(cluster.files.folder, SWARM).components] == ["Healthy"]
        cluster.controllers.mute = True
        asked = cluster.ask(Signal.START)
        await cluster.settle()
        ready_ = {
            "ts": "2026-11-16T12:00:00Z",
            "correlationId": asked.correlation_id,
            "idempotencyKey": asked.idempotency_key,
            "signal": "swarm-start",
            "scope": {"swarmId": SWARM},
            "result": "success",
        }
        for state in ("Nonsense", "Removed"):
            await hear(cluster, f"ev.ready.swarm-start.{SWARM}", {**ready_, "state": state})
        assert cluster.ended(asked).result is None
        assert [line["what"] for line in cluster.audit()][-2:] == ["ignored", "ignored"]

    run_in_cluster(act)


def test_an_unreadable_plan_affects_only_its_own_swarm(run_in_cluster: Callable[[Act], None]) -> None:
    async def act(cluster: FakeCluster) -> None:
        await ready(cluster)
        made = cluster.ask(Signal.START)
        Path(cluster.files.swarm_folder(SWARM), "plan.json").write_text("{")
        other = cluster.ask(Signal.CREATE, "other")
        await cluster.settle()
        assert cluster.ended(other).state == "Creating"
        assert cluster.ended(made).result == "error"
        assert len(cluster.confirmations(made)) == 1

    run_in_cluster(act)


def test_an_idempotency_key_reused_with_other_arguments_is_refused(run_in_cluster: Callable[[Act], None]) -> None:
    async def act(cluster: FakeCluster) -> None:
        await ready(cluster)
        key = str(uuid.uuid4())

        def config(rate: int) -> CommandReceipt:
            return cluster.ask(Signal.CONFIG, args={"rate": rate, "enabled": True}, idempotency_key=key, **ABOUT)

        config(5)
        with pytest.raises(InputError, match="with other arguments; use a new key"):  # while it waits
            config(6)
        await cluster.settle()
        with pytest.raises(InputError, match="with other arguments; use a new key"):  # when it is over
            config(6)
        again = config(5)
        await cluster.settle()
        assert cluster.ended(again).result == "success"
        assert len([one for one in cluster.bus.said if one.key.startswith("sig.config-update.")]) == 1

    run_in_cluster(act)


def test_a_command_too_large_for_a_message_is_refused_at_once(run_in_cluster: Callable[[Act], None]) -> None:
    async def act(cluster: FakeCluster) -> None:
        cluster.ask(Signal.CREATE)
        bees = [{**PLAN["bees"][0], "env": {"X": "x" * messages.MAX_BYTES}}]  # type: ignore[index,dict-item]
        with pytest.raises(InputError, match="a message may have"):
            cluster.ask(Signal.TEMPLATE, args={"id": SWARM, "bees": bees})

    run_in_cluster(act)


def test_a_copy_of_a_swarm_folder_is_not_listed(shm: Path) -> None:
    async def act() -> None:
        cluster = FakeCluster(shm)
        (shm / "swarms" / "Demo.bak").mkdir(parents=True)
        (shm / "swarms" / "Demo.bak" / "desired.json").write_text("{}")
        await cluster.begin()
        await ready(cluster)
        assert [view.id for view in views.swarms(cluster.files.folder)] == [SWARM]

    asyncio.run(act())


@pytest.mark.parametrize(("launches", "state"), [(1, "Running"), (2, "Provisioning")])
def test_the_status_of_a_process_is_not_shown_for_the_next(shm: Path, launches: int, state: str) -> None:
    """It died and was restarted a moment ago, and its controller has not reported that: it does not run yet."""

    async def act() -> None:
        cluster = FakeCluster(shm)
        await cluster.begin()
        await ready(cluster)
        shown = {
            "event": "status",
            "kind": "status-full",
            "version": "1.0",
            "messageId": str(uuid.uuid4()),
            "timestamp": "2026-11-16T12:00:00Z",
            "role": names.CONTROLLER,
            "instance": controller_name(),
            "swarmId": SWARM,
            "enabled": True,
            "state": "Running",
            "data": {"components": [{**ABOUT, "state": "Running", "enabled": True, "starts": 1}]},
        }
        await hear(cluster, f"ev.status-full.{names.CONTROLLER}.{controller_name()}", shown)
        cluster.controllers.alive["demo-generator"] = True
        cluster.controllers.launches = launches
        (line,) = processes.component_processes(cluster.files.folder, cluster.controllers, cluster.clock)
        assert (line.pid, line.state) == (1, state)

    asyncio.run(act())


def test_the_swarms_folder_is_private_and_keeps_its_permissions(shm: Path) -> None:
    """Plans may hold passwords in `env`."""
    files = SwarmFiles(str(shm / "swarms"))
    files.make()
    assert stat.S_IMODE((shm / "swarms").stat().st_mode) == 0o700
    (shm / "swarms").chmod(0o750)
    files.make()
    assert stat.S_IMODE((shm / "swarms").stat().st_mode) == 0o750


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_setting_the_clock_ends_no_command(run_in_cluster: Callable[[Act], None], seconds: float) -> None:
    async def act(cluster: FakeCluster) -> None:
        assert cluster.orchestrator is not None
        ends = []
        for signal, args in ((Signal.CREATE, None), (Signal.TEMPLATE, PLAN), (Signal.START, None)):
            asked = cluster.ask(signal, args=args)
            await cluster.orchestrator.run_once()
            cluster.clock.jump(seconds)
            await cluster.settle()
            ends.append(cluster.ended(asked).state)
        assert ends == ["Creating", "Ready", "Running"]
        assert cluster.violations() == []

    run_in_cluster(act)
