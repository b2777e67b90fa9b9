"""Check the references between steps (unknown ones, cycles), order the steps of a run, and measure a plan."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from farro.documents import Path, render_path, show
from farro.lazy_dataclass import dataclass
from farro.plans.forms import NO_NUMBER, Fault, Shaped, references
from farro.plans.model import Plan, Step


def order(plan: Plan) -> tuple[Step, ...]:
    """Return the order of a sequential run: each step after its dependencies, otherwise in list order.

    Numbered steps refer only to earlier ones, so they run in list order.
    """
    if not any(step.depends_on for step in plan.steps):
        return plan.steps
    place = {step.id: index for index, step in enumerate(plan.steps)}
    sorter = TopologicalSorter({step.id: step.depends_on for step in plan.steps})
    sorter.prepare()
    ready: list[int] = []
    ordered: list[Step] = []
    while sorter.is_active():
        for step_id in sorter.get_ready():
            heapq.heappush(ready, place[step_id])
        step = plan.steps[heapq.heappop(ready)]
        ordered.append(step)
        sorter.done(step.id)
    return tuple(ordered)


def ranks(plan: Plan) -> dict[str, int]:
    """Return the length of the longest dependency chain of each step."""
    found: dict[str, int] = {}
    for step in order(plan):
        found[step.id] = max((found[need] + 1 for need in step.depends_on), default=0)
    return found


def faults(shaped: Shaped) -> Iterator[Fault]:
    """Yield the faults between steps, as far as the steps themselves are well formed."""
    steps = shaped.data.get("steps") if isinstance(shaped.data, dict) else None
    if not isinstance(steps, list):
        return
    names = [step.get("id") if isinstance(step, dict) else None for step in steps]
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if not isinstance(name, str) or (shaped.numbered and name == NO_NUMBER):
            continue
        if name in first:
            field = "step_number" if shaped.numbered else "id"
            yield (
                ("steps", index, field),
                f"{_say(name, shaped)} is also {_where(shaped, first[name])}; ids are unique in a plan",
            )
        else:
            first[name] = index
    told = {path for path, _ in shaped.faults}
    graph: dict[str, list[str]] = {name: [] for name in first}
    stands: dict[tuple[str, str], Path] = {}  # (step, dependency) → path of the reference
    for index, step in enumerate(steps):
        if not isinstance(step, dict):
            continue
        for path, target in references(("steps", index), step):
            if not isinstance(target, str) or path in told:
                continue  # a wrong type is reported elsewhere
            known = first.get(target)
            if shaped.numbered and (known is None or known >= index):
                yield path, f"{target} is not an earlier step{_why_not_earlier(known, index)}"
            elif known is None:
                yield path, f"{show(target)} is not a step of this plan{_nearest(target, list(first))}"
            elif isinstance(name := names[index], str) and name in graph:
                graph[name].append(target)
                stands.setdefault((name, target), path)
    for cycle in cycles(graph):
        path = stands[cycle[0], cycle[1]]
        if len(cycle) == 2:
            yield path, f"{show(cycle[0])} is this step itself, which would wait for ever; take it out"
        else:
            yield path, f"steps wait for each other: {' → '.join(cycle)} (each needs the next); take one need out"


def cycles(graph: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Yield cycles that share no step, each from its first member in list order back to it."""
    rest = {name: list(needs) for name, needs in graph.items()}
    place = {name: index for index, name in enumerate(rest)}
    while True:
        try:
            TopologicalSorter(rest).prepare()
        except CycleError as found:
            ring: list[str] = found.args[1][:0:-1]  # graphlib lists predecessors first; messages list dependents first
            start = min(range(len(ring)), key=lambda index: place[ring[index]])
            ring = ring[start:] + ring[:start]
            yield [*ring, ring[0]]
            for name in ring:
                rest[name] = []
        else:
            return


def _where(shaped: Shaped, index: int) -> str:
    return render_path(shaped.original(("steps", index)))


def _why_not_earlier(known: int | None, index: int) -> str:
    if known is None:
        return ", and no step of this plan has that number"
    if known == index:
        return ": it is this step itself"
    return "; move it up in the list, or give the steps ids instead of numbers, which may stand in any order"


def _say(name: str, shaped: Shaped) -> str:
    return name if shaped.numbered else show(name)


def _nearest(name: str, known: list[str]) -> str:
    from difflib import get_close_matches  # imported late: most plans are valid

    near = get_close_matches(name, known, n=1)
    return f"; did you mean {show(near[0])}?" if near else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    steps: int
    longest_chain: int  # steps that must run in sequence
    together: int  # the most steps that do not wait for each other
    parallel: int  # how many the plan allows at once
    timeout_s: float
    tools: tuple[str, ...]


def measure(plan: Plan, step_timeout_s: float) -> Measure:
    """Measure a plan without running it."""
    return Measure(
        steps=len(plan.steps),
        longest_chain=max(ranks(plan).values()) + 1,
        together=together(plan),
        parallel=plan.parallel,
        timeout_s=plan.timeout_s(step_timeout_s),
        tools=tuple(dict.fromkeys(step.tool for step in plan.steps)),
    )


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
