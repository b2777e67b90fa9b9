"""The order in which components are enabled: as the work flows, A before B where A writes a queue that B reads.

Writers come first, then their readers (seed 003 §6); disabling goes the other way round. Components that do not depend
on each other keep the plan's order. In a cycle there is no first component: its members keep the plan's order too, and
the caller gets a warning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farro.lazy_dataclass import dataclass
from farro.swarm.plan import Bee, SwarmPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class StartOrder:
    stages: tuple[tuple[int, ...], ...]  # positions of bees in the plan; each stage depends on those before it
    warnings: tuple[str, ...] = ()

    @property
    def bees(self) -> tuple[int, ...]:
        """Return all bees in the order of enabling."""
        return tuple(bee for stage in self.stages for bee in stage)


def start_order(plan: SwarmPlan) -> StartOrder:
    after = _readers(plan.bees)
    cycles = _cycles(len(plan.bees), after)
    cycle_of = {bee: number for number, cycle in enumerate(cycles) for bee in cycle}
    before: dict[int, set[int]] = {number: set() for number in range(len(cycles))}
    for bee, readers in after.items():
        for reader in readers:
            if cycle_of[bee] != cycle_of[reader]:
                before[cycle_of[reader]].add(cycle_of[bee])
    warnings = [_warning(plan, cycle, after) for cycle in cycles if _is_cyclic(cycle, after)]
    return StartOrder(stages=tuple(_stages(cycles, before)), warnings=tuple(warnings))


def _readers(bees: Sequence[Bee]) -> dict[int, tuple[int, ...]]:
    """Return for each bee those that read what it writes, in the plan's order."""
    reads: dict[str, list[int]] = {}
    for index, bee in enumerate(bees):
        for queue in bee.work.inputs:
            reads.setdefault(queue, []).append(index)
    return {
        index: tuple(sorted({reader for queue in bee.work.outputs for reader in reads.get(queue, ())}))
        for index, bee in enumerate(bees)
    }


def _stages(cycles: Sequence[tuple[int, ...]], before: Mapping[int, set[int]]) -> list[tuple[int, ...]]:
    """Put each bee into the earliest possible stage; within a stage the plan's order holds."""
    left, done, stages = set(before), set[int](), []
    while left:
        ready = {number for number in left if before[number] <= done}
        assert ready, "each cycle is one node, so there is always a first one"
        stages.append(tuple(sorted(bee for number in ready for bee in cycles[number])))
        left -= ready
        done |= ready
    return stages


def _cycles(count: int, after: Mapping[int, tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Group the bees that reach each other, sorted by their first position in the plan.

    Tarjan's algorithm with an explicit stack: a chain of bees may be longer than Python's recursion limit.
    """
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    found: list[tuple[int, ...]] = []
    for root in range(count):
        if root in index:
            continue
        index[root] = low[root] = len(index)
        path.append(root)
        on_path.add(root)
        work = [(root, iter(after[root]))]
        while work:
            node, readers = work[-1]
            reader = next(readers, None)
            if reader is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    cut = path.index(node)
                    found.append(tuple(sorted(path[cut:])))
                    on_path -= set(path[cut:])
                    del path[cut:]
            elif reader not in index:
                index[reader] = low[reader] = len(index)
                path.append(reader)
                on_path.add(reader)
                work.append((reader, iter(after[reader])))
            elif reader in on_path:
                low[node] = min(low[node], index[reader])
    return sorted(found)


def _is_cyclic(cycle: tuple[int, ...], after: Mapping[int, tuple[int, ...]]) -> bool:
    return len(cycle) > 1 or cycle[0] in after[cycle[0]]


def _warning(plan: SwarmPlan, cycle: tuple[int, ...], after: Mapping[int, tuple[int, ...]]) -> str:
    route = [cycle[0]]
    while (following := _next_in(cycle, after[route[-1]], route)) is not None:
        route.append(following)
    names = " → ".join(plan.bees[bee].role for bee in (*route, cycle[0]))
    return f"work flows in a circle ({names}); they are started in the order of the plan, and stopped in reverse"


def _next_in(cycle: tuple[int, ...], readers: Sequence[int], route: Sequence[int]) -> int | None:
    return next((reader for reader in readers if reader in cycle and reader not in route), None)
