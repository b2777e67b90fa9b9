"""Whether something can be asked of a swarm, as far as its files tell: names, plans, states.

Asking lives in operations.swarms; the orchestrator checks again when it takes a command, in the order of all of them.
"""

from __future__ import annotations

import difflib
from typing import Any

from farro.documents import Document
from farro.errors import IllegalTransition, InputError
from farro.swarm import lifecycle
from farro.swarm import plan as plans
from farro.swarm.files import Desired, Place, check_swarm, controller
from farro.swarm.lifecycle import SwarmState
from farro.swarm.plan import SwarmPlan
from farro.swarm.wire import names
from farro.swarm.wire.messages import ControlSignal
from farro.swarm.wire.names import Scope, Signal


def is_there(files: Place, swarm: str) -> bool:
    """Whether it was created, and not removed since."""
    desired = files.desired(swarm)
    return desired is not None and desired.state is not SwarmState.REMOVED


def check_state(files: Place, signal: Signal, swarm: str, state: SwarmState) -> None:
    """Whether that can be asked of a swarm in that state."""
    if state in (SwarmState.NEW, SwarmState.REMOVED) and signal is not Signal.CREATE:
        raise IllegalTransition(_unknown(files, swarm))
    if signal is Signal.CREATE and state not in lifecycle.ALLOWED[signal]:
        raise IllegalTransition(
            f"swarm {swarm} is there already, and {state}; see it with `farro swarm status {swarm}`, give it another "
            f"plan with `farro swarm apply`, or remove it first"
        )
    lifecycle.check_allowed(signal, state, swarm)


def check_plan(files: Place, swarm: str, plan: SwarmPlan) -> None:
    """Whether that plan can be this swarm's: its components have names of their own in the whole root."""
    if plan.id != swarm:
        raise InputError(f"the plan is of swarm {plan.id}, not of {swarm}")
    own = {member.instance for member in plan.members()}
    for other in {*files.swarms(), swarm}:
        if other != swarm and not is_there(files, other):
            continue
        others = files.plan(other) if other != swarm else None
        taken = {controller(other)} | ({member.instance for member in others.members()} if others else set())
        if both := sorted(own & taken):
            raise InputError(f"{both[0]} would be a component of {swarm} and is one of swarm {other}: rename a role")


def check_member(files: Place, swarm: str, role: str, instance: str) -> None:
    plan = files.plan(swarm)
    members = [] if plan is None else list(plan.members())
    if not any((one.role, one.instance) == (role, instance) for one in members):
        there = ", ".join(f"{one.role} {one.instance}" for one in members[:20]) or "none yet"
        raise InputError(f"swarm {swarm} has no component {role} {instance}; it has {there}")


def desired(files: Place, swarm: str) -> Desired:
    """What is wanted of a swarm. InputError: there is no such swarm."""
    found = files.desired(check_swarm(swarm))
    if found is None:
        raise InputError(_unknown(files, swarm))
    return found


def _unknown(files: Place, swarm: str) -> str:
    there = [name for name in files.swarms() if is_there(files, name)]
    return f"there is no swarm {swarm}; " + (
        f"there is {', '.join(there)}" if there else f"make it with `farro swarm create {swarm} --plan FILE`"
    )


def plan_of(told: ControlSignal) -> SwarmPlan:
    args = told.args or {}
    return read_plan(args.get("plan", args))


def read_plan(data: Any) -> SwarmPlan:
    return plans.load(Document(data, "plan"))


def swarm_of(files: Place, role: str, instance: str) -> str:
    Scope(role=role, instance=instance)
    if role == names.CONTROLLER:
        for name in files.swarms():
            if controller(name) == instance:
                return name
    there: dict[str, str] = {}
    for name in files.swarms():
        plan = files.plan(name)
        for one in () if plan is None else plan.members():
            if (one.role, one.instance) == (role, instance):
                return name
            there[one.instance] = one.role
    if instance in there:
        raise InputError(f"{instance} is no {role}: its role is {there[instance]}")
    alike = difflib.get_close_matches(instance, there, n=1)
    near = f"did you mean {there[alike[0]]} {alike[0]}? " if alike else ""
    raise InputError(f"no swarm here has a component {role} {instance}; {near}`farro ps` lists them")
