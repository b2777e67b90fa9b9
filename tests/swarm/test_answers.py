"""What a controller says: confirmations that were not given up, errors once each, components that changed."""

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

from farro.host.clock import SystemClock
from farro.swarm import single_process
from farro.swarm.audit import Trail
from farro.swarm.controller.confirm import Answers, superseded
from farro.swarm.controller.observed import Watch
from farro.swarm.controller.state import GivenUp, Kept
from farro.swarm.controller.summary import Summary
from farro.swarm.ledger import CommandLedger, End
from farro.swarm.plan import Member
from farro.swarm.publish import Voice
from farro.swarm.wire.messages import ControlSignal
from farro.swarm.wire.names import Signal
from farro.worker.runtime import Runtime
from swarm.fake_cluster import MemoryBus

NOW = "2026-11-16T12:00:10.000Z"


def signal(name: str = "swarm-start", **more: Any) -> ControlSignal:
    told: dict[str, Any] = {"correlation_id": str(uuid.uuid4()), "idempotency_key": str(uuid.uuid4()), **more}
    return ControlSignal(signal=name, swarm_id="demo", **told)  # type: ignore[arg-type]


def answers(folder: Path, bus: MemoryBus) -> tuple[Answers, CommandLedger]:
    ledger = CommandLedger(f"{folder}/commands.json", durable=False)
    trail = Trail(str(folder), "controller", lambda: NOW, lambda *_: None)
    return Answers(ledger, Voice(bus, lambda: NOW), trail, GivenUp(f"{folder}/given-up.json")), ledger


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
        assert made.forget() == [Signal.START]  # it ends, and nothing is said
        assert await made.receive(third) is False  # one that comes late is not begun
        assert [entry.signal for entry in ledger.open()] == ["swarm-stop"]
        await made.end(ledger.open()[0], End(good=True, state="Stopped"))
        assert keys(bus) == ["ev.ready.swarm-stop.demo"]
        later, _ = answers(shm, bus)  # … nor by a controller that comes after it
        assert later.forget() == []
        assert keys(bus) == ["ev.ready.swarm-stop.demo"]

    asyncio.run(act())


def test_a_confirmation_that_is_owed_is_not_sent_when_it_was_given_up_meanwhile(shm: Path) -> None:
    async def act() -> None:
        bus = MemoryBus()
        made, ledger = answers(shm, bus)
        told = signal()
        await made.receive(told)
        ledger.end(ledger.open()[0], End(good=True, state="Running"), NOW)  # and died before it was told
        (shm / "given-up.json").write_text(json.dumps([told.correlation_id]))
        later, book = answers(shm, bus)
        for entry, _ in book.owed():
            await later.confirm(entry)
        assert keys(bus) == []
        assert book.owed() == []

    asyncio.run(act())


def test_a_signal_that_is_delivered_twice_is_no_duplicate_and_a_retry_is(shm: Path) -> None:
    async def act() -> None:
        bus = MemoryBus()
        made, _ = answers(shm, bus)
        told = signal()
        await made.receive(told)
        await made.receive(told)
        assert keys(bus) == []
        await made.receive(replace(told, correlation_id=str(uuid.uuid4())))
        assert keys(bus) == ["ev.duplicate.swarm-start.demo"]

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


def test_trouble_of_a_component_is_told_once_and_a_delta_tells_what_changed() -> None:
    watch = Watch(cast(Runtime, None))
    summary = Summary(watch, lambda: NOW, lambda *what, **more: None)
    member = Member(role="sink", instance="demo-sink", bee=0)
    watch.put("demo-sink", replace(watch.of("demo-sink"), launched=True, alive=True, launches=1))
    assert [one["instance"] for one in summary.changed(summary.lines([member], 1.0))] == ["demo-sink"]
    assert summary.changed(summary.lines([member], 2.0)) == []
    watch.put("demo-sink", replace(watch.of("demo-sink"), launches=2, starts=1, end="by signal 9", end_s=2.5))
    summary.lines([member], 2.6)
    watch.put("demo-sink", replace(watch.of("demo-sink"), launches=3, end_words="no licence"))
    told = summary.changed(summary.lines([member], 3.0))[0]
    end = {"at": "2026-11-16T12:00:09.900Z", "how": "by signal 9", "words": "no licence"}
    assert (told["starts"], told["lastEnd"]) == (3, end)
    assert summary.lines([member], 60.0)[0]["lastEnd"] == told["lastEnd"]  # however late it is told again
    watch.put("demo-sink", replace(watch.of("demo-sink"), failure="ended, for good"))
    for _ in range(3):
        summary.lines([member], 4.0)
    summary.error("swarm-start: too slow", "c")
    assert [(one.get("instance"), one["reason"], one.get("correlationId")) for one in summary.errors()] == [
        ("demo-sink", "ended by signal 9, and was started again (3 starts); its log ended with: no licence", None),
        ("demo-sink", "ended, for good", None),
        (None, "swarm-start: too slow", "c"),
    ]


def test_what_an_update_changed_holds_when_its_component_is_started_again(shm: Path) -> None:
    kept = Kept.load(f"{shm}/controller.json", durable=False)
    kept.change(configured=("demo-a", {"rate": 5}))
    kept.change(configured=("demo-a", {"size": 2}))
    again = Kept.load(f"{shm}/controller.json", durable=False)
    assert again.config_of("demo-a") == {"rate": 5, "size": 2}
    assert again.config_of("demo-b") == {}


HOLDER = """
import subprocess, sys, time
from farro.swarm import single_process as alone
from farro.host.clock import SystemClock
lease = alone.hold(sys.argv[1], "a holder", SystemClock())
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_controller_that_is_ended_leaves_what_it_started(shm: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(shm)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    child = psutil.Process(int(holder.stdout.readline()))
    try:
        assert single_process.kill(str(shm), SystemClock())
        assert holder.wait(60) == -9
        assert child.is_running()
        single_process.hold(str(shm), "the next", SystemClock()).drop()
    finally:
        child.kill()
        holder.kill()
        holder.wait(60)
        holder.stdout.close()
