"""Hold what the parts of an orchestrator share (files, bus, runtime, ledger, the desired state of each swarm), and keep
the controllers running."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Mapping
from typing import Any

from farro.config.settings import ForeignSignals
from farro.errors import AlreadyRunning, FarroError
from farro.host import fs
from farro.host.clock import Clock, SystemClock
from farro.jobs.times import timestamp
from farro.lazy_dataclass import dataclass, replace
from farro.log.structured import Log
from farro.swarm import processes
from farro.swarm.bus.port import Binding, Bus
from farro.swarm.files import ORCHESTRATOR, DesiredState, SwarmFiles, controller_instance, read_json
from farro.swarm.ledger import CommandLedger
from farro.swarm.lifecycle import SwarmState
from farro.swarm.publish import ControlPublisher, SwarmAudit
from farro.swarm.wire import names
from farro.swarm.wire.names import Scope, Signal
from farro.worker import restarts
from farro.worker.runtime import ProcessSpec, Runtime

ORIGIN = "orchestrator"
CONFIRMED_BY_CONTROLLERS = (Signal.TEMPLATE, Signal.START, Signal.STOP, Signal.REMOVE)


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchOptions:
    """The parameters for starting controllers."""

    program: tuple[str, ...]  # the command that starts farro here
    root: str
    env: Mapping[str, str]


class OrchestratorContext:
    """Invariant: `swarms` equals desired.json of each swarm; both change only through `change`."""

    def __init__(
        self,
        files: SwarmFiles,
        bus: Bus,
        runtime: Runtime,
        launch_options: LaunchOptions,
        *,
        log: Log,
        clock: Clock,
        durable: bool = True,
        foreign_signals: ForeignSignals = "refuse",
    ) -> None:
        files.make()
        self.foreign_signals = foreign_signals
        self.files = files
        self.bus = bus
        self.runtime = runtime
        self.launch_options = launch_options
        self.log = log
        self.clock = clock
        self.ledger = CommandLedger(files.ledger, durable=durable)
        self.publisher = ControlPublisher(bus, self.now)
        self.queue = names.control_queue(ORCHESTRATOR, _own_instance(files))
        found = {name: files.desired(name) for name in files.swarms()}
        self.swarms: dict[str, DesiredState] = {name: one for name, one in found.items() if one is not None}
        self._audits: dict[str | None, SwarmAudit] = {}

    def now(self) -> str:
        return timestamp(self.clock.now())

    def state(self, swarm: str) -> SwarmState:
        desired = self.swarms.get(swarm)
        return SwarmState.NEW if desired is None else desired.state

    def change(self, swarm: str, **changes: Any) -> DesiredState:
        """Change the desired state of a swarm. It is durable when this returns."""
        at = self.now()
        before = self.swarms.get(swarm) or DesiredState(
            swarm=swarm, state=SwarmState.NEW, controller=controller_instance(swarm), created_at=at, changed_at=at
        )
        after = replace(before, **changes)
        if after != before or swarm not in self.swarms:
            after.changed_at = at
            self.files.write_desired(after)
            self.swarms[swarm] = after
        return after

    def audit(self, swarm: str | None) -> SwarmAudit:
        """Return the audit log of a swarm; the orchestrator's own for None and for unknown swarms."""
        if swarm is not None and swarm not in self.swarms:
            swarm = None
        if swarm not in self._audits:
            folder = self.files.orchestrator if swarm is None else self.files.swarm_folder(swarm)
            self._audits[swarm] = SwarmAudit(folder, ORIGIN, self.now, self.log)
        return self._audits[swarm]

    def controller_spec(self, swarm: str) -> ProcessSpec:
        """Describe the process of a swarm's controller."""
        name, options = controller_instance(swarm), self.launch_options
        return ProcessSpec(
            name=name,
            argv=(*options.program, "controller", swarm, "--root", options.root),
            env=options.env,
            cwd=options.root,
            log=f"{self.files.swarm_folder(swarm)}/logs/{name}.log",
        )

    def bindings(self, swarm: str) -> list[Binding]:
        """Return the bindings for a swarm: its controller's status, confirmations and questions, never components'
        status."""
        instance, scope = controller_instance(swarm), Scope(swarm=swarm)
        keys = [names.controller_up_key(instance), names.question_key(instance)]
        keys += [names.status_key(kind, names.CONTROLLER, instance) for kind in ("status-full", "status-delta")]
        for signal in CONFIRMED_BY_CONTROLLERS:
            keys += [names.event_key(outcome, signal, scope) for outcome in ("ready", "error", "warning")]
        return [Binding(names.CONTROL, key) for key in keys]

    async def request_status(self, swarm: str) -> str:
        """Ask a controller for its status, and return the correlation id of the answer."""
        correlation = str(uuid.uuid4())
        scope = Scope(swarm=swarm, role=names.CONTROLLER, instance=controller_instance(swarm))
        await self.publisher.signal(Signal.STATUS, scope, None, origin=ORIGIN, correlation_id=correlation)
        return correlation


def _own_instance(files: SwarmFiles) -> str:
    """Return the instance name of this root's orchestrator. It never changes, since one broker may serve several."""
    path = f"{files.orchestrator}/about.json"
    data = read_json(path)
    if isinstance(data, dict) and isinstance(data.get("instance"), str):
        return names.check_name(data["instance"], "instance")
    made = f"queen-{uuid.uuid4().hex[:12]}"
    fs.write_atomic(path, f'{{"instance": "{made}"}}\n'.encode(), sync=True)
    return made


# --- controllers ---

STOP_S = 5.0


class ControllerLauncher:
    """Launch controllers, restart those that die, end one that must be silenced, and clean up after removed swarms.

    The desired state of a swarm says whether it should have a controller.
    """

    def __init__(self, context: OrchestratorContext) -> None:
        self._context = context
        self._deaths: dict[str, tuple[int, float]] = {}  # swarm → deaths in a row, and the time of the next launch
        self._launched_s: dict[str, float] = {}
        self._to_clean = {name for name, one in context.swarms.items() if one.state is SwarmState.REMOVED}

    async def bind(self, swarm: str) -> None:
        """Declare the queues of both sides, so that signals sent before the controller is up are not lost."""
        await self._context.bus.declare(self._context.queue, self._context.bindings(swarm))
        keys = names.controller_keys(swarm, controller_instance(swarm))
        queue = names.control_queue(names.CONTROLLER, controller_instance(swarm))
        await self._context.bus.declare(queue, [Binding(names.CONTROL, key) for key in keys])

    async def launch(self, swarm: str) -> str | None:
        """Launch a controller. Return why that failed, or None if it runs."""
        context = self._context
        try:
            await asyncio.to_thread(context.runtime.launch, context.controller_spec(swarm))
        except AlreadyRunning:
            return None
        except (FarroError, OSError) as error:
            context.audit(swarm).note("launch-failed", instance=controller_instance(swarm), reason=str(error))
            return str(error)
        self._launched_s[swarm] = context.clock.monotonic_s()
        context.audit(swarm).note("launched", instance=controller_instance(swarm))
        return None

    def alive(self, swarm: str) -> bool | None:
        """Return whether a controller runs; None if it was never launched, or was removed."""
        seen = self._context.runtime.look(controller_instance(swarm))
        return None if seen is None else seen.alive

    async def run_once(self, creating: set[str]) -> None:
        """Restart dead controllers, except those in `creating`, which a command launches; clean up removed swarms."""
        now_s = self._context.clock.monotonic_s()
        for swarm, desired in list(self._context.swarms.items()):
            if not desired.there or swarm in creating or self.alive(swarm):
                continue
            count, not_before_s = self._deaths.get(swarm, (0, 0.0))
            if now_s < not_before_s:
                continue
            if now_s - self._launched_s.get(swarm, now_s) > restarts.STEADY_S:
                count = 0
            self._deaths[swarm] = count + 1, now_s + restarts.pause_s(count + 2)
            self._context.log("warning", "a controller was not running and is launched", {"swarm": swarm})
            await self.launch(swarm)
        for swarm in list(self._to_clean):
            await self.clean(swarm)

    async def silence(self, swarm: str) -> None:
        """Kill the current controller, so that it confirms nothing any more. `run_once` launches another."""
        instance = controller_instance(swarm)
        self._context.audit(swarm).note("controller-ended", instance=instance, reason="it said nothing in time")
        # Not by the runtime, which would also end the components that the controller started.
        gone = await asyncio.to_thread(processes.kill_holder, self._context.files.swarm_folder(swarm), SystemClock())
        if not gone:
            self._context.log("error", "a silent controller cannot be killed", {"swarm": swarm})

    def removed(self, swarm: str) -> None:
        self._to_clean.add(swarm)

    async def clean(self, swarm: str) -> None:
        """Remove the controller of a removed swarm and its files; the audit log and the logs stay.

        Safe to repeat after a crash.
        """
        context = self._context
        stopped = await asyncio.to_thread(context.runtime.stop, [controller_instance(swarm)], STOP_S)
        for binding in context.bindings(swarm):
            await context.bus.unbind(context.queue, binding)
        await context.bus.delete(names.control_queue(names.CONTROLLER, controller_instance(swarm)))
        folder = context.files.swarm_folder(swarm)
        for name in ("controller.json", "commands.json", "given-up.json", "plan.json", "status.json"):
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(f"{folder}/{name}")
        if stopped:
            context.audit(swarm).note("controller-removed", instance=controller_instance(swarm))
        self._to_clean.discard(swarm)
        self._deaths.pop(swarm, None)
