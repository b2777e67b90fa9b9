"""The contract of the Bus port. The fixture `open_bus` yields a function that opens the bus as another process does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from farro.errors import BusTrouble, InputError
from farro.swarm.bus import LostQueueCheck
from farro.swarm.bus.port import Binding, Bus, BusMessage, Consumer, Delivery

PATIENCE_S = 30.0

CONTROL = "ph.control"

Open = Callable[[], AbstractAsyncContextManager[Bus]]

# The queues that the tests declare: a bus that outlives a test deletes them after it.
QUEUES = ("one", "two", "three", "q", "dead", "plain")


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
