"""The work queues of a swarm on its bus: made when a plan is applied, measured for the status, deleted with the swarm.

Their names live in swarm.names; what goes through them is the components'.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farro.errors import BusTrouble
from farro.swarm.bus.port import Binding, Bus
from farro.swarm.plan import SwarmPlan
from farro.swarm.wire import names


def _suffixes(plan: SwarmPlan) -> list[str]:
    return sorted({one for bee in plan.bees for one in (*bee.work.inputs, *bee.work.outputs)})


async def declare(bus: Bus, plan: SwarmPlan) -> None:
    exchange = names.work_exchange(plan.id)
    for suffix in _suffixes(plan):
        queue = names.work_queue(plan.id, suffix)
        await bus.declare(names.dead_letters(queue))
        await bus.declare(queue, [Binding(exchange, suffix)], dead_letters=names.dead_letters(queue))


def work_queues(plan: SwarmPlan) -> list[str]:
    return [names.work_queue(plan.id, suffix) for suffix in _suffixes(plan)]


async def drop(bus: Bus, plan: SwarmPlan, former: Sequence[str] = ()) -> None:
    """Removing is the one thing that deletes: work queues with what is in them, also those of plans before this one,
    and those of the components."""
    for queue in (*work_queues(plan), *former):
        await bus.delete(queue)
        await bus.delete(names.dead_letters(queue))
    for one in plan.members():
        await bus.delete(names.control_queue(one.role, one.instance))


async def depths(bus: Bus, plan: SwarmPlan) -> list[dict[str, Any]]:
    """Of the swarm's work queues, by name; what the bus does not tell is left out."""
    found = []
    for queue in work_queues(plan):
        try:
            depth, dead = await bus.depth(queue), await bus.depth(names.dead_letters(queue))
        except BusTrouble:
            continue
        if depth is not None:
            told = {"name": queue, "ready": depth.ready, "taken": depth.taken, "consumers": depth.consumers}
            told["deadLetters"] = 0 if dead is None else dead.ready
            found.append({name: value for name, value in told.items() if value is not None})
    return found
