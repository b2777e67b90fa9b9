"""Which steps a repeated plan need not run again.

What they have done, and whether it is still there, is execution's to know.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from farro.documents import show
from farro.errors import InputError
from farro.plans.frontier import Frontier
from farro.plans.model import Step


def kept(
    steps: Sequence[Step], succeeded: Collection[str], *, parallel: int, from_step: str | None = None
) -> frozenset[str]:
    """Of the steps that succeeded, those that stand. With `from_step`: not that one, nor what came after it.

    One at a time, every later step came after it: it may rest on what that step did to the folder, said or not. Where
    steps run together only what they say they need counts.
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
