"""Apply a new plan: bindings, work queues, and the end of components that are no longer in it.

The new plan is written together with the components that must go. A controller that dies or loses its bus before they
are ended ends them when it resumes.
[test_components_that_left_the_plan_are_ended_after_a_crash]
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from farro.documents import Document
from farro.errors import BusTrouble, InputError
from farro.swarm import order
from farro.swarm import plan as plans
from farro.swarm.bus.port import Binding, Bus
from farro.swarm.controller.actions import ControllerContext
from farro.swarm.controller.observed import ComponentObserver
from farro.swarm.controller.state import ControllerState
from farro.swarm.ledger import LedgerEntry
from farro.swarm.lifecycle import SwarmState
from farro.swarm.plan import Member, SwarmPlan
from farro.swarm.publish import ControlPublisher
from farro.swarm.wire import names
from farro.swarm.wire.names import Scope, Signal
from farro.worker.runtime import Runtime


class PlanApplier:
    def __init__(
        self,
        context: ControllerContext,
        bus: Bus,
        runtime: Runtime,
        state: ControllerState,
        observer: ComponentObserver,
        publisher: ControlPublisher,
    ) -> None:
        self._context = context
        self._bus = bus
        self._runtime = runtime
        self._state = state
        self._observer = observer
        self._publisher = publisher

    async def resume(self) -> None:
        """Restore the bindings and queues of the current plan, in case the bus lost them."""
        if self._state.plan is not None:
            await self._bind(self._state.plan.members())
        if self._state.plan is not None and self._state.state not in (SwarmState.REMOVING, SwarmState.REMOVED):
            await declare_queues(self._bus, self._state.plan)

    async def apply(self, entry: LedgerEntry) -> None:
        """Apply the plan of a swarm-template command."""
        data = (entry.args or {}).get("plan", entry.args)
        plan = plans.load(Document(data, "swarm-template"))
        if plan.id != self._context.swarm:
            raise InputError(f"the plan is of {plan.id}, and this is the controller of {self._context.swarm}")
        state = self._state
        leaving = {**state.leaving, **_leaving(state.plan, plan)}
        before = () if state.plan is None else work_queues(state.plan)
        former = sorted({*state.former, *before} - set(work_queues(plan)))
        state.change(plan=plan, leaving=leaving, former=former)
        await self.resume()
        await self.end_leaving()
        for text in order.start_order(plan).warnings:
            await self._publisher.warn(Signal.TEMPLATE, Scope(swarm=plan.id), text, entry.correlations[0])

    async def end_leaving(self) -> None:
        """Stop the components that are no longer in the plan or run differently, and delete unused queues."""
        leaving, plan = self._state.leaving, self._state.plan
        if not leaving or plan is None:
            return
        await asyncio.to_thread(self._runtime.stop, sorted(leaving), plan.timeouts.stop)
        stay = {(one.instance, one.role) for one in plan.members()}
        queue = names.control_queue(names.CONTROLLER, self._context.instance)
        for instance, role in leaving.items():
            self._observer.forget(instance)
            if (instance, role) not in stay:
                for key in names.component_keys(role, instance):
                    await self._bus.unbind(queue, Binding(names.CONTROL, key))
                await self._bus.delete(names.control_queue(role, instance))
        self._state.change(leaving={})

    async def _bind(self, members: Iterable[Member]) -> None:
        """Receive the messages of these components, never those of another swarm."""
        queue = names.control_queue(names.CONTROLLER, self._context.instance)
        keys = [key for one in members for key in names.component_keys(one.role, one.instance)]
        await self._bus.declare(queue, [Binding(names.CONTROL, key) for key in keys])


def _leaving(before: SwarmPlan | None, plan: SwarmPlan) -> dict[str, str]:
    """Return the components that the new plan drops or runs differently: instance → role."""
    if before is None:
        return {}
    old, new = plans.runs(before), plans.runs(plan)
    return {one.instance: one.role for one in before.members() if old[one.instance] != new.get(one.instance)}


# --- work queues ---


def _suffixes(plan: SwarmPlan) -> list[str]:
    return sorted({one for bee in plan.bees for one in (*bee.work.inputs, *bee.work.outputs)})


async def declare_queues(bus: Bus, plan: SwarmPlan) -> None:
    exchange = names.work_exchange(plan.id)
    for suffix in _suffixes(plan):
        queue = names.work_queue(plan.id, suffix)
        await bus.declare(names.dead_letters(queue))
        await bus.declare(queue, [Binding(exchange, suffix)], dead_letters=names.dead_letters(queue))


def work_queues(plan: SwarmPlan) -> list[str]:
    return [names.work_queue(plan.id, suffix) for suffix in _suffixes(plan)]


async def delete_queues(bus: Bus, plan: SwarmPlan, former: Sequence[str] = ()) -> None:
    """Delete the work queues with their items, those of earlier plans (`former`), and the components' own queues."""
    for queue in (*work_queues(plan), *former):
        await bus.delete(queue)
        await bus.delete(names.dead_letters(queue))
    for one in plan.members():
        await bus.delete(names.control_queue(one.role, one.instance))


async def queue_depths(bus: Bus, plan: SwarmPlan) -> list[dict[str, Any]]:
    """Measure the work queues, by name; values that the bus does not know are left out."""
    found = []
    for queue in work_queues(plan):
        try:
            depth, dead = await bus.depth(queue), await bus.depth(names.dead_letters(queue))
        except BusTrouble:
            continue
        if depth is not None:
            line = {"name": queue, "ready": depth.ready, "taken": depth.taken, "consumers": depth.consumers}
            line["deadLetters"] = 0 if dead is None else dead.ready
            found.append({name: value for name, value in line.items() if value is not None})
    return found
