"""What can be said of a plan without running it: its longest chain, how many steps can run together, its tools.

What is wrong with a plan is told by `loading`; what is suspicious, by `suspicion`.
"""

from __future__ import annotations

from farro.lazy_dataclass import dataclass
from farro.plans.graph import order
from farro.plans.model import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    steps: int
    longest_chain: int  # steps that must come one after the other
    together: int  # steps that do not wait for each other, at most
    parallel: int  # how many of them the plan lets run at once
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
    """The largest set of steps none of which waits for another: by Dilworth, as many as chains that cover all steps,
    which are the steps less a largest matching of each step with one that comes before it."""
    before: dict[str, set[str]] = {}
    for step in order(plan):
        before[step.id] = set(step.depends_on).union(*(before[need] for need in step.depends_on))
    follower: dict[str, str] = {}  # of each step, in its chain

    def joins(step_id: str, seen: set[str]) -> bool:
        for earlier in before[step_id]:
            if earlier not in seen:
                seen.add(earlier)
                if earlier not in follower or joins(follower[earlier], seen):
                    follower[earlier] = step_id
                    return True
        return False

    return len(before) - sum(joins(step_id, set()) for step_id in before)
