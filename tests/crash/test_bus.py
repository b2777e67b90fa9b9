"""Kill the files bus at every call: accepted messages stay, and any other message is whole or absent."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from crash.seams import Counting, KillAt, placed
from crash.tally import add_figure
from farro.host import fs, leases
from farro.swarm.bus.files import FilesBus, queues
from farro.swarm.bus.port import Binding, BusMessage
from stage import Crash

QUEUES = ("one", "two")


def message(number: int) -> BusMessage:
    return BusMessage(key="a.b", body=b"x" * 3000 + b"%d" % number, message_id=f"m{number}")


def play(folder: str, act: Callable[[FilesBus], Awaitable[object]]) -> None:
    """Run a process until it ends or is killed, without any clean-up."""

    async def life() -> None:
        bus = FilesBus(folder)
        try:
            await act(bus)
        finally:
            bus._thread.shutdown(wait=True)
            for consumer in bus._consumers:
                asyncio.get_running_loop().remove_reader(consumer._inotify.fileno())
                consumer._inotify.close()

    held = set(leases._held)
    with contextlib.suppress(Crash):
        asyncio.run(life())
    for fd in set(leases._held) - held:  # the kernel releases a dead process's leases
        leases.Lease(fd).drop()


async def declared(bus: FilesBus) -> None:
    for queue in QUEUES:
        await bus.declare(queue, [Binding("x", "a.*")], dead_letters="dead")
    await bus.declare("dead")


def found(folder: str) -> dict[str, list[str]]:
    """Return every message of every queue as a healthy consumer gets it; check that each is whole."""
    told: dict[str, list[str]] = {}

    async def drain(bus: FilesBus) -> None:
        for queue in (*QUEUES, "dead"):
            if await bus.depth(queue) is None:
                continue
            consumer = await bus.consume(queue, prefetch=100)
            depth = await bus.depth(queue)
            assert depth is not None
            got = [await anext(consumer) for _ in range(depth.ready)]
            told[queue] = sorted(one.message.message_id for one in got)
            assert all(one.message == message(int(one.message.message_id[1:])) for one in got)
            assert not [name for name in fs.listdir(f"{folder}/queues/{queue}") if name.startswith("damaged")]

    play(folder, drain)
    return told


def killed_everywhere(
    shm: Path, before: Callable[[FilesBus], Awaitable[object]], act: Callable[[FilesBus], Awaitable[object]]
) -> list[tuple[dict[str, list[str]], bool]]:
    """Kill `act` at every call; return the messages found after each kill, and whether `act` had finished."""
    start, whole = str(shm / "start"), str(shm / "whole")
    play(start, before)
    shutil.copytree(start, whole)
    with placed(Counting()) as calls:
        play(whole, act)
    assert calls.count >= 8  # fewer calls would mean that it failed early and proves nothing
    answers = []
    for n in range(1, calls.count + 1):
        for after in (False, True):
            folder = str(shm / f"{n}{after}")
            shutil.copytree(start, folder)
            finished = False

            async def acting(bus: FilesBus) -> None:
                nonlocal finished
                await act(bus)
                finished = True

            with placed(KillAt(n, after=after)):
                play(folder, acting)
            answers.append((found(folder), finished))
            shutil.rmtree(folder)
    add_figure("kill points, files bus", len(answers), "points")
    return answers


@pytest.fixture(autouse=True)
def steady_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues.time, "time_ns", lambda: 1)


def test_kill_at_every_call_of_a_publish(shm: Path) -> None:
    async def publish(bus: FilesBus) -> None:
        await bus.publish("x", message(2))

    async def before(bus: FilesBus) -> None:
        await declared(bus)
        await bus.publish("x", message(1))

    for told, finished in killed_everywhere(shm, before, publish):
        for queue in QUEUES:
            assert told[queue] in (["m1"], ["m1", "m2"])
        assert not finished or told["one"] == told["two"] == ["m1", "m2"]


def test_kill_at_every_call_of_a_declaration(shm: Path) -> None:
    async def nothing(bus: FilesBus) -> None: ...

    async def declare(bus: FilesBus) -> None:
        await declared(bus)
        await bus.publish("x", message(1))

    for told, finished in killed_everywhere(shm, nothing, declare):
        assert all(ids in ([], ["m1"]) for ids in told.values())
        assert not finished or told == {"one": ["m1"], "two": ["m1"], "dead": []}


def test_kill_at_every_call_of_a_consumer(shm: Path) -> None:
    async def before(bus: FilesBus) -> None:
        await declared(bus)
        for number in (1, 2, 3):
            await bus.publish("x", message(number))

    acked: list[str] = []

    async def consume(bus: FilesBus) -> None:
        acked.clear()
        consumer = await bus.consume("one", prefetch=3)
        first, second, third = [await anext(consumer) for _ in range(3)]
        acked.append("m1")
        await first.ack()
        await second.reject(requeue=False)
        await third.reject(requeue=True)
        await consumer.close()

    for told, finished in killed_everywhere(shm, before, consume):
        everything = told["one"] + told["dead"]
        # Only a message that was being acknowledged may be gone; all others are there, each once.
        assert sorted(everything) in (["m1", "m2", "m3"], ["m2", "m3"])
        assert told["two"] == ["m1", "m2", "m3"]
        assert not finished or (told["one"], told["dead"]) == (["m3"], ["m2"])


def test_kill_at_every_call_of_requeueing_a_dead_consumers_messages(shm: Path) -> None:
    async def before(bus: FilesBus) -> None:
        await declared(bus)
        for number in (1, 2):
            await bus.publish("x", message(number))
        consumer = await bus.consume("one", prefetch=2)
        assert [(await anext(consumer)).message.message_id for _ in range(2)] == ["m1", "m2"]

    async def recover(bus: FilesBus) -> None:
        await bus.consume("one")

    for told, _ in killed_everywhere(shm, before, recover):
        assert told["one"] == ["m1", "m2"]
