"""A swarm plan: its components, how many of each, what they run, which queues they read and write, and their order.

id: demo
bees:
  - role: generator
    command: [python, -m, demo.generator]
    work: {out: [items]}
  - {role: processor, command: [python, -m, demo.processor], work: {in: [items]}, instances: 2}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from farro.documents import Document, refusal, shapes, without_schema
from farro.documents.constraints import Argument, Bounds, Matching, Size
from farro.documents.shapes import Fault
from farro.lazy_dataclass import dataclass, field, replace
from farro.swarm.wire.names import CONTROLLER, NAME_PATTERN

MAX_BEES = 200
MAX_INSTANCES = 1000  # of a whole swarm

Name = Annotated[str, Matching(NAME_PATTERN, "lower-case letters, digits and -")]
Text = Annotated[str, Argument()]
FilledText = Annotated[str, Argument(filled=True)]
VariableName = Annotated[str, Matching(r"[A-Za-z_][A-Za-z0-9_]{0,254}", "a variable's name")]
Seconds = Annotated[float, Bounds(more_than=0, at_most=86_400)]


@dataclass(frozen=True, kw_only=True, slots=True)
class BeeQueues:
    """The queues of a bee, as suffixes: `items` is the queue ph.<swarm>.items."""

    inputs: tuple[Name, ...] = ()
    outputs: tuple[Name, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class BeeLimits:
    memory_bytes: Annotated[int, Bounds(at_least=1 << 20)] | None = None
    cpu_s: Annotated[int, Bounds(at_least=1)] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Bee:
    """One kind of component."""

    role: Name
    image: FilledText | None = None  # for runtimes with containers
    command: Annotated[tuple[FilledText, ...], Size(at_least=1)] | None = None
    work: BeeQueues = field(default_factory=BeeQueues)
    env: dict[VariableName, Text] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    instances: Annotated[int, Bounds(at_least=1, at_most=MAX_INSTANCES)] = 1
    restart: Literal["always", "on-failure", "never"] = "on-failure"
    limits: BeeLimits = field(default_factory=BeeLimits)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeouts:
    """Time limits in seconds (seed 003 §8); `silent` is farro's own."""

    provision: Seconds = 120.0  # of one component
    ready: Seconds = 300.0  # of the swarm
    start: Seconds = 60.0  # of one component
    start_total: Seconds = 180.0
    stop: Seconds = 30.0  # of one component: then it is ended by force and reported as degraded
    silent: Annotated[float, Bounds(at_least=5, at_most=86_400)] = 120.0  # of a living component: then it hangs


@dataclass(frozen=True, kw_only=True, slots=True)
class SwarmPlan:
    """Invariant: instance names are unique."""

    id: Name
    bees: Annotated[tuple[Bee, ...], Size(at_least=1, at_most=MAX_BEES)]
    timeouts: Timeouts = field(default_factory=Timeouts)

    def members(self) -> Iterator[Member]:
        """Yield every component, in the order of the plan."""
        for position, bee in enumerate(self.bees):
            for number in range(bee.instances):
                yield Member(role=bee.role, instance=instance(self.id, bee, number, self.bees), bee=position)

    def queues(self) -> list[str]:
        """Return all queues that components read or write, as suffixes."""
        return sorted({one for bee in self.bees for one in (*bee.work.inputs, *bee.work.outputs)})


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One component of a swarm."""

    role: str
    instance: str
    bee: int  # the position of its bee in the plan


def instance(swarm: str, bee: Bee, number: int, bees: tuple[Bee, ...]) -> str:
    """Return `<swarm>-<role>` for the only instance of a role, else with a number. It is stable for the same plan."""
    alone = bee.instances == 1 and sum(1 for other in bees if other.role == bee.role) == 1
    if alone:
        return f"{swarm}-{bee.role}"
    before = 0
    for other in bees:
        if other is bee:
            break
        before += other.instances if other.role == bee.role else 0
    return f"{swarm}-{bee.role}-{before + number + 1}"


def runs(plan: SwarmPlan) -> dict[str, Bee]:
    """Return what each instance runs, without what does not affect its process: number of instances, restart policy."""
    same = [replace(bee, instances=1, restart="always") for bee in plan.bees]
    return {member.instance: same[member.bee] for member in plan.members()}


def load(document: Document) -> SwarmPlan:
    """Read the plan in a document, or raise all of its problems with their positions."""
    data = without_schema(document.data) if isinstance(document.data, dict) else document.data
    checked = shapes.check(SwarmPlan, _renamed(data))
    faults = list(checked.faults)
    if checked.value is not None and not faults:
        faults = list(_contradictions(checked.value))
    if checked.value is not None and not faults:
        return checked.value
    problems = [document.problem(_as_written(fault.path), fault.message, key=fault.key) for fault in faults]
    raise refusal(document.source, problems)


_WRITTEN = {"inputs": "in", "outputs": "out"}  # `in` is a keyword of Python
_READ = {written: name for name, written in _WRITTEN.items()}


def _renamed(data: Any) -> Any:
    """Rename `work: {in, out}` to the fields of the class; a single queue need not be a list."""
    if not isinstance(data, dict) or not isinstance(data.get("bees"), list):
        return data
    return {**data, "bees": [_bee(bee) for bee in data["bees"]]}


def _bee(bee: Any) -> Any:
    if not isinstance(bee, dict) or not isinstance(bee.get("work"), dict):
        return bee
    work = {}
    for name, value in bee["work"].items():
        listed = [value] if isinstance(value, str) and name in _READ else value
        work[_READ.get(name, name if name not in _WRITTEN else f"{name} ")] = listed
    return {**bee, "work": work}


def _as_written(path: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(path) >= 4 and path[0] == "bees" and path[2] == "work":
        return (*path[:3], _WRITTEN.get(path[3], str(path[3]).strip()), *path[4:])
    return path


def _contradictions(plan: SwarmPlan) -> Iterator[Fault]:
    total = sum(bee.instances for bee in plan.bees)
    if total > MAX_INSTANCES:
        yield Fault(("bees",), f"have {total} instances in all; a swarm may have {MAX_INSTANCES}")
    for index, bee in enumerate(plan.bees):
        at = ("bees", index)
        if bee.role == CONTROLLER:
            yield Fault((*at, "role"), f"{CONTROLLER} is reserved for the swarm's controller; use another name")
        if (bee.image is None) == (bee.command is None):
            yield Fault(at, "needs either command or image: what to start")
        for which, queues in (("inputs", bee.work.inputs), ("outputs", bee.work.outputs)):
            for place, queue in enumerate(queues):
                if queue == "hive":
                    yield Fault(
                        (*at, "work", which, place), "hive is the swarm's exchange; use another name for the queue"
                    )
                if queue in queues[:place]:
                    yield Fault((*at, "work", which, place), f"{queue} is in the list already")
    if total <= MAX_INSTANCES:
        yield from _names(plan)


def _names(plan: SwarmPlan) -> Iterator[Fault]:
    """Find instance names (swarm and role) that are too long or occur twice."""
    seen: dict[str, str] = {}
    for member in plan.members():
        at = ("bees", member.bee, "role")
        if len(member.instance) > 63:
            yield Fault(at, f"makes {member.instance}, which is longer than the 63 characters of an instance name")
            return
        if member.instance in seen:
            yield Fault(at, f"makes {member.instance}, as {seen[member.instance]} does; rename one of them")
            return
        seen[member.instance] = member.role


# --- start order ---


@dataclass(frozen=True, kw_only=True, slots=True)
class StartOrder:
    stages: tuple[tuple[int, ...], ...]  # positions of bees in the plan; each stage depends on those before it
    warnings: tuple[str, ...] = ()


def start_order(plan: SwarmPlan) -> StartOrder:
    """Return the order in which components are enabled: writers of a queue first, then its readers (seed 003 §6).

    Disabling goes the other way round. Components that do not depend on each other keep the plan's order. In a cycle
    there is no first component: its members keep the plan's order too, and the caller gets a warning.
    """
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


def member_stages(plan: SwarmPlan) -> list[list[Member]]:
    """Return the components of each stage of the start order, in the plan's order."""
    order = start_order(plan).stages
    stage_of = {bee: number for number, stage in enumerate(order) for bee in stage}
    stages: list[list[Member]] = [[] for _ in order]
    for one in plan.members():
        stages[stage_of[one.bee]].append(one)
    return stages


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
    """Group the bees that reach each other, sorted by their first position in the plan."""
    reached = [1 << bee | sum(1 << reader for reader in after[bee]) for bee in range(count)]  # a bit for each bee
    for middle in range(count):
        for bee in range(count):
            if reached[bee] >> middle & 1:
                reached[bee] |= reached[middle]
    both_ways = (
        tuple(other for other in range(count) if reached[bee] >> other & 1 and reached[other] >> bee & 1)
        for bee in range(count)
    )
    return sorted(set(both_ways))


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
