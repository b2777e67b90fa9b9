"""The contract of the Bus port, on every adapter."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from farro.errors import BadName, BusTrouble, InputError
from farro.host import fs
from farro.swarm.bus import LostQueueCheck, files
from farro.swarm.bus.amqp import AmqpBus
from farro.swarm.bus.files import FilesBus, sweep
from farro.swarm.bus.files import queues as consumers
from farro.swarm.bus.port import Binding, Bus, BusMessage, Consumer, Delivery
from servers import RabbitServer, free_port

PATIENCE_S = 30.0
CONTROL = "ph.control"


Open = Callable[[], AbstractAsyncContextManager[Bus]]


@pytest.fixture
def folder(shm: Path) -> str:
    return str(shm / "bus")


QUEUES = ("one", "two", "three", "q", "dead", "plain")


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


def run(play: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await play()

    asyncio.run(bounded())


async def until(bus: Bus, queue: str, ready: int) -> None:
    """A broker counts a moment later than it confirms."""
    while (depth := await bus.depth(queue)) is None or depth.ready != ready:
        await asyncio.sleep(0.02)


def message(number: int = 0, key: str = "sig.swarm-start.demo", body: bytes = b"") -> BusMessage:
    return BusMessage(key=key, body=body or f"{number}".encode(), message_id=f"m{number}", headers={"n": str(number)})


async def take(consumer: Consumer) -> Delivery:
    return await anext(aiter(consumer))


def test_a_published_message_is_delivered(open_bus: Open) -> None:
    async def play() -> None:
        async with open_bus() as bus, open_bus() as other:
            await bus.declare("one", [Binding(CONTROL, "sig.#"), Binding(CONTROL, "sig.swarm-start.*")])
            await bus.declare("two", [Binding(CONTROL, "sig.swarm-start.demo")])
            await bus.declare("three", [Binding(CONTROL, "ev.#"), Binding("ph.demo.hive", "#")])
            body = bytes(range(256)) * 10 + b"\n\n"
            await other.publish(CONTROL, message(1, body=body))  # another process knows them too
            for queue, ready in (("one", 1), ("two", 1), ("three", 0)):  # once, though two bindings fit
                await until(bus, queue, ready)
            assert await bus.depth("four") is None
            found = await take(await other.consume("two"))
            assert (found.message, found.redelivered) == (message(1, body=body), False)
            await found.ack()
            await found.ack()
            await until(bus, "two", 0)
            depth = await bus.depth("two")
            assert depth is not None
            assert depth.consumers == 1

    run(play)


def test_messages_arrive_in_order_at_one_consumer_each(open_bus: Open) -> None:
    async def play() -> None:
        async with open_bus() as bus, open_bus() as other:
            await bus.declare("q", [Binding("x", "#")])
            for number in range(40):
                await bus.publish("x", message(number))
            consumers = [await bus.consume("q", prefetch=5), await other.consume("q", prefetch=5)]
            seen: list[list[str]] = [[], []]

            async def work(which: int) -> None:
                async for delivery in consumers[which]:
                    seen[which].append(delivery.message.message_id)
                    await delivery.ack()
                    await asyncio.sleep(0)
                    if sum(map(len, seen)) == 40:
                        for consumer in consumers:
                            await consumer.close()

            await asyncio.gather(work(0), work(1))
            assert sorted(seen[0] + seen[1]) == sorted(f"m{number}" for number in range(40))
            for each in seen:
                assert each == sorted(each, key=lambda name: int(name[1:]))

    run(play)


def test_a_waiting_consumer_wakes(open_bus: Open) -> None:
    async def play() -> None:
        async with open_bus() as bus, open_bus() as other:
            await bus.declare("q", [Binding("x", "#")])
            waiting = asyncio.create_task(take(await bus.consume("q")))
            await asyncio.sleep(0)
            await other.publish("x", message(7))
            assert (await waiting).message.message_id == "m7"

    run(play)


def test_a_consumer_holds_no_more_than_its_prefetch(open_bus: Open) -> None:
    async def play() -> None:
        async with open_bus() as bus:
            await bus.declare("q", [Binding("x", "#")])
            for number in range(5):
                await bus.publish("x", message(number))
            consumer = await bus.consume("q", prefetch=2)
            held = [await take(consumer), await take(consumer)]
            third = asyncio.create_task(take(consumer))
            await until(bus, "q", 3)
            await asyncio.sleep(0.05)
            assert not third.done()
            await held[0].ack()
            assert (await third).message.message_id == "m2"

    run(play)


def test_unacknowledged_messages_return_when_the_consumer_ends(open_bus: Open) -> None:
    async def play() -> None:
        async with open_bus() as bus:
            await bus.declare("q", [Binding("x", "#")])
            for number in range(3):
                await bus.publish("x", message(number))
            first = await bus.consume("q", prefetch=3)
            taken = [await take(first) for _ in range(3)]
            await taken[1].ack()
            await first.close()
            await taken[0].ack()  # too late: another consumer has it
            second = await bus.consume("q", prefetch=3)
            again = [await take(second) for _ in range(2)]
            assert [(one.message.message_id, one.redelivered) for one in again] == [("m0", True), ("m2", True)]

    run(play)


def test_a_rejected_message_is_requeued_or_dead_lettered(open_bus: Open) -> None:
    async def play() -> None:
        async with open_bus() as bus:
            await bus.declare("dead")
            await bus.declare("q", [Binding("x", "#")], dead_letters="dead")
            await bus.declare("plain", [Binding("y", "#")])
            await bus.publish("x", message(1))
            consumer = await bus.consume("q")
            await (await take(consumer)).reject(requeue=True)
            again = await take(consumer)
            assert again.redelivered
            await again.reject(requeue=False)
            await until(bus, "q", 0)
            assert (await take(await bus.consume("dead"))).message == message(1)
            await bus.publish("y", message(2))
            await (await take(await bus.consume("plain"))).reject(requeue=False)
            await until(bus, "plain", 0)

    run(play)


def test_a_queue_may_be_redeclared_rebound_and_deleted(open_bus: Open) -> None:
    async def play() -> None:
        async with open_bus() as bus, open_bus() as other:
            for _ in range(2):
                await bus.declare("q", [Binding("x", "a.*")])
            await other.publish("x", message(1, key="a.b"))
            await bus.declare("q", [Binding("x", "c.*")])
            await bus.unbind("q", Binding("x", "a.*"))
            await bus.unbind("q", Binding("x", "a.*"))
            await other.publish("x", message(2, key="a.b"))
            await other.publish("x", message(3, key="c.d"))
            await until(bus, "q", 2)
            await bus.delete("q")
            await bus.delete("q")
            await other.publish("x", message(4, key="c.d"))  # no queue is bound: dropped without an error
            assert await bus.depth("q") is None
            with pytest.raises(InputError, match="there is no queue q; declare it first"):
                await bus.consume("q")

    run(play)


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


def test_messages_may_be_acknowledged_in_any_order_or_all_at_once(open_bus: Open) -> None:
    async def play() -> None:
        async with open_bus() as bus, open_bus() as other:
            await bus.declare("dead")
            await bus.declare("q", [Binding("x", "#")], dead_letters="dead")
            await asyncio.gather(*(bus.publish("x", message(number)) for number in range(60)))
            consumer = await other.consume("q", prefetch=20)
            held = [await take(consumer) for _ in range(20)]
            order = random.Random(7).sample(held, 20)
            for one in order[:5]:
                await one.reject(requeue=False)
            await asyncio.gather(*(one.ack() for one in order[5:12]))
            for one in order[12:]:
                await one.ack()
                await asyncio.sleep(0.01)
            rest = {(await take(consumer)).message.message_id for _ in range(20)}  # the connection is kept
            assert not rest & {one.message.message_id for one in held}
            await until(bus, "dead", 5)
            await other.close()  # unsettled messages return to the queue; settled ones are gone
            await until(bus, "q", 40)

    run(play)


def test_a_message_acknowledged_without_waiting_is_not_redelivered(open_bus: Open) -> None:
    async def play() -> None:
        async with open_bus() as bus, open_bus() as other:
            await bus.declare("q", [Binding("x", "#")])
            await asyncio.gather(*(bus.publish("x", message(number)) for number in range(60)))
            consumer = await other.consume("q", prefetch=4)
            for number in range(58):  # more than its prefetch: the acknowledgement made room
                held = await take(consumer)
                if number % 7 == 6:
                    await held.ack()
                else:
                    held.ack_soon()
                    held.ack_soon()  # the second call has no effect
            await other.close()
            await until(bus, "q", 2)
            rest = await bus.consume("q", prefetch=3)
            assert {(await take(rest)).message.message_id for _ in range(2)} == {"m58", "m59"}

    run(play)


def test_concurrent_publishers_all_get_their_confirmation(open_bus: Open) -> None:
    async def play() -> None:
        async with open_bus() as bus:
            await bus.declare("q", [Binding("x", "#")])
            await asyncio.gather(*(bus.publish("x", message(number)) for number in range(250)))
            consumer = await bus.consume("q", prefetch=250)
            got = [(await take(consumer)).message.message_id for _ in range(250)]
            assert got == [f"m{number}" for number in range(250)]

    run(play)


def test_a_publisher_sees_every_change_of_bindings(open_bus: Open) -> None:
    """This holds for a key that it has published under before, too."""

    async def play() -> None:
        async with open_bus() as bus, open_bus() as other:
            await other.declare("one", [Binding("x", "a.b")])
            await bus.publish("x", message(1, "a.b"))
            await other.declare("two", [Binding("x", "a.*")])
            await bus.publish("x", message(2, "a.b"))
            await other.declare("two", [Binding("x", "c")])
            await bus.publish("x", message(3, "c"))
            await other.unbind("two", Binding("x", "a.*"))
            await bus.publish("x", message(4, "a.b"))
            await other.delete("two")
            await bus.publish("x", message(5, "a.b"))
            await other.declare("two", [Binding("x", "a.b")])
            await bus.publish("x", message(6, "a.b"))
            await until(bus, "one", 5)
            await until(bus, "two", 1)

    run(play)


def test_closing_a_consumer_without_waiting_loses_no_message(open_bus: Open) -> None:
    async def play() -> None:
        async with open_bus() as bus:
            await bus.declare("q", [Binding("x", "#")])
            consumer = await bus.consume("q", prefetch=5)
            for number in range(5):
                waiting = asyncio.create_task(take(consumer))
                await asyncio.sleep(0)
                publishing = asyncio.create_task(bus.publish("x", message(number)))
                for _ in range(number):
                    await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                await publishing
                if not waiting.cancelled():
                    assert waiting.result().message.message_id == f"m{number}"
                else:
                    assert (await take(consumer)).message.message_id == f"m{number}"

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


def test_a_consumer_of_a_deleted_queue_gets_an_error(open_bus: Open) -> None:
    async def play() -> None:
        async with open_bus() as bus, open_bus() as operator:
            await bus.declare("q")
            ears = LostQueueCheck(bus, "q")
            await bus.consume("q")
            for _ in range(3):
                await ears.check()
            await operator.delete("q")
            await ears.check()
            with pytest.raises(BusTrouble, match="was deleted"):
                await ears.check()

    run(play)


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
