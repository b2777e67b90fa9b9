"""A swarm plan: which components, how many of each, what they run, and which queues they read and write.

Names live in names; the order that follows from the queues lives in ordering.

    id: demo
    bees:
      - role: generator
        command: [python, -m, demo.generator]
        work: {out: [items]}
      - {role: processor, command: [python, -m, demo.processor], work: {in: [items]}, instances: 2}
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

from farro.documents import Document, refusal, shapes, without_schema
from farro.documents.constraints import Argument, Bounds, Matching, Size
from farro.documents.shapes import Fault
from farro.lazy_dataclass import dataclass, field
from farro.swarm.wire.names import CONTROLLER, NAME_PATTERN

MAX_BEES = 200
MAX_INSTANCES = 1000  # of a whole swarm

Name = Annotated[str, Matching(NAME_PATTERN, "small letters, digits and -")]
Text = Annotated[str, Argument()]
FilledText = Annotated[str, Argument(filled=True)]
VariableName = Annotated[str, Matching(r"[A-Za-z_][A-Za-z0-9_]{0,254}", "a variable's name")]
Seconds = Annotated[float, Bounds(more_than=0, at_most=86_400)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Suffixes of queues: `items` is the queue ph.<swarm>.items."""

    inputs: tuple[Name, ...] = ()
    outputs: tuple[Name, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    memory_bytes: Annotated[int, Bounds(at_least=1 << 20)] | None = None
    cpu_s: Annotated[int, Bounds(at_least=1)] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Bee:
    """One kind of component."""

    role: Name
    image: FilledText | None = None  # of runtimes with containers
    command: Annotated[tuple[FilledText, ...], Size(at_least=1)] | None = None
    work: Work = field(default_factory=Work)
    env: dict[VariableName, Text] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    instances: Annotated[int, Bounds(at_least=1, at_most=MAX_INSTANCES)] = 1
    restart: Literal["always", "on-failure", "never"] = "on-failure"
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeouts:
    """Seed 003 §8, in seconds; `silent` is farro's own."""

    provision: Seconds = 120.0  # of one component
    ready: Seconds = 300.0  # of the swarm
    start: Seconds = 60.0  # of one component
    start_total: Seconds = 180.0
    stop: Seconds = 30.0  # of one component: then it is ended by force, and told as degraded
    silent: Annotated[float, Bounds(at_least=5, at_most=86_400)] = 120.0  # of one component that lives: then it hangs


@dataclass(frozen=True, kw_only=True, slots=True)
class SwarmPlan:
    """Invariant: instance names are unique; no queue is both written and read by the same bee alone unless it says so
    in both lists, which is a cycle and warned of."""

    id: Name
    bees: Annotated[tuple[Bee, ...], Size(at_least=1, at_most=MAX_BEES)]
    timeouts: Timeouts = field(default_factory=Timeouts)

    def members(self) -> Iterator[Member]:
        """Every component, in the order of the plan."""
        for position, bee in enumerate(self.bees):
            for number in range(bee.instances):
                yield Member(role=bee.role, instance=instance(self.id, bee, number, self.bees), bee=position)


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One component of a swarm."""

    role: str
    instance: str
    bee: int  # its place in the plan


def instance(swarm: str, bee: Bee, number: int, bees: tuple[Bee, ...]) -> str:
    """`<swarm>-<role>` where it is the only one, else with its number: the same for the same plan, for ever."""
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
    """What each instance runs, apart from what does not change a process: how many there are, and when it restarts."""
    same = [replace(bee, instances=1, restart="always") for bee in plan.bees]
    return {member.instance: same[member.bee] for member in plan.members()}


def load(document: Document) -> SwarmPlan:
    """The plan in a document, or all of its problems with their places."""
    data = without_schema(document.data) if isinstance(document.data, dict) else document.data
    checked = shapes.check(SwarmPlan, _renamed(data))
    faults = list(checked.faults)
    if checked.value is not None and not faults:
        faults = list(_contradictions(checked.value))
    if checked.value is not None and not faults:
        return checked.value
    problems = [document.problem(_as_written(fault.path), fault.message, key=fault.key) for fault in faults]
    raise refusal(document.source, problems)


_WRITTEN = {"inputs": "in", "outputs": "out"}  # `in` cannot be a field of a class
_READ = {written: name for name, written in _WRITTEN.items()}


def _renamed(data: Any) -> Any:
    """`work: {in, out}` as the class has it; a queue may be written alone, without a list."""
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
        yield Fault(("bees",), f"have {total} instances together; a swarm may have {MAX_INSTANCES}")
    for index, bee in enumerate(plan.bees):
        at = ("bees", index)
        if bee.role == CONTROLLER:
            yield Fault((*at, "role"), f"{CONTROLLER} is the swarm's own controller; call the component otherwise")
        if (bee.image is None) == (bee.command is None):
            yield Fault(at, "needs either command or image: what shall be started")
        for which, queues in (("inputs", bee.work.inputs), ("outputs", bee.work.outputs)):
            for place, queue in enumerate(queues):
                if queue == "hive":
                    yield Fault((*at, "work", which, place), "hive is the swarm's exchange; call the queue otherwise")
                if queue in queues[:place]:
                    yield Fault((*at, "work", which, place), f"{queue} is in the list already")
    if total <= MAX_INSTANCES:
        yield from _names(plan)


def _names(plan: SwarmPlan) -> Iterator[Fault]:
    """A name is made of the swarm's and the role's: it may become too long, or the same as another's."""
    seen: dict[str, str] = {}
    for member in plan.members():
        at = ("bees", member.bee, "role")
        if len(member.instance) > 63:
            yield Fault(at, f"makes {member.instance}, which is longer than the 63 characters of an instance's name")
            return
        if member.instance in seen:
            yield Fault(at, f"makes {member.instance}, as {seen[member.instance]} does; call one of them otherwise")
            return
        seen[member.instance] = member.role
