"""The dead letters of a swarm, items that its components failed to process: show them, resend them, drop them.

All of it is done as a consumer of the bus: what is taken and not acknowledged goes back, even if this process is
killed. So showing changes nothing, and resending publishes into the work queue first and then removes the dead letter:
a crash in between sends it twice, under the same message id. [test_showing_dead_letters_changes_nothing]
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from typing import Literal

from farro.errors import InputError
from farro.lazy_dataclass import dataclass
from farro.swarm.bus.port import Bus, BusMessage, Delivery
from farro.swarm.plan import SwarmPlan
from farro.swarm.wire import names

Verb = Literal["resend", "drop"]
WAIT_S = 5.0  # for a letter that was counted, but that another consumer may have taken
HELD = 10_000  # letters held at once while some of them are searched
_BATCH = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueLetters:
    """The dead letters of one queue. `letters` are the first ones, or those that were resent or dropped."""

    queue: str  # its name in the plan
    count: int
    letters: tuple[BusMessage, ...] = ()


def queues(plan: SwarmPlan, name: str | None = None) -> list[str]:
    """Return all queues of a swarm, or the named one, by any of its names. Raises InputError if it has no such
    queue."""
    known = plan.queues()
    if name is None:
        return known
    for one in known:
        if name in (one, whole := names.work_queue(plan.id, one), names.dead_letters(whole)):
            return [one]
    hint = f"it has {', '.join(known)}" if known else "its components read and write none"
    raise InputError(f"swarm {plan.id} has no queue {name[:100]}; {hint}")


async def look(bus: Bus, swarm: str, wanted_queues: Sequence[str], limit: int) -> list[QueueLetters]:
    """Return the first letters of each queue and leave them there."""
    piles = []
    for queue in wanted_queues:
        count = await _count(bus, swarm, queue)
        async with aclosing(_taken(bus, swarm, queue, min(count, limit), hold=limit)) as given:
            found = [one.message async for one in given]
        piles.append(QueueLetters(queue=queue, count=count, letters=tuple(found)))
    return piles


async def resolve(
    bus: Bus, swarm: str, wanted_queues: Sequence[str], verb: Verb, *, only: Collection[str] = ()
) -> list[QueueLetters]:
    """Resend or drop the letters that are there now, or only those with the ids in `only`.

    A letter that fails again meanwhile is not sent once more.
    """
    piles = []
    for queue in wanted_queues:
        if verb == "resend" and await bus.depth(names.work_queue(swarm, queue)) is None:
            raise InputError(f"the queue {queue} of swarm {swarm} is not on the bus: what is sent there would be lost")
        count, found = await _count(bus, swarm, queue), []
        hold = min(count, HELD) if only else _BATCH
        async with aclosing(_taken(bus, swarm, queue, min(count, HELD) if only else count, hold=hold)) as given:
            async for delivery in given:
                letter = delivery.message
                if only and letter.message_id not in only:
                    continue  # kept until the end: else it would be delivered again at once
                if verb == "resend":
                    fresh = BusMessage(
                        key=queue, body=letter.body, message_id=letter.message_id, headers=letter.headers
                    )
                    await bus.publish(names.work_exchange(swarm), fresh)
                await delivery.ack()
                found.append(letter)
        piles.append(QueueLetters(queue=queue, count=count, letters=tuple(found)))
    return piles


async def _count(bus: Bus, swarm: str, queue: str) -> int:
    depth = await bus.depth(names.dead_letters(names.work_queue(swarm, queue)))
    return 0 if depth is None else depth.ready


async def _taken(bus: Bus, swarm: str, queue: str, count: int, *, hold: int) -> AsyncGenerator[Delivery, None]:
    """Take up to `count` deliveries; those that are not acknowledged go back at the end."""
    if not count:
        return
    consumer = await bus.consume(names.dead_letters(names.work_queue(swarm, queue)), prefetch=max(1, hold))
    try:
        given = aiter(consumer)
        for _ in range(count):
            try:
                async with asyncio.timeout(WAIT_S):
                    delivery = await anext(given)
            except (TimeoutError, StopAsyncIteration):
                return
            yield delivery
    finally:
        await consumer.close()
