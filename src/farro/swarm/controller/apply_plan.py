"""How a controller takes another plan: what it hears, the queues, and the end of what is no longer in it.

When it does so, and what it launches then, is decided in the controller.

The new plan is written together with who must go: a controller that dies, or loses its bus, before they are ended
ends them when it goes on. [test_who_left_the_plan_is_ended_though_the_controller_dies_in_between]
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from farro.documents import Document
from farro.errors import InputError
from farro.swarm import order
from farro.swarm import plan as plans
from farro.swarm.bus.port import Binding, Bus
from farro.swarm.controller import queues
from farro.swarm.controller.actions import Ground
from farro.swarm.controller.observed import Watch
from farro.swarm.controller.state import Kept
from farro.swarm.ledger import Entry
from farro.swarm.lifecycle import SwarmState
from farro.swarm.plan import Member, SwarmPlan
from farro.swarm.publish import Voice
from farro.swarm.wire import names
from farro.swarm.wire.names import Scope, Signal
from farro.worker.runtime import Runtime


class Applying:
    def __init__(self, ground: Ground, bus: Bus, runtime: Runtime, kept: Kept, watch: Watch, voice: Voice) -> None:
        self._ground = ground
        self._bus = bus
        self._runtime = runtime
        self._kept = kept
        self._watch = watch
        self._voice = voice

    async def resume(self) -> None:
        """The plan that a controller before us had: heard, and its queues there, whatever became of the bus."""
        if self._kept.plan is not None:
            await self._attend(self._kept.plan.members())
        if self._kept.plan is not None and self._kept.state not in (SwarmState.REMOVING, SwarmState.REMOVED):
            await queues.declare(self._bus, self._kept.plan)

    async def apply(self, entry: Entry) -> None:
        """The plan that a template brings."""
        data = (entry.args or {}).get("plan", entry.args)
        wanted = plans.load(Document(data, "swarm-template"))
        if wanted.id != self._ground.swarm:
            raise InputError(f"the plan is of {wanted.id}, and this is the controller of {self._ground.swarm}")
        kept = self._kept
        leaving = {**kept.leaving, **_leaving(kept.plan, wanted)}
        before = () if kept.plan is None else queues.work_queues(kept.plan)
        former = sorted({*kept.former, *before} - set(queues.work_queues(wanted)))
        kept.change(plan=wanted, leaving=leaving, former=former)
        await self.resume()
        await self.part()
        for text in order.order(wanted).warnings:
            await self._voice.warn(Signal.TEMPLATE, Scope(swarm=wanted.id), text, entry.correlations[0])

    async def part(self) -> None:
        """End who is no longer in the plan, or runs otherwise now; nobody speaks to those who are gone any more."""
        leaving, plan = self._kept.leaving, self._kept.plan
        if not leaving or plan is None:
            return
        await asyncio.to_thread(self._runtime.stop, sorted(leaving), plan.timeouts.stop)
        stay = {(one.instance, one.role) for one in plan.members()}
        queue = names.control_queue(names.CONTROLLER, self._ground.instance)
        for instance, role in leaving.items():
            self._watch.forget(instance)
            if (instance, role) not in stay:
                for key in names.component_keys(role, instance):
                    await self._bus.unbind(queue, Binding(names.CONTROL, key))
                await self._bus.delete(names.control_queue(role, instance))
        self._kept.change(leaving={})

    async def _attend(self, members: Iterable[Member]) -> None:
        """Hear of these components: never of another swarm's."""
        queue = names.control_queue(names.CONTROLLER, self._ground.instance)
        keys = [key for one in members for key in names.component_keys(one.role, one.instance)]
        await self._bus.declare(queue, [Binding(names.CONTROL, key) for key in keys])


def _leaving(before: SwarmPlan | None, wanted: SwarmPlan) -> dict[str, str]:
    """Who is not in the new plan, or runs otherwise there: instance → role."""
    if before is None:
        return {}
    old, new = plans.runs(before), plans.runs(wanted)
    return {one.instance: one.role for one in before.members() if old[one.instance] != new.get(one.instance)}
