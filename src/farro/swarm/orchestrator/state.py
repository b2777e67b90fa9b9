"""What an orchestrator works with: its files, its bus and queue, its runtime, and what it wants of each swarm.

What it does lives in orchestrator (hearing, turns), commanding (commands) and tending (controllers).
"""

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
from farro.swarm.audit import Trail
from farro.swarm.bus.port import Binding, Bus
from farro.swarm.files import ORCHESTRATOR, Desired, Place, controller, read_json
from farro.swarm.ledger import CommandLedger
from farro.swarm.lifecycle import SwarmState
from farro.swarm.publish import Voice
from farro.swarm.wire import names
from farro.swarm.wire.names import Scope, Signal
from farro.worker.runtime import Component, Runtime

ORIGIN = "orchestrator"
SENT = (Signal.TEMPLATE, Signal.START, Signal.STOP, Signal.REMOVE)  # to controllers, who confirm them


@dataclass(frozen=True, kw_only=True, slots=True)
class Launching:
    """How controllers are started."""

    program: tuple[str, ...]  # how farro is started here
    root: str
    env: Mapping[str, str]


class Realm:
    """Invariant: `swarms` is what desired.json of each says; both change through `keep` alone."""

    def __init__(
        self, place: Place, bus: Bus, runtime: Runtime, how: Launching, *, log: Log, clock: Clock, durable: bool = True
    ) -> None:
        place.make()
        self.place = place
        self.bus = bus
        self.runtime = runtime
        self.how = how
        self.log = log
        self.clock = clock
        self.ledger = CommandLedger(place.ledger, durable=durable)
        self.voice = Voice(bus, self.now)
        self.queue = names.control_queue(ORCHESTRATOR, _own_instance(place))
        found = {name: place.desired(name) for name in place.swarms()}
        self.swarms: dict[str, Desired] = {name: one for name, one in found.items() if one is not None}
        self._trails: dict[str | None, Trail] = {}

    def now(self) -> str:
        return timestamp(self.clock.now())

    def state(self, swarm: str) -> SwarmState:
        desired = self.swarms.get(swarm)
        return SwarmState.NEW if desired is None else desired.state

    def keep(self, swarm: str, **changes: Any) -> Desired:
        """Durable when this returns."""
        at = self.now()
        before = self.swarms.get(swarm) or Desired(
            swarm=swarm, state=SwarmState.NEW, controller=controller(swarm), created_at=at, changed_at=at
        )
        after = replace(before, **changes)
        if after != before or swarm not in self.swarms:
            after.changed_at = at
            self.place.keep(after)
            self.swarms[swarm] = after
        return after

    def trail(self, swarm: str | None) -> Trail:
        """Of a swarm; None, or one that was never there: the orchestrator's own."""
        if swarm is not None and swarm not in self.swarms:
            swarm = None
        if swarm not in self._trails:
            folder = self.place.orchestrator if swarm is None else self.place.of(swarm)
            self._trails[swarm] = Trail(folder, ORIGIN, self.now, self.log)
        return self._trails[swarm]

    def component(self, swarm: str) -> Component:
        """The controller of a swarm, to launch."""
        name = controller(swarm)
        return Component(
            name=name,
            argv=(*self.how.program, "controller", swarm, "--root", self.how.root),
            env=self.how.env,
            cwd=self.how.root,
            log=f"{self.place.of(swarm)}/logs/{name}.log",
        )

    def bindings(self, swarm: str) -> list[Binding]:
        """What is heard of a swarm: its controller's word, and the ends of commands. Never its components' status."""
        instance, about = controller(swarm), Scope(swarm=swarm)
        keys = [names.controller_up_key(instance)]
        keys += [names.status_key(kind, names.CONTROLLER, instance) for kind in ("status-full", "status-delta")]
        keys += [names.event_key(outcome, one, about) for one in SENT for outcome in ("ready", "error", "warning")]
        return [Binding(names.CONTROL, key) for key in keys]

    async def request_status(self, swarm: str) -> str:
        """Ask a controller how its swarm is; the correlation id that its answer will bear."""
        correlation = str(uuid.uuid4())
        scope = Scope(swarm=swarm, role=names.CONTROLLER, instance=controller(swarm))
        await self.voice.signal(Signal.STATUS, scope, None, origin=ORIGIN, correlation_id=correlation)
        return correlation


def _own_instance(place: Place) -> str:
    """The same for this root for ever: a broker may serve several, and each hears its own."""
    path = f"{place.orchestrator}/about.json"
    told = read_json(path)
    if isinstance(told, dict) and isinstance(told.get("instance"), str):
        return names.check_name(told["instance"], "instance")
    made = f"queen-{uuid.uuid4().hex[:12]}"
    fs.write_atomic(path, f'{{"instance": "{made}"}}\n'.encode(), sync=True)
    return made
