"""What an orchestrator must live through: a bus that is away, bodies that are not what they say, keys used twice."""

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
from farro.host.clock import ManualClock
from farro.swarm import own_swarm, requests
from farro.swarm.bus.port import Message
from farro.swarm.cli.tables import page
from farro.swarm.files import Place
from farro.swarm.wire import messages, names
from farro.swarm.wire.names import Signal
from swarm.fake_cluster import PLAN, SWARM, Act, Court, Delivery, MemoryBus, Puppets, marshal, ready

ABOUT = {"role": "generator", "instance": "demo-generator"}


async def hear(court: Court, key: str, body: dict[str, Any]) -> None:
    assert court.orchestrator is not None
    delivery = Delivery(Message(key=key, body=json.dumps(body).encode(), message_id=str(uuid.uuid4())))
    await court.orchestrator.hear(delivery)
    assert delivery.acknowledged


def test_every_command_waits_for_a_bus_that_is_away(court: Callable[[Act], None]) -> None:
    """Not one is refused for it, and each is confirmed once when the bus is back."""

    async def act(court: Court) -> None:
        assert court.orchestrator is not None
        asked = []
        for signal, more in (
            (Signal.CREATE, {}),
            (Signal.TEMPLATE, {"args": PLAN}),
            (Signal.START, {}),
            (Signal.CONFIG, {"args": {"enabled": False}, **ABOUT}),
            (Signal.STOP, {}),
            (Signal.REMOVE, {}),
        ):
            court.bus.away = True
            asked.append(court.ask(signal, **more))  # type: ignore[arg-type]
            for _ in range(3):
                await court.orchestrator.turn()
            assert court.ended(asked[-1]).result is None
            court.bus.away = False
            await court.settle()
        assert [court.ended(one).state for one in asked] == [
            "Creating", "Ready", "Running", "Stopped", "Stopped", "Removed",
        ]  # fmt: skip
        assert [len(court.confirmations(one)) for one in asked] == [1] * 6
        assert court.violations() == []

    court(act)


def test_a_removed_swarm_is_cleaned_though_the_bus_went_away_as_it_was_told(court: Callable[[Act], None]) -> None:
    async def act(court: Court) -> None:
        await ready(court)
        court.puppets.mute = True
        key = str(uuid.uuid4())
        first, again = (court.ask(Signal.REMOVE, idempotency_key=key) for _ in range(2))
        await court.settle()
        told = {
            "ts": "2026-11-16T12:00:00Z",
            "correlationId": first.correlation_id,
            "idempotencyKey": key,
            "signal": "swarm-remove",
            "scope": {"swarmId": SWARM},
            "result": "success",
            "state": "Removed",
        }
        court.bus.away = True
        await hear(court, f"ev.ready.swarm-remove.{SWARM}", told)
        court.bus.away = False
        await court.settle()
        assert court.puppets.list() == []
        assert len(court.confirmations(again)) == 1

    court(act)


def test_no_body_ends_the_orchestrator_or_whoever_reads_of_it(court: Callable[[Act], None]) -> None:
    async def act(court: Court) -> None:
        await ready(court)
        status: dict[str, Any] = {
            "event": "status",
            "messageId": str(uuid.uuid4()),
            "timestamp": "2026-11-16T12:00:00Z",
            "role": names.CONTROLLER,
            "instance": marshal(),
            "swarmId": SWARM,
            "enabled": True,
            "state": "Ready",
        }
        line = {"instance": "demo-generator", "role": "generator", "state": "Healthy"}
        strange: list[Any] = [5, "x", {}, [5, "x", {}, None], [{**line, "tps": "fast", "starts": []}], [line]]
        for name in ("errors", "queues", "warnings", "components"):
            for value in strange:
                for kind in ("status-full", "status-delta"):
                    key = f"ev.{kind}.{names.CONTROLLER}.{marshal()}"
                    await hear(court, key, {**status, "kind": kind, "data": {name: value}})
                    view = requests.look(court.place.folder, SWARM, court.clock)
                    page(view, requests.commands(court.place.folder, SWARM))
        assert [one.state for one in requests.look(court.place.folder, SWARM).components] == ["Healthy"]
        court.puppets.mute = True
        asked = court.ask(Signal.START)
        await court.settle()
        ready_ = {
            "ts": "2026-11-16T12:00:00Z",
            "correlationId": asked.correlation_id,
            "idempotencyKey": asked.idempotency_key,
            "signal": "swarm-start",
            "scope": {"swarmId": SWARM},
            "result": "success",
        }
        for state in ("Nonsense", "Removed"):
            await hear(court, f"ev.ready.swarm-start.{SWARM}", {**ready_, "state": state})
        assert court.ended(asked).result is None
        assert [line["what"] for line in court.audit()][-2:] == ["ignored", "ignored"]

    court(act)


def test_a_plan_that_cannot_be_read_any_more_stops_its_swarm_alone(court: Callable[[Act], None]) -> None:
    async def act(court: Court) -> None:
        await ready(court)
        made = court.ask(Signal.START)
        Path(court.place.of(SWARM), "plan.json").write_text("{")
        other = court.ask(Signal.CREATE, "other")
        await court.settle()
        assert court.ended(other).state == "Creating"
        assert court.ended(made).result == "error"
        assert len(court.confirmations(made)) == 1

    court(act)


def test_a_key_that_is_used_again_for_something_else_is_refused(court: Callable[[Act], None]) -> None:
    async def act(court: Court) -> None:
        await ready(court)
        key = str(uuid.uuid4())

        def config(rate: int) -> requests.Asked:
            return court.ask(Signal.CONFIG, args={"rate": rate, "enabled": True}, idempotency_key=key, **ABOUT)

        config(5)
        with pytest.raises(InputError, match="with other arguments; take a new key"):  # while it waits
            config(6)
        await court.settle()
        with pytest.raises(InputError, match="with other arguments; take a new key"):  # when it is over
            config(6)
        again = config(5)
        await court.settle()
        assert court.ended(again).result == "success"
        assert len([one for one in court.bus.said if one.key.startswith("sig.config-update.")]) == 1

    court(act)


def test_a_command_that_no_message_can_hold_is_refused_at_once(court: Callable[[Act], None]) -> None:
    async def act(court: Court) -> None:
        court.ask(Signal.CREATE)
        bees = [{**PLAN["bees"][0], "env": {"X": "x" * messages.MAX_BYTES}}]  # type: ignore[index,dict-item]
        with pytest.raises(InputError, match="a message may have"):
            court.ask(Signal.TEMPLATE, args={"id": SWARM, "bees": bees})

    court(act)


def test_a_copy_of_a_swarms_folder_is_no_swarm(shm: Path) -> None:
    async def act() -> None:
        court = Court(shm)
        (shm / "swarms" / "Demo.bak").mkdir(parents=True)
        (shm / "swarms" / "Demo.bak" / "desired.json").write_text("{}")
        await court.begin()
        await ready(court)
        assert [view.id for view in requests.list_(court.place.folder)] == [SWARM]

    asyncio.run(act())


@pytest.mark.parametrize(("launches", "state"), [(1, "Running"), (2, "Provisioning")])
def test_what_was_told_of_a_process_is_not_told_of_the_next(shm: Path, launches: int, state: str) -> None:
    """It died and was started again a moment ago, and its controller has not said so: it does not run yet."""

    async def act() -> None:
        court = Court(shm)
        await court.begin()
        await ready(court)
        told = {
            "event": "status",
            "kind": "status-full",
            "version": "1.0",
            "messageId": str(uuid.uuid4()),
            "timestamp": "2026-11-16T12:00:00Z",
            "role": names.CONTROLLER,
            "instance": marshal(),
            "swarmId": SWARM,
            "enabled": True,
            "state": "Running",
            "data": {"components": [{**ABOUT, "state": "Running", "enabled": True, "starts": 1}]},
        }
        await hear(court, f"ev.status-full.{names.CONTROLLER}.{marshal()}", told)
        court.puppets.alive["demo-generator"] = True
        court.puppets.launches = launches
        (line,) = own_swarm.lines(court.place.folder, court.puppets, court.clock)
        assert (line.pid, line.state) == (1, state)

    asyncio.run(act())


def test_who_waits_for_a_broker_that_is_away_is_told_so(shm: Path) -> None:
    (shm / "orchestrator").mkdir()
    (shm / "orchestrator" / "orchestrator.log").write_text(
        'started\n{"level": "error", "message": "no RabbitMQ answers at broker:5672"}\n'
    )
    told: list[str] = []
    clock = ManualClock()
    steering = own_swarm.Steering(
        place=str(shm),
        runtime=Puppets(MemoryBus(), clock),
        clock=clock,
        ensure=lambda: None,
        tell=told.append,
        over=lambda: clock.monotonic_s() - began_s > 100,
    )
    began_s = clock.monotonic_s()
    with pytest.raises(own_swarm.Left):
        steering._end_of(str(uuid.uuid4()))
    assert told == ["still waiting; the orchestrator says: no RabbitMQ answers at broker:5672"] * 5


def test_the_folder_of_swarms_is_its_owners_and_stays_as_he_opens_it(shm: Path) -> None:
    """Plans may hold passwords in `env`."""
    place = Place(str(shm / "swarms"))
    place.make()
    assert stat.S_IMODE((shm / "swarms").stat().st_mode) == 0o700
    (shm / "swarms").chmod(0o750)
    place.make()
    assert stat.S_IMODE((shm / "swarms").stat().st_mode) == 0o750


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_a_clock_that_is_set_changes_no_end(court: Callable[[Act], None], seconds: float) -> None:
    async def act(court: Court) -> None:
        assert court.orchestrator is not None
        ends = []
        for signal, args in ((Signal.CREATE, None), (Signal.TEMPLATE, PLAN), (Signal.START, None)):
            asked = court.ask(signal, args=args)
            await court.orchestrator.turn()
            court.clock.jump(seconds)
            await court.settle()
            ends.append(court.ended(asked).state)
        assert ends == ["Creating", "Ready", "Running"]
        assert court.violations() == []

    court(act)
