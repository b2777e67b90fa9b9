"""Which step may start next, while steps end and others are added: the edge between what is over and what waits.

How steps refer to each other is checked by `graph`; running them is execution's. Cost: what a step itself has, however
many wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from farro.plans.model import Step


class Frontier:
    """Ready steps come in the order in which they were listed or added; each once.

    Invariant: a step is ready when all that it depends on succeeded, and `_ready` holds those that nobody took.
    """

    def __init__(self, steps: Iterable[Step]) -> None:
        self._steps: list[Step] = []
        self._succeeded: set[str] = set()
        self._open: dict[str, int] = {}  # id → how many that it depends on have not succeeded
        self._dependents: dict[str, list[int]] = {}  # id → places of those that wait for it
        self._ready: list[int] = []  # places, as a heap
        self._gone = 0  # taken, or skipped
        self._skipped: set[str] = set()  # nobody's to take, though they may become ready
        self.add(steps)

    @property
    def waiting(self) -> int:
        """How many nobody took yet, ready or not."""
        return len(self._steps) - self._gone

    @property
    def first(self) -> str | None:
        """The id of the next that may start."""
        while self._ready and self._steps[self._ready[0]].id in self._skipped:
            heapq.heappop(self._ready)
        return self._steps[self._ready[0]].id if self._ready else None

    def add(self, steps: Iterable[Step]) -> None:
        """More steps; they may depend on each other, in any order."""
        for step in steps:
            place = len(self._steps)
            self._steps.append(step)
            needed = [need for need in step.depends_on if need not in self._succeeded]
            self._open[step.id] = len(needed)
            for need in needed:
                self._dependents.setdefault(need, []).append(place)
            if not needed:
                heapq.heappush(self._ready, place)

    def take(self) -> Step | None:
        """The next that may start, which is now the caller's; None: none may, now."""
        if self.first is None:
            return None
        self._gone += 1
        return self._steps[heapq.heappop(self._ready)]

    def waits_only_for(self, step: Step, need: str) -> bool:
        """Whether nobody took it, and that is all that keeps it from starting."""
        return step.id not in self._skipped and self._open[step.id] == 1 and need not in self._succeeded

    def take_early(self, step: Step) -> None:
        """It is the caller's, though what it waits for goes on."""
        self._gone += 1
        self._skipped.add(step.id)

    def skip(self, step_id: str) -> None:
        """That step, which nobody took, has succeeded already."""
        self._gone += 1
        self._skipped.add(step_id)
        self.succeeded(step_id)

    def succeeded(self, step_id: str) -> None:
        """That step is over, and well: its dependents may start when it was their last."""
        self._succeeded.add(step_id)
        for place in self._dependents.pop(step_id, ()):
            dependent = self._steps[place].id
            self._open[dependent] -= 1
            if self._open[dependent] == 0:
                heapq.heappush(self._ready, place)
