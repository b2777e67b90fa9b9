"""Launch controllers, restart those that die, end one that must be silenced, and clean up after removed swarms.

The desired state of a swarm says whether it should have a controller.
"""

from __future__ import annotations

import asyncio
import contextlib

from farro.errors import AlreadyRunning, FarroError
from farro.host import fs
from farro.host.clock import SystemClock
from farro.swarm import processes
from farro.swarm.bus.port import Binding
from farro.swarm.files import controller_instance
from farro.swarm.lifecycle import SwarmState
from farro.swarm.orchestrator.state import OrchestratorContext
from farro.swarm.wire import names

FIRST_PAUSE_S, LAST_PAUSE_S = 0.5, 30.0  # before a controller that keeps dying is launched again
STEADY_S = 60.0  # a controller that lived this long does not keep dying
STOP_S = 5.0


class ControllerLauncher:
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
            if now_s - self._launched_s.get(swarm, now_s) > STEADY_S:
                count = 0
            self._deaths[swarm] = count + 1, now_s + min(LAST_PAUSE_S, FIRST_PAUSE_S * 2**count)
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
