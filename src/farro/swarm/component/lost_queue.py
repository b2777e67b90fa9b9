"""Whether who listens on a queue can still hear: a queue that was deleted under its reader says nothing.

Who listens to what lives in running, and in the services.

A consumer of a queue that an operator deleted, or that a broker lost with its disk, waits for ever. Found twice in a
row it ends whoever listens, and the next life declares the queue anew.
[test_who_listens_to_a_queue_that_is_gone_is_told]
"""

from __future__ import annotations

from farro.errors import BusTrouble
from farro.swarm.bus.port import Bus

CHECK_S = 30.0  # how often


class Ears:
    def __init__(self, bus: Bus, queue: str) -> None:
        self._bus = bus
        self._queue = queue
        self._missing = 0
        self._checked_s: float | None = None

    async def check_sometimes(self, now_s: float) -> None:
        if self._checked_s is None:
            self._checked_s = now_s
        if now_s - self._checked_s >= CHECK_S:
            self._checked_s = now_s
            await self.check()

    async def check(self) -> None:
        """BusTrouble: nobody hears on that queue any more. A bus that is away is no reason: it comes back with it."""
        try:
            found = await self._bus.depth(self._queue)
        except BusTrouble:
            return
        self._missing = self._missing + 1 if found is None or found.consumers == 0 else 0
        if self._missing > 1:  # once: a connection that is just coming back
            raise BusTrouble(f"the queue {self._queue} was deleted; who listened there begins anew")
