"""A controller looks after its orchestrator: one that died is launched again. Controllers are looked after by it.

What an orchestrator is launched as lives in operations.swarm_service.

One that was stopped has no record any more, and stays so; one that died left its record. It must be dead at two looks:
whoever is just stopping it does not mean its death. [test_an_orchestrator_that_died_is_launched_again]
"""

from __future__ import annotations

import asyncio

from farro.errors import FarroError
from farro.host.clock import Clock
from farro.log.structured import Log
from farro.swarm import orchestrator_process, requests
from farro.worker.runtime import Component, Runtime

LOOK_S = 5.0
LONGEST_S = 300.0  # between two launches of one that dies again and again
STEADY_S = 600.0  # who lived so long is not such a one


class Guard:
    def __init__(self, runtime: Runtime, wanted: Component, place: str, clock: Clock, log: Log) -> None:
        self._runtime = runtime
        self._wanted = wanted
        self._place = place
        self._clock = clock
        self._log = log
        self._dead = False  # when it was last looked
        self._launched_s: float | None = None
        self._pause_s = 0.0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        dead, self._dead = self._dead, self._is_dead()
        now_s = self._clock.monotonic_s()
        since_s = None if self._launched_s is None else now_s - self._launched_s
        if not (dead and self._dead) or (since_s is not None and since_s < self._pause_s):
            return
        again = since_s is not None and since_s < STEADY_S
        self._launched_s, self._pause_s = now_s, min(LONGEST_S, max(LOOK_S, 2 * self._pause_s)) if again else LOOK_S
        try:
            started = orchestrator_process.ensure(self._runtime, self._wanted, self._clock)
        except (FarroError, OSError) as error:
            self._log("error", f"the orchestrator died, and cannot be launched: {error}", {})
        else:
            if started is not None:
                self._log("warning", "the orchestrator died, and was launched again", {"pid": started.pid})

    def _is_dead(self) -> bool:
        seen = self._runtime.look(self._wanted.name)
        return seen is not None and not seen.alive and not requests.running(self._place)
