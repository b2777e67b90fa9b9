"""Ask running plans to stop, from any thread or signal handler, with time for their steps to end by themselves.

A job that was taken away is ended differently: by an exception out of `tick` (ClaimLost).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farro.errors import FarroError
from farro.host.clock import Clock
from farro.host.waiting import Flag

if TYPE_CHECKING:
    from farro.execution.results import PlanResult

GRACE_S = 5.0


class Interrupted(FarroError):
    """The plan was stopped before its end (shutdown); its processes are ended, and the job can be released."""

    def __init__(self, partial: PlanResult) -> None:
        self.partial = partial  # the steps that ended before the stop
        done = len(partial.step_results)
        super().__init__(f"stopped on request after {done} step{'' if done == 1 else 's'}; release the job")


class Stop:
    """One stop request for all plans of a worker. Without a lock: `request` is called from signal handlers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._flag = Flag()
        self._deadline_s: float | None = None

    def request(self, grace_s: float = GRACE_S) -> None:
        """Start no more steps; running ones have `grace_s` to end by themselves. A later request can only shorten
        that."""
        deadline_s = self._clock.monotonic_s() + grace_s
        self._deadline_s = deadline_s if self._deadline_s is None else min(self._deadline_s, deadline_s)
        self._flag.set()

    @property
    def requested(self) -> bool:
        return self._deadline_s is not None

    @property
    def deadline_s(self) -> float | None:
        """Return when the grace is over, on the clock's `monotonic_s`; None until a stop is requested."""
        return self._deadline_s

    @property
    def fd(self) -> int:
        """Return a descriptor that is readable from the first request on."""
        return self._flag.fd

    def close(self) -> None:
        """Close the descriptor; no plan may be running."""
        self._flag.close()
