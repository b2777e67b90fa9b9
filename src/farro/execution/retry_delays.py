"""Steps that failed and are tried again in a while (`retry_delay`). Who tries them lives in run."""

from __future__ import annotations

import math
from typing import NamedTuple

from farro.execution.step import Tried
from farro.host.clock import Clock
from farro.plans.model import Step


class Rest(NamedTuple):
    step: Step
    attempt: int  # the one that failed
    tried: Tried
    until_s: float


class Resting:
    """Between two tries a step keeps its place among those that may run at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rests: list[Rest] = []

    def __len__(self) -> int:
        return len(self._rests)

    def add(self, step: Step, attempt: int, tried: Tried) -> None:
        self._rests.append(Rest(step, attempt, tried, self._clock.monotonic_s() + step.pause_s(attempt)))

    def take(self, *, all_of_them: bool) -> Rest | None:
        """One that has rested long enough."""
        found = min(self._rests, key=lambda rest: rest.until_s, default=None)
        if found is None or (found.until_s > self._clock.monotonic_s() and not all_of_them):
            return None
        self._rests.remove(found)
        return found

    @property
    def left_s(self) -> float:
        """How long until the first of them has."""
        until_s = min((rest.until_s for rest in self._rests), default=math.inf)
        return max(0.0, until_s - self._clock.monotonic_s())
