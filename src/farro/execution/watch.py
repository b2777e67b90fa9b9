"""Waits for what a plan started, and ends it: the only loop of the room.

It keeps four times (the caller's tick, the step's and the plan's timeout, the grace of a stop) and sleeps in the kernel
between them. What to start and how to judge it lives in run.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from farro.execution.functions import FunctionRun
from farro.execution.stop import Stop
from farro.ports.clock import Clock
from farro.system import processes
from farro.system.processes import Process

REST_GRACE_S = 2.0  # after the grace of a stop, and for what a plan left behind: a daemon is gone within 10 s

Ending = Literal["by itself", "timed out", "stopped"]


class Watch:
    """One for each run of a plan. Timeouts are on the monotonic clock: closing a laptop kills no step."""

    def __init__(
        self,
        *,
        marker: str,
        tick: Callable[[], None],
        tick_every_s: float,
        stop: Stop,
        clock: Clock,
        term_grace_s: float,
    ) -> None:
        self.left: set[int] = set()  # what even SIGKILL did not end
        self._marker = marker
        self._tick = tick
        self._tick_every_s = tick_every_s
        self._stop = stop
        self._clock = clock
        self._term_grace_s = term_grace_s
        self._ticked_s = clock.monotonic_s()

    def until_end(self, started: Process | FunctionRun, deadline_s: float) -> Ending:
        """Wait until it ended, or end it; its tree is over unless it ended by itself.

        What `tick` raises goes on after the tree was killed, without any grace: the job is not ours any more.
        """
        try:
            while True:
                now_s = self.tick_if_due()
                stop_at_s = self._stop.deadline_s
                if now_s >= deadline_s:
                    self._end(started, self._term_grace_s)
                    return "timed out"
                if stop_at_s is not None and now_s >= stop_at_s:
                    self._end(started, REST_GRACE_S)
                    return "stopped"
                until_s = min(self._ticked_s + self._tick_every_s, deadline_s)
                until_s = until_s if stop_at_s is None else min(until_s, stop_at_s)
                # Once a stop is requested its descriptor stays readable: polling it again would spin.
                if started.wait(until_s - now_s, self._stop.fd if stop_at_s is None else None) is not None:
                    return "by itself"
        except BaseException:
            if started.exit is None:
                started.end(self._marker, grace_s=0)
            raise

    def end_rest(self, *, grace_s: float, look: bool) -> None:
        """End what steps left behind. `look` False: no Python tool ran, so only orphans can be left."""
        if not processes.childless() and (look or processes.any_left()):
            tick = self._tick_now if grace_s else None
            every_s = self._tick_every_s
            self.left.update(processes.end_marked(self._marker, grace_s, while_waiting=tick, every_s=every_s))

    def tick_if_due(self) -> float:
        """Give the caller its turn when it is time; the time before it."""
        now_s = self._clock.monotonic_s()
        if now_s - self._ticked_s >= self._tick_every_s:
            self._tick_now()
        return now_s

    def _tick_now(self) -> None:
        self._ticked_s = self._clock.monotonic_s()
        self._tick()

    def _end(self, started: Process | FunctionRun, grace_s: float) -> None:
        every_s = self._tick_every_s
        self.left.update(started.end(self._marker, grace_s=grace_s, while_waiting=self._tick_now, every_s=every_s))
