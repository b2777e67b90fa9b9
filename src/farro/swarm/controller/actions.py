"""Act on components: start them, ask them to work or to stop, poll their health, and end them."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from farro.errors import AlreadyRunning, FarroError
from farro.lazy_dataclass import dataclass
from farro.swarm.audit import SwarmAudit
from farro.swarm.component.environment import ComponentEnvironment
from farro.swarm.controller import restarts
from farro.swarm.controller.observed import ComponentObserver
from farro.swarm.plan import Bee, Member, SwarmPlan
from farro.swarm.publish import ControlPublisher
from farro.swarm.reconcile import ComponentAction
from farro.swarm.status import Observation
from farro.swarm.wire.names import Scope, Signal
from farro.worker.runtime import ComponentLimits, ProcessSpec, ProcessView, Runtime

ORIGIN = "controller"  # of signals: a controller does not confirm its own


@dataclass(frozen=True, kw_only=True)
class ControllerContext:
    """The parameters of a controller at its start."""

    swarm: str
    instance: str
    bus_address: str
    folder: str  # swarms/<id>: its own files, and the logs of its components
    cwd: str
    env: Mapping[str, str]


class ComponentActions:
    """`config_of` returns the config values of a component that updates changed since the plan."""

    def __init__(
        self,
        context: ControllerContext,
        runtime: Runtime,
        observer: ComponentObserver,
        publisher: ControlPublisher,
        audit: SwarmAudit,
        config_of: Callable[[str], Mapping[str, Any]],
    ) -> None:
        self._context = context
        self._runtime = runtime
        self._observer = observer
        self._publisher = publisher
        self._audit = audit
        self._config_of = config_of
        self._polls: set[asyncio.Task[None]] = set()

    async def do(self, plan: SwarmPlan, member: Member, action: ComponentAction, now_s: float) -> None:
        """Do what `reconcile` decided, except `deprovision`, which the controller does for all at once."""
        match action.what:
            case "launch":
                await self.launch(plan, member, now_s)
            case "enable" | "disable":
                await self.ask(member, action.what == "enable", now_s)
            case "poll":
                self.poll(action.instance, now_s)
            case "force":
                await asyncio.to_thread(self._runtime.stop, [action.instance], 0.0)
                self._audit.note("forced", instance=action.instance)
                seen = self._observer.of(action.instance)
                ended = replace(seen, alive=False, launched=False, enabled=False, forced=True)
                self._observer.put(action.instance, ended)
            case "deprovision":
                pass

    async def launch(self, plan: SwarmPlan, member: Member, now_s: float) -> None:
        """Start a component; one that died only if its restart policy says so."""
        bee, instance = plan.bees[member.bee], member.instance
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
            config={**bee.config, **self._config_of(instance)},
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

    async def ask(self, member: Member, enabled: bool, now_s: float) -> None:
        """Ask a component to work, or to stop working."""
        instance = member.instance
        scope = Scope(swarm=self._context.swarm, role=member.role, instance=instance)
        correlation = str(uuid.uuid4())
        self._audit.note("sent", correlation, signal=Signal.CONFIG.value, scope=scope.words, enabled=enabled)
        args = {"enabled": enabled}
        await self._publisher.signal(Signal.CONFIG, scope, args, origin=ORIGIN, correlation_id=correlation)
        self._observer.put(instance, replace(self._observer.of(instance), asked_s=now_s))

    async def request_status(self, member: Member) -> None:
        scope = Scope(swarm=self._context.swarm, role=member.role, instance=member.instance)
        await self._publisher.signal(Signal.STATUS, scope, None, origin=ORIGIN, correlation_id=str(uuid.uuid4()))

    def poll(self, instance: str, now_s: float) -> None:
        task = asyncio.create_task(self._observer.poll(instance, now_s))
        self._polls.add(task)
        task.add_done_callback(self._polls.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._polls, return_exceptions=True)


def environment(keep: Collection[str] = ()) -> dict[str, str]:
    """Return the environment that components inherit: without FARRO_ variables, except the names in `keep`."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FARRO_") or name in keep}
