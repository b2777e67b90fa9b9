"""In which order components are enabled: as the work flows. A → B where A writes a queue that B reads (seed 003 §6).

When each may be enabled is decided in reconcile; this only knows who comes before whom.

Producers come first, then what reads from them; disabling goes the other way round. Of those that do not depend on
each other, the plan's own order holds. Where work flows in a circle there is no first: those of the circle keep the
plan's order among themselves, and whoever asked is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farro.lazy_dataclass import dataclass
from farro.swarm.plan import Bee, SwarmPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    stages: tuple[tuple[int, ...], ...]  # places of bees in the plan: each stage needs those before it
    warnings: tuple[str, ...] = ()

    @property
    def bees(self) -> tuple[int, ...]:
        """In the order of enabling."""
        return tuple(bee for stage in self.stages for bee in stage)


def order(plan: SwarmPlan) -> Order:
    after = _readers(plan.bees)
    circles = _circles(len(plan.bees), after)
    home = {bee: number for number, circle in enumerate(circles) for bee in circle}
    before: dict[int, set[int]] = {number: set() for number in range(len(circles))}
    for bee, readers in after.items():
        for reader in readers:
            if home[bee] != home[reader]:
                before[home[reader]].add(home[bee])
    warnings = [_warning(plan, circle, after) for circle in circles if _flows_back(circle, after)]
    return Order(stages=tuple(_stages(circles, before)), warnings=tuple(warnings))


def _readers(bees: Sequence[Bee]) -> dict[int, tuple[int, ...]]:
    """Who reads what each of them writes, in the plan's order."""
    reads: dict[str, list[int]] = {}
    for index, bee in enumerate(bees):
        for queue in bee.work.inputs:
            reads.setdefault(queue, []).append(index)
    return {
        index: tuple(sorted({reader for queue in bee.work.outputs for reader in reads.get(queue, ())}))
        for index, bee in enumerate(bees)
    }


def _stages(circles: Sequence[tuple[int, ...]], before: Mapping[int, set[int]]) -> list[tuple[int, ...]]:
    """Each as early as it can be; within a stage as the plan has them."""
    left, done, stages = set(before), set[int](), []
    while left:
        ready = {number for number in left if before[number] <= done}
        assert ready, "circles are one node each, so something is always first"
        stages.append(tuple(sorted(bee for number in ready for bee in circles[number])))
        left -= ready
        done |= ready
    return stages


def _circles(count: int, after: Mapping[int, tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The bees, those together that reach each other (Tarjan's components, with a stack of our own: a chain may be
    longer than Python recurses), sorted by their first place in the plan."""
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


def _flows_back(circle: tuple[int, ...], after: Mapping[int, tuple[int, ...]]) -> bool:
    return len(circle) > 1 or circle[0] in after[circle[0]]


def _warning(plan: SwarmPlan, circle: tuple[int, ...], after: Mapping[int, tuple[int, ...]]) -> str:
    way = [circle[0]]
    while (following := _next_in(circle, after[way[-1]], way)) is not None:
        way.append(following)
    names = " → ".join(plan.bees[bee].role for bee in (*way, circle[0]))
    return f"work flows in a circle ({names}); they are started in the order of the plan, and stopped in reverse"


def _next_in(circle: tuple[int, ...], readers: Sequence[int], way: Sequence[int]) -> int | None:
    return next((reader for reader in readers if reader in circle and reader not in way), None)
