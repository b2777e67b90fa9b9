"""Confirmations of a controller, its reported errors, and the components that changed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from farro.errors import BusTrouble
from farro.host.clock import SystemClock
from farro.swarm import processes
from farro.swarm.bus.port import BusMessage
from farro.swarm.controller import superseded
from farro.swarm.controller.confirmations import Confirmations
from farro.swarm.controller.observed import ComponentObserver
from farro.swarm.controller.state import ControllerState
from farro.swarm.controller.summary import Summary
from farro.swarm.ledger import CommandEnd, CommandLedger
from farro.swarm.plan import Member
from farro.swarm.publish import ControlPublisher, SwarmAudit
from farro.swarm.wire.messages import ControlSignal
from farro.swarm.wire.names import Signal
from farro.worker.runtime import Runtime
from swarm.fake_cluster import MemoryBus

NOW = "2026-11-16T12:00:10.000Z"


def signal(name: str = "swarm-start", **more: Any) -> ControlSignal:
    fields: dict[str, Any] = {"correlation_id": str(uuid.uuid4()), "idempotency_key": str(uuid.uuid4()), **more}
    return ControlSignal(signal=name, swarm_id="demo", **fields)  # type: ignore[arg-type]


def answers(folder: Path, bus: MemoryBus) -> tuple[Confirmations, CommandLedger]:
    ledger = CommandLedger(f"{folder}/commands.json", durable=False)
    audit = SwarmAudit(str(folder), "controller", lambda: NOW, lambda *_: None)
    return Confirmations(ledger, ControlPublisher(bus, lambda: NOW), audit, str(folder)), ledger


class SlowBus(MemoryBus):
    """A bus that lets other tasks run before it takes a message."""

    async def publish(self, exchange: str, message: BusMessage) -> None:
        await asyncio.sleep(0)
        await super().publish(exchange, message)


class FailingBus(MemoryBus):
    """A bus that does not take the confirmation of one signal."""

    refused: str | None = None

    async def publish(self, exchange: str, message: BusMessage) -> None:
        if self.refused is not None and json.loads(message.body)["correlationId"] == self.refused:
            raise BusTrouble("as the test wants")
        await super().publish(exchange, message)


def keys(bus: MemoryBus) -> list[str]:
    return [one.key for one in bus.said]


def test_a_command_that_was_given_up_is_never_confirmed(shm: Path) -> None:
    async def act() -> None:
        bus = MemoryBus()
        made, ledger = answers(shm, bus)
        first, second, third = signal(), signal("swarm-stop"), signal("swarm-template")
        for one in (first, second):
            assert await made.receive(one)
        (shm / "given-up.json").write_text(json.dumps([first.correlation_id, third.correlation_id]))
        assert made.end_given_up() == [Signal.START]  # it ends without a confirmation
        assert await made.receive(third) is False  # one that arrives late is not begun
        assert [entry.signal for entry in ledger.open()] == ["swarm-stop"]
        await made.end_all([(ledger.open()[0], CommandEnd(good=True, state="Stopped"))])
        assert keys(bus) == ["ev.ready.swarm-stop.demo"]
        later, _ = answers(shm, bus)  # nor by the next controller
        assert later.end_given_up() == []
        assert keys(bus) == ["ev.ready.swarm-stop.demo"]

    asyncio.run(act())


def test_a_signal_that_cannot_be_read_is_never_begun(shm: Path) -> None:
    """A turn that runs while another signal is confirmed finds no command of it to carry out."""

    async def act() -> None:
        bus = SlowBus()
        made, ledger = answers(shm, bus)
        found: list[str] = []

        async def turns() -> None:
            while True:
                found.extend(entry.signal for entry in ledger.open())
                await asyncio.sleep(0)

        turning = asyncio.create_task(turns())
        await asyncio.gather(*(made.refuse(signal(), "BAD_SIGNAL", "it is broken") for _ in range(3)))
        turning.cancel()
        assert found == []
        assert keys(bus) == ["ev.error.swarm-start.demo"] * 3

    asyncio.run(act())


def test_an_owed_confirmation_is_not_sent_after_its_command_was_given_up(shm: Path) -> None:
    async def act() -> None:
        bus = MemoryBus()
        made, ledger = answers(shm, bus)
        first_signal = signal()
        await made.receive(first_signal)
        ledger.end(ledger.open()[0], CommandEnd(good=True, state="Running"), NOW)  # and died before it was confirmed
        (shm / "given-up.json").write_text(json.dumps([first_signal.correlation_id]))
        later, book = answers(shm, bus)
        await later.confirm()
        assert keys(bus) == []
        assert book.owed() == []

    asyncio.run(act())


def test_a_redelivered_signal_is_a_duplicate_and_is_confirmed_once(shm: Path) -> None:
    async def act() -> None:
        bus = MemoryBus()
        made, ledger = answers(shm, bus)
        first_signal = signal()
        await made.receive(first_signal)
        await made.receive(first_signal)
        duplicate, ready = "ev.duplicate.swarm-start.demo", "ev.ready.swarm-start.demo"
        assert keys(bus) == [duplicate]
        await made.end_all([(ledger.open()[0], CommandEnd(good=True, state="Running"))])
        await made.receive(first_signal)
        assert keys(bus) == [duplicate, ready, duplicate]
        await made.receive(replace(first_signal, correlation_id=str(uuid.uuid4())))
        assert keys(bus) == [duplicate, ready, duplicate, duplicate, ready]

    asyncio.run(act())


def test_two_tasks_that_confirm_at_once_send_one_confirmation(shm: Path) -> None:
    """A turn confirms what is owed while a signal is received: looking and sending is one step."""

    async def act() -> None:
        bus = SlowBus()
        made, ledger = answers(shm, bus)
        await made.receive(signal())
        ledger.end(ledger.open()[0], CommandEnd(good=True, state="Running"), NOW)
        await asyncio.gather(made.confirm(), made.confirm())
        assert keys(bus) == ["ev.ready.swarm-start.demo"]

    asyncio.run(act())


def test_each_signal_of_a_command_is_confirmed_once_also_after_trouble_with_the_bus(shm: Path) -> None:
    """A confirmation that the bus did not take is sent again, and no other."""

    async def act() -> None:
        bus = FailingBus()
        made, ledger = answers(shm, bus)
        first_signal = signal()
        second = replace(first_signal, correlation_id=str(uuid.uuid4()))
        for one in (first_signal, second):
            await made.receive(one)
        bus.refused = second.correlation_id
        with pytest.raises(BusTrouble):
            await made.end_all([(ledger.open()[0], CommandEnd(good=True, state="Running"))])
        bus.refused = None
        await made.confirm()
        await made.confirm()
        ready = [json.loads(one.body)["correlationId"] for one in bus.said if one.key.startswith("ev.ready.")]
        assert ready == [first_signal.correlation_id, second.correlation_id]

    asyncio.run(act())


def test_the_time_of_a_command_goes_on_with_the_next_controller(shm: Path) -> None:
    async def act() -> None:
        made, ledger = answers(shm, MemoryBus())
        await made.receive(signal())
        (entry,) = ledger.open()
        assert made.spent_s(entry) == 0.0
        ledger.start(entry, "2026-11-16T12:00:00.000Z")
        later, book = answers(shm, MemoryBus())
        assert later.spent_s(book.open()[0]) == 10.0

    asyncio.run(act())


def test_a_stop_supersedes_a_start_but_not_a_stop(shm: Path) -> None:
    async def act() -> None:
        made, ledger = answers(shm, MemoryBus())
        for name in ("swarm-start", "swarm-stop", "swarm-remove"):
            await made.receive(signal(name))
        commands = ledger.open()
        assert superseded(commands)
        assert not superseded(commands[1:])
        assert not superseded(commands[:1])

    asyncio.run(act())


def test_a_problem_of_a_component_is_reported_once_and_a_delta_has_what_changed() -> None:
    observer = ComponentObserver(cast(Runtime, None))
    summary = Summary(observer, lambda: NOW, lambda *what, **more: None)
    member = Member(role="sink", instance="demo-sink", bee=0)
    observer.put("demo-sink", replace(observer.of("demo-sink"), launched=True, alive=True, launches=1))
    assert [one["instance"] for one in summary.changed(summary.lines([member], 1.0))] == ["demo-sink"]
    assert summary.changed(summary.lines([member], 2.0)) == []
    observer.put("demo-sink", replace(observer.of("demo-sink"), launches=2, starts=1, end="by signal 9", end_s=2.5))
    summary.lines([member], 2.6)
    observer.put("demo-sink", replace(observer.of("demo-sink"), launches=3, end_log="no licence"))
    line = summary.changed(summary.lines([member], 3.0))[0]
    end = {"at": "2026-11-16T12:00:09.900Z", "how": "by signal 9", "words": "no licence"}
    assert (line["starts"], line["lastEnd"]) == (3, end)
    assert summary.lines([member], 60.0)[0]["lastEnd"] == line["lastEnd"]  # however late it is reported again
    observer.put("demo-sink", replace(observer.of("demo-sink"), failure="ended, for good"))
    for _ in range(3):
        summary.lines([member], 4.0)
    summary.error("swarm-start: too slow", "c")
    assert [(one.get("instance"), one["reason"], one.get("correlationId")) for one in summary.errors()] == [
        ("demo-sink", "ended by signal 9, and was started again (3 starts); its log ended with: no licence", None),
        ("demo-sink", "ended, for good", None),
        (None, "swarm-start: too slow", "c"),
    ]


def test_config_updates_survive_a_restart_of_the_component(shm: Path) -> None:
    state = ControllerState.load(f"{shm}/controller.json", durable=False)
    state.update("demo-a", True, {"rate": 5})
    state.update("demo-a", True, {"size": 2})
    again = ControllerState.load(f"{shm}/controller.json", durable=False)
    assert again.config_of("demo-a") == {"rate": 5, "size": 2}
    assert again.config_of("demo-b") == {}


HOLDER = """
import subprocess, sys, time
from farro.swarm import processes
from farro.host.clock import SystemClock
lease = processes.hold_lease(sys.argv[1], "a holder", SystemClock())
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_killing_a_controller_leaves_its_components_running(shm: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(shm)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    child = psutil.Process(int(holder.stdout.readline()))
    try:
        assert processes.kill_holder(str(shm), SystemClock())
        assert holder.wait(60) == -9
        assert child.is_running()
        processes.hold_lease(str(shm), "the next", SystemClock()).drop()
    finally:
        child.kill()
        holder.kill()
        holder.wait(60)
        holder.stdout.close()
