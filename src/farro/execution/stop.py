"""How a running plan is asked to stop: from any thread or signal handler, with time for its step to end by itself.

Stopping because a job was taken away is not here: that is an exception out of `tick` (ClaimLost).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from farro.errors import FarroError
from farro.host.clock_port import Clock

if TYPE_CHECKING:
    from farro.execution.results import PlanResult

GRACE_S = 5.0


class Interrupted(FarroError):
    """The plan was stopped before its end (shutdown); its processes are over, the job can be handed back."""

    def __init__(self, partial: PlanResult) -> None:
        self.partial = partial  # the steps that ended before
        done = len(partial.step_results)
        super().__init__(f"stopped on request after {done} step{'' if done == 1 else 's'}; release the job")


class Flag:
    """A descriptor that becomes readable when it is set and stays so: any number of threads can poll it."""

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self.fd = self._write_fd = os.eventfd(0, os.EFD_CLOEXEC)
        else:
            self.fd, self._write_fd = os.pipe()

    def set(self) -> None:
        # Eight bytes, as an eventfd wants them. Not fs.write: this is no file, and no place for a crash to be injected.
        os.write(self._write_fd, (1).to_bytes(8, "little"))  # noqa: TID251

    def clear(self) -> None:
        """Not readable any more; waits until it was set. By whoever was told, when nobody else can be waiting."""
        os.read(self.fd, 8)

    def close(self) -> None:
        for fd in {self.fd, self._write_fd}:
            os.close(fd)


class Stop:
    """One request for all plans of a worker. No lock inside: `request` is called from signal handlers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._flag = Flag()
        self._deadline_s: float | None = None

    def request(self, grace_s: float = GRACE_S) -> None:
        """Start no further step; running ones have `grace_s` to end by themselves. A later request can only shorten."""
        deadline_s = self._clock.monotonic_s() + grace_s
        self._deadline_s = deadline_s if self._deadline_s is None else min(self._deadline_s, deadline_s)
        self._flag.set()

    @property
    def requested(self) -> bool:
        return self._deadline_s is not None

    @property
    def deadline_s(self) -> float | None:
        """When the grace is over, on the clock's `monotonic_s`; None while nobody asked."""
        return self._deadline_s

    @property
    def fd(self) -> int:
        """Readable from the first request on."""
        return self._flag.fd

    def close(self) -> None:
        """Give the descriptor back; no plan may be running."""
        self._flag.close()
