"""Measure a plan without running it: its longest chain, how many steps can run together, its tools."""

from __future__ import annotations

from farro.lazy_dataclass import dataclass
from farro.plans.graph import order
from farro.plans.model import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    steps: int
    longest_chain: int  # steps that must run in sequence
    together: int  # the most steps that do not wait for each other
    parallel: int  # how many the plan allows at once
    timeout_s: float
    tools: tuple[str, ...]


def measure(plan: Plan, step_timeout_s: float) -> Measure:
    return Measure(
        steps=len(plan.steps),
        longest_chain=longest_chain(plan),
        together=together(plan),
        parallel=plan.parallel,
        timeout_s=plan.timeout_s(step_timeout_s),
        tools=tuple(dict.fromkeys(step.tool for step in plan.steps)),
    )


def longest_chain(plan: Plan) -> int:
    chain: dict[str, int] = {}
    for step in order(plan):
        chain[step.id] = 1 + max((chain[need] for need in step.depends_on), default=0)
    return max(chain.values())


def together(plan: Plan) -> int:
    """Return the size of the largest set of steps that do not wait for each other. By Dilworth's theorem it equals the
    number of chains that cover all steps: the steps minus a maximum matching of steps with predecessors."""
    before: dict[str, set[str]] = {}
    for step in order(plan):
        before[step.id] = set(step.depends_on).union(*(before[need] for need in step.depends_on))
    follower: dict[str, str] = {}  # step → next step in its chain

    def joins(step_id: str, seen: set[str]) -> bool:
        for earlier in before[step_id]:
            if earlier not in seen:
                seen.add(earlier)
                if earlier not in follower or joins(follower[earlier], seen):
                    follower[earlier] = step_id
                    return True
        return False

    return len(before) - sum(joins(step_id, set()) for step_id in before)
