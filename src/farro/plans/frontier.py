"""Track which steps may start next while steps end and others are added, and which a repeated plan does not run again.

The cost of a step depends on its own dependencies, not on how many steps wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence

from farro.documents import show
from farro.errors import InputError
from farro.plans.model import Step


class Frontier:
    """Hands out ready steps in the order in which they were listed or added, each once.

    Invariant: a step is ready when all its dependencies have succeeded; `_ready` holds the ready steps not yet taken.
    """

    def __init__(self, steps: Iterable[Step]) -> None:
        self._steps: list[Step] = []
        self._succeeded: set[str] = set()
        self._open: dict[str, int] = {}  # id → number of dependencies that have not succeeded
        self._dependents: dict[str, list[int]] = {}  # id → positions of the steps that wait for it
        self._ready: list[int] = []  # positions, as a heap
        self._gone = 0  # taken, or skipped
        self._skipped: set[str] = set()  # never handed out, though they may become ready
        self.add(steps)

    @property
    def waiting(self) -> int:
        """Return how many steps are not taken yet, ready or not."""
        return len(self._steps) - self._gone

    @property
    def first(self) -> str | None:
        """Return the id of the next step that may start."""
        while self._ready and self._steps[self._ready[0]].id in self._skipped:
            heapq.heappop(self._ready)
        return self._steps[self._ready[0]].id if self._ready else None

    def add(self, steps: Iterable[Step]) -> None:
        """Add steps; they may depend on each other, in any order."""
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
        """Take the next step that may start; None when there is none now."""
        if self.first is None:
            return None
        self._gone += 1
        return self._steps[heapq.heappop(self._ready)]

    def waits_only_for(self, step: Step, need: str) -> bool:
        """Return whether the step is not taken and waits for that one step only."""
        return step.id not in self._skipped and self._open[step.id] == 1 and need not in self._succeeded

    def take_early(self, step: Step) -> None:
        """Take a step although its dependency still runs."""
        self._gone += 1
        self._skipped.add(step.id)

    def skip(self, step_id: str) -> None:
        """Mark a step that is not taken as succeeded."""
        self._gone += 1
        self._skipped.add(step_id)
        self.succeeded(step_id)

    def succeeded(self, step_id: str) -> None:
        """Mark a step as succeeded; dependents for which it was the last dependency become ready."""
        self._succeeded.add(step_id)
        for place in self._dependents.pop(step_id, ()):
            dependent = self._steps[place].id
            self._open[dependent] -= 1
            if self._open[dependent] == 0:
                heapq.heappush(self._ready, place)


def kept(
    steps: Sequence[Step], succeeded: Collection[str], *, parallel: int, from_step: str | None = None
) -> frozenset[str]:
    """Return the succeeded steps that are kept. With `from_step`, that step and all after it run again.

    In a sequential plan every later step comes after it: it may depend on the step's effects without saying so. In a
    parallel plan only declared needs count.
    """
    if from_step is None:
        return frozenset(succeeded)
    if from_step not in {step.id for step in steps}:
        known = ", ".join(step.id for step in steps[:20]) + (" …" if len(steps) > 20 else "")
        raise InputError(f"--from {show(from_step)} is not a step of this job; its steps are {known}")
    return frozenset(succeeded) - _after(steps, from_step, together=parallel > 1)


def _after(steps: Sequence[Step], first: str, *, together: bool) -> frozenset[str]:
    frontier, after = Frontier(steps), set[str]()
    while (step := frontier.take()) is not None:
        if step.id == first or (after and (not together or not after.isdisjoint(step.depends_on))):
            after.add(step.id)
        frontier.succeeded(step.id)
    return frozenset(after)
