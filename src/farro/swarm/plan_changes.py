"""What a new plan changes of a swarm, and which commands bring it about, in words for people.

Asking for those commands lives in operations.swarms; applying the plan, in the controller.
"""

from __future__ import annotations

from farro.lazy_dataclass import dataclass
from farro.swarm import plan as plans
from farro.swarm.files import Place
from farro.swarm.lifecycle import SwarmState
from farro.swarm.plan import SwarmPlan
from farro.swarm.wire.names import Signal


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    lines: list[str]
    steps: list[Signal]  # in order; none: it is so already


def between(place: str, wanted: SwarmPlan) -> Changes:
    """From what was last asked for to `wanted`."""
    files = Place(place)
    desired = files.desired(wanted.id)
    missing = desired is None or desired.state is SwarmState.REMOVED
    before = None if missing else files.plan(wanted.id)
    lines = [f"+ swarm {wanted.id}"] if missing else []
    lines += _components(before, wanted)
    if before is not None and before != wanted and not lines:
        lines.append(f"~ swarm {wanted.id}: times, or the order of its parts")
    if missing or desired is None or not desired.there:
        return Changes(lines=lines or [f"+ swarm {wanted.id}"], steps=[Signal.CREATE, Signal.TEMPLATE])
    if before == wanted and desired.state is not SwarmState.FAILED:
        return Changes(lines=[], steps=[])
    if desired.state in (SwarmState.RUNNING, SwarmState.STARTING):
        return Changes(lines=lines, steps=[Signal.STOP, Signal.TEMPLATE, Signal.START])
    return Changes(lines=lines or [f"~ swarm {wanted.id}: once more, it failed"], steps=[Signal.TEMPLATE])


def _components(before: SwarmPlan | None, wanted: SwarmPlan) -> list[str]:
    old = {} if before is None else plans.runs(before)
    new = plans.runs(wanted)
    lines = [f"- {name}" for name in old if name not in new]
    lines += [f"+ {name}" for name in new if name not in old]
    return lines + [f"~ {name}: started anew" for name in new if name in old and old[name] != new[name]]
