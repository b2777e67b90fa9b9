"""The contract of the Bus port, on every adapter."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from farro.errors import BadName, BusTrouble
from farro.host import fs
from farro.swarm.bus import files
from farro.swarm.bus.amqp import AmqpBus
from farro.swarm.bus.files import FilesBus, sweep
from farro.swarm.bus.files import queues as consumers
from farro.swarm.bus.port import Binding, Bus, BusMessage
from farro.testing.bus import *  # noqa: F403 - the suite
from farro.testing.bus import PATIENCE_S, QUEUES, Open, message, run, take, until
from servers import RabbitServer, free_port


@pytest.fixture
def folder(shm: Path) -> str:
    return str(shm / "bus")


@pytest.fixture(params=["files", "amqp", "amqp[quorum]"])
def open_bus(request: pytest.FixtureRequest, folder: str) -> Iterator[Open]:
    """Return another process on the same bus at each call."""
    if request.param == "files":
        yield lambda: in_files(folder)
        return
    server: RabbitServer = request.getfixturevalue("rabbit_server")
    yield lambda: on_rabbit(server.url, quorum=request.param == "amqp[quorum]")

    async def tidy() -> None:
        async with on_rabbit(server.url, quorum=False) as bus:
            for queue in QUEUES:
                await bus.delete(queue)

    run(tidy)


@asynccontextmanager
async def in_files(folder: str) -> AsyncIterator[FilesBus]:
    bus = FilesBus(folder, durable=False)
    try:
        yield bus
    finally:
        await bus.close()


@asynccontextmanager
async def on_rabbit(url: str, *, quorum: bool, patience_s: float = PATIENCE_S) -> AsyncIterator[AmqpBus]:
    bus = await AmqpBus.connect(url, quorum=quorum, patience_s=patience_s)
    try:
        yield bus
    finally:
        await bus.close()


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a..b", ".x", "Ü", "a\n"])
def test_no_path_is_built_from_an_invalid_name(folder: str, name: str) -> None:
    async def play() -> None:
        async with in_files(folder) as bus:
            with pytest.raises(BadName):
                await bus.declare(name)
            with pytest.raises(BadName):
                await bus.publish(name, message())
            with pytest.raises(BadName):
                await bus.consume(name)

    run(play)


VICTIM = """
    import asyncio, os, sys
    from farro.swarm.bus.files import FilesBus
    from farro.swarm.bus.port import Binding, BusMessage

    async def main():
        bus = FilesBus(sys.argv[1], durable=False)
        consumer = await bus.consume("q", prefetch=3)
        held = [await anext(consumer) for _ in range(3)]
        await held[0].ack()
        print("taken", flush=True)
        await asyncio.sleep(600)

    asyncio.run(main())
"""


@asynccontextmanager
async def victim(bus: Bus, folder: str) -> AsyncIterator[None]:
    """Run a consumer of the new queue q in a child process that holds m1 and m2; kill it at the end."""
    await bus.declare("q", [Binding("x", "#")])
    for number in range(3):
        await bus.publish("x", message(number))
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(VICTIM), folder], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "taken\n"
        try:
            yield
        finally:
            os.kill(process.pid, signal.SIGKILL)


def test_messages_of_a_dead_consumer_return_to_the_queue(folder: str) -> None:
    async def play() -> None:
        async with in_files(folder) as bus:
            async with victim(bus, folder):
                pass
            consumer = await bus.consume("q", prefetch=3)
            again = [await take(consumer) for _ in range(2)]
            assert [(one.message.message_id, one.redelivered) for one in again] == [("m1", True), ("m2", True)]
            assert sweep(folder) == []  # the waiting consumer has swept

    run(play)


def test_a_waiting_consumer_gets_the_messages_of_a_dead_one(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "RECOVER_S", 0.05)

    async def play() -> None:
        async with in_files(folder) as bus:
            async with victim(bus, folder):
                consumer = await bus.consume("q", prefetch=3)
                waiting = asyncio.create_task(take(consumer))
                await asyncio.sleep(0.2)
                assert not waiting.done()
            again = [await waiting, await take(consumer)]
            assert [(one.message.message_id, one.redelivered) for one in again] == [("m1", True), ("m2", True)]

    run(play)


def test_a_busy_consumer_leaves_returned_messages_to_others(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "RECOVER_S", 0.05)

    async def play() -> None:
        async with in_files(folder) as bus:
            async with victim(bus, folder):
                consumer = await bus.consume("q", prefetch=1)
                await bus.publish("x", message(9))
                assert (await take(consumer)).message == message(9)
                waiting = asyncio.create_task(take(consumer))
            await until(bus, "q", ready=2)
            assert not waiting.done()
            waiting.cancel()

    run(play)


def test_an_invalid_message_is_set_aside_and_blocks_no_consumer(folder: str) -> None:
    async def play() -> None:
        async with in_files(folder) as bus:
            await bus.declare("q", [Binding("x", "#")])
            (Path(folder) / "queues/q/ready/00000000000000000001.0000000000.0123456789abcdef").write_bytes(b"no")
            (Path(folder) / "queues/q/ready/README").write_bytes(b"hello")
            await bus.publish("x", message(1))
            assert (await take(await bus.consume("q"))).message == message(1)
            assert any(name.startswith("damaged-") for name in fs.listdir(f"{folder}/queues/q"))

    run(play)


def test_a_killed_broker_keeps_confirmed_messages(
    rabbit_server: RabbitServer, caplog: pytest.LogCaptureFixture
) -> None:
    def told(word: str) -> int:
        line = f"the broker at 127.0.0.1:{rabbit_server.port} is {word}"
        return sum(record.getMessage().startswith(line) for record in caplog.records)

    async def play() -> None:
        patient = functools.partial(on_rabbit, rabbit_server.url, quorum=False, patience_s=4 * PATIENCE_S)
        async with patient() as bus, patient() as other:
            await bus.declare("q", [Binding("x", "#")])
            consumer = await bus.consume("q", prefetch=1)
            await other.publish("x", message(1))
            held = await take(consumer)
            await other.publish("x", message(2))
            await asyncio.to_thread(rabbit_server.kill)
            late = asyncio.create_task(other.publish("x", message(3)))
            await asyncio.sleep(0.5)
            assert not late.done()  # it waits for the broker
            await asyncio.to_thread(rabbit_server.start)
            await late
            await held.ack()  # from a closed connection: it has no effect
            seen: list[str] = []
            while {"m1", "m2", "m3"} - set(seen):
                delivery = await take(consumer)
                seen.append(delivery.message.message_id)
                await delivery.ack()
            while told("back") < 2:
                await asyncio.sleep(0.02)
            await bus.delete("q")  # other tests use the same server

    async def bounded() -> None:
        async with asyncio.timeout(4 * PATIENCE_S):
            await play()

    asyncio.run(bounded())
    theirs = [record for record in caplog.records if record.name.startswith(("aio_pika", "aiormq"))]
    assert (told("unreachable"), told("back"), theirs) == (2, 2, []), "one line of each connection, and no traceback"
    assert "guest" not in caplog.text


def test_the_error_about_a_missing_broker_hides_its_password() -> None:
    async def play() -> None:
        with pytest.raises(BusTrouble, match=f"no RabbitMQ answers at 127.0.0.1:{port}") as caught:
            await AmqpBus.connect(f"amqp://guest:secret@127.0.0.1:{port}/", patience_s=5)
        assert "secret" not in str(caught.value)

    port = free_port()
    run(play)


def test_a_wrong_password_is_reported(rabbit_server: RabbitServer) -> None:
    async def play() -> None:
        with pytest.raises(BusTrouble, match="refuses the user or the password"):
            await AmqpBus.connect(f"amqp://guest:no@127.0.0.1:{rabbit_server.port}/", patience_s=10)

    run(play)


def test_a_death_during_a_binding_change_makes_publishers_reread_bindings(folder: str) -> None:
    async def play() -> None:
        async with in_files(folder) as bus, in_files(folder) as other:
            await bus.declare("one", [Binding("x", "a")])
            await bus.publish("x", message(1, "a"))
            with contextlib.suppress(ZeroDivisionError), other._layout.changing():
                other._build("two", {"bindings": [["x", "a"]], "dead_letters": None, "exclusive": False})
                raise ZeroDivisionError  # it dies before it can announce the change
            await bus.publish("x", message(2, "a"))
            await until(bus, "two", 1)

    run(play)


def test_a_queue_without_a_consumer_does_not_fill_with_transient_messages(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status messages are dropped while the controller of a swarm is away for days; all others are kept."""
    monkeypatch.setattr(files, "CROWD", 5)
    monkeypatch.setattr(files, "LOOK_AFTER", 0)

    async def play() -> None:
        bus = files.FilesBus(folder, durable=False)
        await bus.declare("q", [Binding("x", "#")])
        for number in range(20):
            await bus.publish("x", BusMessage(key="k", body=b"1", message_id=str(number), lasting=number % 10 == 9))
        found = await bus.depth("q")
        assert found is not None
        assert found.ready == 5 + 2
        consumer = await bus.consume("q", prefetch=10)
        for _ in range(7):
            await (await anext(aiter(consumer))).ack()
        await bus.publish("x", BusMessage(key="k", body=b"1", message_id="back", lasting=False))
        assert (await anext(aiter(consumer))).message.message_id == "back"
        await bus.close()

    asyncio.run(play())


def test_other_users_cannot_read_the_bus(folder: str) -> None:
    asyncio.run(files.FilesBus(folder, durable=False).close())
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700


def test_the_next_consumer_sweeps_leftovers_of_killed_publishers(folder: str) -> None:
    """The bus also keeps no records of consumers that ended, for any number of restarts."""

    async def play() -> None:
        async with in_files(folder) as bus:
            await bus.declare("q")
            left, fresh = Path(folder, ".staging", "left"), Path(folder, ".staging", "fresh")
            for path in (left, fresh):
                path.write_bytes(b"")
            os.utime(left, (0, 0))
            for _ in range(5):
                await (await bus.consume("q")).close()
            assert (left.exists(), fresh.exists()) == (False, True)
            assert len(bus._consumers) == 1

    run(play)
