"""Components and the orchestrator while the bus is unreachable: they wait, and report afterwards what they did."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from farro.cli.daemons import Signals
from farro.config.settings import Settings
from farro.errors import BusTrouble
from farro.swarm import bus as buses
from farro.swarm import service
from farro.swarm.bus.files import FilesBus
from farro.swarm.bus.files.queues import FilesConsumer
from farro.swarm.bus.port import Binding, Bus, BusMessage
from farro.swarm.cli import daemons
from farro.swarm.component import Component, testing
from farro.swarm.component import run as running
from farro.swarm.component.testing import trial
from swarm.component.harness import run


class UnreachableBus(FilesBus):
    """A bus on which some calls fail for now."""

    gone: ClassVar[set[str]] = set()
    failed_calls: ClassVar[list[str]] = []

    def _check(self, what: str) -> None:
        if what in self.gone:
            self.failed_calls.append(what)
            raise BusTrouble(f"no {what} now")

    async def declare(self, queue: str, bindings: Sequence[Binding] = (), *, dead_letters: str | None = None) -> None:
        if queue.startswith("ph.control."):  # of the component itself
            self._check("declare")
        await super().declare(queue, bindings, dead_letters=dead_letters)

    async def publish(self, exchange: str, message: BusMessage) -> None:
        if message.key.startswith("ev."):
            self._check("publish")
        await super().publish(exchange, message)

    async def consume(self, queue: str, *, prefetch: int = 1) -> FilesConsumer:
        self._check(f"consume {queue}")
        return await super().consume(queue, prefetch=prefetch)


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> type[UnreachableBus]:
    monkeypatch.setattr(testing, "FilesBus", UnreachableBus)
    monkeypatch.setattr(running, "AGAIN_S", 0.01)
    monkeypatch.setattr(running, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(UnreachableBus, "gone", set())
    monkeypatch.setattr(UnreachableBus, "failed_calls", [])
    return UnreachableBus


def copier() -> Component[Any]:
    bee: Component[Any] = Component("copier")

    @bee.transform
    def copy(item: Any) -> Any:
        return item

    return bee


async def tried_twice(away: type[UnreachableBus], what: str) -> None:
    """Wait until a call was tried twice: a component that gave up at the first would have ended."""
    before = away.failed_calls.count(what)
    while away.failed_calls.count(what) < before + 2:
        await asyncio.sleep(0.01)


def test_a_component_waits_for_a_bus_that_is_away(shm: Path, away: type[UnreachableBus]) -> None:
    async def play() -> None:
        away.gone = {"declare"}

        async def back() -> None:
            await tried_twice(away, "declare")
            away.gone = set()

        returning = asyncio.create_task(back())
        async with trial(copier(), str(shm / "bus"), inputs=["raw"], outputs=["done"]) as it:
            await returning
            away.gone = {"publish"}
            asking = [asyncio.create_task(it.enable()), asyncio.create_task(it.feed("raw", 1))]
            await tried_twice(away, "publish")  # its work and its heartbeats cannot be reported
            away.gone = set()
            assert (await asking[0]).enabled is True  # by a heartbeat
            assert await it.next("done") == 1
            await asking[1]

    run(play)


def test_a_workload_reads_all_of_its_queues_or_none(shm: Path, away: type[UnreachableBus]) -> None:
    """One of two queues cannot be consumed: the component is not enabled, and the next time it reads both."""

    async def play() -> None:
        async with trial(copier(), str(shm / "bus"), inputs=["raw", "late"], outputs=["done"]) as it:
            away.gone = {"consume ph.trial.late"}
            report = await it.enable()
            assert (report.enabled, "no consume" in report.data["update"]["error"]) == (False, True)
            away.gone = set()
            assert (await it.enable()).enabled is True
            await it.feed("late", 2)
            assert await it.next("done") == 2

    run(play)


def test_a_reader_goes_on_after_an_error(
    shm: Path, away: type[UnreachableBus], monkeypatch: pytest.MonkeyPatch
) -> None:
    take, troubles = FilesConsumer._take, [OSError(5, "Input/output error")]

    def sometimes(self: FilesConsumer, room: int, *, recovering: bool) -> list[tuple[str, BusMessage]]:
        if troubles and self._queue == "ph.trial.raw":
            raise troubles.pop()
        return take(self, room, recovering=recovering)

    async def play() -> None:
        async with trial(copier(), str(shm / "bus"), inputs=["raw"], outputs=["done"]) as it:
            monkeypatch.setattr(FilesConsumer, "_take", sometimes)
            await it.enable()
            await it.feed("raw", 3)
            assert await it.next("done") == 3
            assert not troubles

    run(play)


def test_an_orchestrator_waits_for_a_broker_that_is_not_up_yet(monkeypatch: pytest.MonkeyPatch, shm: Path) -> None:
    """As after a boot: no process would start it again."""
    tries: list[str] = []
    lived: list[Bus] = []

    async def open_bus(root: str, settings: Settings) -> Bus:
        tries.append(root)
        if len(tries) < 3:
            raise BusTrouble("nobody answers")
        return FilesBus(str(shm / "bus"))

    class Once:
        def __init__(self, bus: Bus) -> None:
            lived.append(bus)

        async def run(self) -> None:
            if len(tries) == 3:
                raise BusTrouble("gone as it began")

        def stop(self) -> None: ...

    logged: list[str] = []
    monkeypatch.setattr(service, "open_bus", open_bus)
    monkeypatch.setattr(buses, "AGAIN_S", 0.0)
    monkeypatch.setattr(daemons, "AGAIN_S", 0.0)
    log = lambda level, message, fields: logged.append(message)  # noqa: E731
    signals = object.__new__(Signals)
    signals._stop, signals._early = None, False
    asyncio.run(daemons._run("root", Settings(), Once, signals, log))
    assert (len(tries), len(lived), len(logged)) == (4, 2, 3)
