"""Hold what the parts of an orchestrator share: files, bus, runtime, ledger, and the desired state of each swarm."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from farro.host import fs
from farro.host.clock import Clock
from farro.jobs.times import timestamp
from farro.lazy_dataclass import dataclass
from farro.log.structured import Log
from farro.swarm.audit import SwarmAudit
from farro.swarm.bus.port import Binding, Bus
from farro.swarm.files import ORCHESTRATOR, DesiredState, SwarmFiles, controller_instance, read_json
from farro.swarm.ledger import CommandLedger
from farro.swarm.lifecycle import SwarmState
from farro.swarm.publish import ControlPublisher
from farro.swarm.wire import names
from farro.swarm.wire.names import Scope, Signal
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
    ) -> None:
        files.make()
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
        """Return the bindings for a swarm: its controller's status and confirmations, never components' status."""
        instance, scope = controller_instance(swarm), Scope(swarm=swarm)
        keys = [names.controller_up_key(instance)]
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
