"""Act on components: start them, ask them to work or to stop, poll their health, end them, and apply a new plan.

A new plan is written together with the components that must go. A controller that dies or loses its bus before they are
ended ends them when it resumes. [test_components_that_left_the_plan_are_ended_after_a_crash]
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from farro.config.settings import ForeignSignals
from farro.documents import Document
from farro.errors import AlreadyRunning, BusTrouble, FarroError, InputError
from farro.lazy_dataclass import dataclass, replace
from farro.swarm import plan as plans
from farro.swarm.bus.port import Binding, Bus
from farro.swarm.component.declare import ComponentEnvironment
from farro.swarm.controller.confirmations import Confirmations
from farro.swarm.controller.observed import ComponentObserver
from farro.swarm.controller.state import ControllerState
from farro.swarm.ledger import LedgerEntry
from farro.swarm.lifecycle import Observation, SwarmState
from farro.swarm.plan import Bee, Member, SwarmPlan
from farro.swarm.publish import ControlPublisher, SwarmAudit
from farro.swarm.reconcile import ComponentAction
from farro.swarm.wire import names
from farro.swarm.wire.messages import ControlSignal
from farro.swarm.wire.names import Scope, Signal
from farro.worker import restarts
from farro.worker.runtime import ComponentLimits, ProcessSpec, ProcessView, Runtime

ORIGIN = "controller"  # of signals


@dataclass(frozen=True, kw_only=True)
class ControllerContext:
    """The parameters of a controller at its start."""

    swarm: str
    instance: str
    bus_address: str
    folder: str  # swarms/<id>: its own files, and the logs of its components
    cwd: str
    env: Mapping[str, str]
    foreign_signals: ForeignSignals = "refuse"  # lifecycle signals that the orchestrator did not send


class ComponentActions:
    def __init__(
        self,
        context: ControllerContext,
        bus: Bus,
        runtime: Runtime,
        state: ControllerState,
        observer: ComponentObserver,
        confirmations: Confirmations,
        publisher: ControlPublisher,
        audit: SwarmAudit,
    ) -> None:
        self._context = context
        self._confirmations = confirmations
        self._bus = bus
        self._runtime = runtime
        self._state = state
        self._observer = observer
        self._publisher = publisher
        self._audit = audit
        self._polls: set[asyncio.Task[None]] = set()

    async def do(self, member: Member, action: ComponentAction, now_s: float) -> None:
        """Do what `reconcile` decided for one component. The other actions are done for many at once."""
        match action.what:
            case "launch":
                await self.launch(member, now_s)
            case "poll":
                self.poll(action.instance, now_s)
            case "force":
                await asyncio.to_thread(self._runtime.stop, [action.instance], 0.0)
                self._audit.note("forced", instance=action.instance)
                seen = self._observer.of(action.instance)
                ended = replace(seen, alive=False, launched=False, enabled=False, forced=True)
                self._observer.put(action.instance, ended)
            case "enable" | "disable" | "deprovision":
                pass

    async def launch(self, member: Member, now_s: float) -> None:
        """Start a component; one that died only if its restart policy says so."""
        assert self._state.plan is not None
        bee, instance = self._state.plan.bees[member.bee], member.instance
        seen = self._observer.of(instance)
        if seen.launched and not seen.alive and seen.starts and not self._may_restart(bee, instance, seen, now_s):
            return
        began = self._publisher.now()
        try:
            made: ProcessView | None = await asyncio.to_thread(self._runtime.launch, self._process_spec(bee, instance))
            self._observer.launching(instance, began)
        except AlreadyRunning:
            made = self._runtime.look(instance)
        except (FarroError, OSError) as error:
            why = str(error).removeprefix(f"{instance} ")  # every report of it names the instance
            why = why if why != str(error) else f"could not be started: {error}"
            self._observer.put(instance, replace(seen, failure=why))
            self._audit.note("launch-failed", instance=instance, reason=str(error))
            return
        launches = seen.launches + 1 if made is None else made.launches
        self._audit.note("launched", instance=instance, starts=launches)
        started = replace(seen, launched=True, alive=True, launched_s=now_s, starts=seen.starts + 1, healthy=None)
        started = replace(started, ended_s=None, exit_code=None, launches=launches)
        self._observer.put(instance, replace(started, enabled=None, reported_s=None, asked_s=None))

    def _may_restart(self, bee: Bee, instance: str, seen: Observation, now_s: float) -> bool:
        """Return whether a dead component is started again now; if never again, note why."""
        ended_s = now_s if seen.ended_s is None else seen.ended_s
        decision = restarts.decide(
            bee.restart, starts=seen.starts, exit_code=seen.exit_code, ended_s=ended_s, now_s=now_s
        )
        if decision.what == "failed":
            why = f"{decision.why}; {self._log_hint(instance, seen.end_log)}"
            self._observer.put(instance, replace(seen, failure=why))
        elif decision.what == "finished":
            self._observer.put(instance, replace(seen, finished=decision.why))
        return decision.what == "launch"

    def _process_spec(self, bee: Bee, instance: str) -> ProcessSpec:
        environment = ComponentEnvironment(
            bus=self._context.bus_address,
            swarm=self._context.swarm,
            role=bee.role,
            instance=instance,
            inputs=bee.work.inputs,
            outputs=bee.work.outputs,
            config={**bee.config, **self._state.config_of(instance)},
        )
        command = bee.command or ()
        if command and command[0] == "python":
            command = (sys.executable, *command[1:])
        return ProcessSpec(
            name=instance,
            argv=tuple(command),
            env={**self._context.env, **bee.env, **environment.to_env()},
            cwd=self._context.cwd,
            log=self._log(instance),
            image=bee.image,
            limits=ComponentLimits(memory_bytes=bee.limits.memory_bytes, cpu_s=bee.limits.cpu_s),
        )

    async def end_hung(self, instance: str, silence_s: float) -> None:
        """Kill a component that lives and reports nothing. Its restart policy then decides as after any other end."""
        why = f"said nothing for {silence_s:.0f} s"
        self._audit.note("hung", instance=instance, reason=why)
        self._observer.put(instance, replace(self._observer.of(instance), hung=why))
        await asyncio.to_thread(self._runtime.kill, instance)

    def _log(self, instance: str) -> str:
        return f"{self._context.folder}/logs/{instance}.log"

    def _log_hint(self, instance: str, last_line: str | None) -> str:
        """Return where the log of a failed component is, with its last line."""
        where = os.path.relpath(self._log(instance), self._context.cwd)
        return f"{where} ends with: {last_line}" if last_line else f"its log: {where}"

    async def ask(self, asks: Sequence[tuple[Member, bool]], now_s: float) -> None:
        """Ask components to work (True), or to stop working. Each signal is noted first, and confirmed like others."""
        signals = []
        for member, enabled in asks:
            correlation_id = str(uuid.uuid4())
            signal = ControlSignal(
                correlation_id=correlation_id,
                idempotency_key=correlation_id,
                signal=Signal.CONFIG.value,
                swarm_id=self._context.swarm,
                role=member.role,
                instance=member.instance,
                args={"enabled": enabled},
            )
            signals.append(signal)
        self._confirmations.begin_own(signals)

        async def send(one: ControlSignal) -> None:
            correlation_id = one.correlation_id
            await self._publisher.signal(
                Signal.CONFIG, one.scope, one.args, origin=ORIGIN, correlation_id=correlation_id
            )
            self._observer.put(str(one.instance), replace(self._observer.of(str(one.instance)), asked_s=now_s))

        await asyncio.gather(*map(send, signals))

    async def request_status(self, member: Member) -> None:
        scope = Scope(swarm=self._context.swarm, role=member.role, instance=member.instance)
        await self._publisher.signal(Signal.STATUS, scope, None, origin=ORIGIN, correlation_id=str(uuid.uuid4()))

    def poll(self, instance: str, now_s: float) -> None:
        task = asyncio.create_task(self._observer.poll(instance, now_s))
        self._polls.add(task)
        task.add_done_callback(self._polls.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._polls, return_exceptions=True)

    # --- a new plan ---

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
        for text in plans.start_order(plan).warnings:
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


async def declare_queues(bus: Bus, plan: SwarmPlan) -> None:
    exchange = names.work_exchange(plan.id)
    for suffix in plan.queues():
        queue = names.work_queue(plan.id, suffix)
        await bus.declare(names.dead_letters(queue))
        await bus.declare(queue, [Binding(exchange, suffix)], dead_letters=names.dead_letters(queue))


def work_queues(plan: SwarmPlan) -> list[str]:
    return [names.work_queue(plan.id, suffix) for suffix in plan.queues()]


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
