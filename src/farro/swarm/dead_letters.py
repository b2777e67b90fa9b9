"""Dead letters of a swarm: items that its components could not work. Looking at them, sending them again, dropping
them.

Who makes a dead letter of an item lives in component.working; the queues' names live in swarm.names.

All of it is done as a consumer of the bus: what is taken and not settled goes back, also when whoever looks is killed.
So looking changes nothing, and sending again is: into the work queue first, then out of the dead letters. Who dies in
between has sent it twice, under the same message id. [test_looking_at_dead_letters_changes_nothing]
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from typing import Literal

from farro.errors import InputError
from farro.lazy_dataclass import dataclass
from farro.swarm.bus.port import Bus, Delivery, Message
from farro.swarm.plan import SwarmPlan
from farro.swarm.wire import names

Verb = Literal["resend", "drop"]
WAIT_S = 5.0  # for one that was counted: another may have taken it
HELD = 10_000  # letters that are held at once, while some of them are looked for
_BATCH = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Pile:
    """The dead letters of one queue. `letters`: the first of them, or those that something was done about."""

    queue: str  # as the plan calls it
    count: int
    letters: tuple[Message, ...] = ()


def queues(plan: SwarmPlan, named: str | None = None) -> list[str]:
    """The queues of a swarm, or that one, by whichever of its names. InputError: it has no such queue."""
    known = sorted({one for bee in plan.bees for one in (*bee.work.inputs, *bee.work.outputs)})
    if named is None:
        return known
    for one in known:
        if named in (one, whole := names.work_queue(plan.id, one), names.dead_letters(whole)):
            return [one]
    there = f"it has {', '.join(known)}" if known else "its components read and write none"
    raise InputError(f"swarm {plan.id} has no queue {named[:100]}; {there}")


async def look(bus: Bus, swarm: str, wanted: Sequence[str], limit: int) -> list[Pile]:
    """The first letters of each queue; they stay where they are."""
    piles = []
    for queue in wanted:
        count = await _count(bus, swarm, queue)
        async with aclosing(_taken(bus, swarm, queue, min(count, limit), hold=limit)) as given:
            found = [one.message async for one in given]
        piles.append(Pile(queue=queue, count=count, letters=tuple(found)))
    return piles


async def settle(bus: Bus, swarm: str, wanted: Sequence[str], verb: Verb, *, only: Collection[str] = ()) -> list[Pile]:
    """Send them again, or drop them: all that are there now, or those with the ids in `only`. What fails again while
    this goes on is not sent once more."""
    piles = []
    for queue in wanted:
        if verb == "resend" and await bus.depth(names.work_queue(swarm, queue)) is None:
            raise InputError(f"the queue {queue} of swarm {swarm} is not on the bus: what is sent there would be lost")
        count, found = await _count(bus, swarm, queue), []
        hold = min(count, HELD) if only else _BATCH
        async with aclosing(_taken(bus, swarm, queue, min(count, HELD) if only else count, hold=hold)) as given:
            async for delivery in given:
                letter = delivery.message
                if only and letter.message_id not in only:
                    continue  # held until the end: else it would come again at once
                if verb == "resend":
                    fresh = Message(key=queue, body=letter.body, message_id=letter.message_id, headers=letter.headers)
                    await bus.publish(names.work_exchange(swarm), fresh)
                await delivery.ack()
                found.append(letter)
        piles.append(Pile(queue=queue, count=count, letters=tuple(found)))
    return piles


async def _count(bus: Bus, swarm: str, queue: str) -> int:
    depth = await bus.depth(names.dead_letters(names.work_queue(swarm, queue)))
    return 0 if depth is None else depth.ready


async def _taken(bus: Bus, swarm: str, queue: str, count: int, *, hold: int) -> AsyncGenerator[Delivery, None]:
    """So many deliveries; those that are not settled go back at the end."""
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
