"""Controllers under the orchestrator's care: launched, launched again when they die, ended when one must be silenced,
and removed when their swarm was.

Which swarms shall have one is written in their desired state; what commands do to that lives in commanding.
"""

from __future__ import annotations

import asyncio
import contextlib

from farro.errors import AlreadyRunning, FarroError
from farro.host import fs
from farro.host.clock import SystemClock
from farro.swarm import single_process
from farro.swarm.bus.port import Binding
from farro.swarm.files import controller
from farro.swarm.lifecycle import SwarmState
from farro.swarm.orchestrator.state import Realm
from farro.swarm.wire import names

FIRST_PAUSE_S, LAST_PAUSE_S = 0.5, 30.0  # before a controller that died is launched again, and again
STEADY_S = 60.0  # one that lived so long is not one that dies again and again
STOP_S = 5.0


class Tending:
    def __init__(self, realm: Realm) -> None:
        self._realm = realm
        self._deaths: dict[str, tuple[int, float]] = {}  # swarm → how many in a row, and when it may be launched again
        self._born_s: dict[str, float] = {}
        self._to_clean = {name for name, one in realm.swarms.items() if one.state is SwarmState.REMOVED}

    async def bind(self, swarm: str) -> None:
        """Hear it, and see to it that it will hear what is said to it before it is up."""
        await self._realm.bus.declare(self._realm.queue, self._realm.bindings(swarm))
        keys = names.controller_keys(swarm, controller(swarm))
        queue = names.control_queue(names.CONTROLLER, controller(swarm))
        await self._realm.bus.declare(queue, [Binding(names.CONTROL, key) for key in keys])

    async def launch(self, swarm: str) -> str | None:
        """Why it could not be; None: it runs."""
        realm = self._realm
        try:
            await asyncio.to_thread(realm.runtime.launch, realm.component(swarm))
        except AlreadyRunning:
            return None
        except (FarroError, OSError) as error:
            realm.trail(swarm).note("launch-failed", instance=controller(swarm), reason=str(error))
            return str(error)
        self._born_s[swarm] = realm.clock.monotonic_s()
        realm.trail(swarm).note("launched", instance=controller(swarm))
        return None

    def alive(self, swarm: str) -> bool | None:
        """None: it was never launched, or was removed."""
        seen = self._realm.runtime.look(controller(swarm))
        return None if seen is None else seen.alive

    async def tend(self, creating: set[str]) -> None:
        """Launch what died. Those of `creating` are left to their command."""
        now_s = self._realm.clock.monotonic_s()
        for swarm, desired in list(self._realm.swarms.items()):
            if not desired.there or swarm in creating or self.alive(swarm):
                continue
            count, not_before_s = self._deaths.get(swarm, (0, 0.0))
            if now_s < not_before_s:
                continue
            if now_s - self._born_s.get(swarm, now_s) > STEADY_S:
                count = 0
            self._deaths[swarm] = count + 1, now_s + min(LAST_PAUSE_S, FIRST_PAUSE_S * 2**count)
            self._realm.log("warning", "a controller was not there, and is launched", {"swarm": swarm})
            await self.launch(swarm)
        for swarm in list(self._to_clean):
            await self.clean(swarm)

    async def silence(self, swarm: str) -> None:
        """From here on the controller that lives now says nothing any more; another is launched by `tend`."""
        self._realm.trail(swarm).note("controller-ended", instance=controller(swarm), reason="it said nothing in time")
        # Not by the runtime: it would end what the controller started, too.
        gone = await asyncio.to_thread(single_process.kill, self._realm.place.of(swarm), SystemClock())
        if not gone:
            self._realm.log("error", "a controller that says nothing does not end", {"swarm": swarm})

    def removed(self, swarm: str) -> None:
        self._to_clean.add(swarm)

    async def clean(self, swarm: str) -> None:
        """The swarm was removed: its controller goes, and what it kept. The audit trail and the logs stay. Done again
        after a crash: every step finds the ones before it done."""
        realm = self._realm
        stopped = await asyncio.to_thread(realm.runtime.stop, [controller(swarm)], STOP_S)
        for binding in realm.bindings(swarm):
            await self._unbind(binding)
        await realm.bus.delete(names.control_queue(names.CONTROLLER, controller(swarm)))
        folder = realm.place.of(swarm)
        for name in ("controller.json", "commands.json", "given-up.json", "plan.json", "status.json"):
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(f"{folder}/{name}")
        if stopped:
            realm.trail(swarm).note("controller-removed", instance=controller(swarm))
        self._to_clean.discard(swarm)
        self._deaths.pop(swarm, None)

    async def _unbind(self, binding: Binding) -> None:
        await self._realm.bus.unbind(self._realm.queue, binding)
