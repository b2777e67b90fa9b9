"""Decide which steps a repeated plan does not run again."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from farro.documents import show
from farro.errors import InputError
from farro.plans.frontier import Frontier
from farro.plans.model import Step


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
