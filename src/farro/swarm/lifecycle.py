"""The states of a swarm and of a component, and the tables of their transitions (seed 003 §5)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from farro.errors import IllegalTransition
from farro.swarm.wire.names import Signal


class SwarmState(StrEnum):
    """The state of a swarm, as the orchestrator sees it."""

    NEW = "New"
    CREATING = "Creating"  # its controller is being launched, or has no plan yet
    READY = "Ready"  # the plan is applied, everything healthy and disabled
    STARTING = "Starting"
    RUNNING = "Running"
    FAILED = "Failed"  # a command failed, and everything was kept
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    REMOVING = "Removing"
    REMOVED = "Removed"


class ComponentState(StrEnum):
    """The state of a component, as its controller sees it."""

    NEW = "New"
    PROVISIONING = "Provisioning"
    HEALTHY = "Healthy"  # enabled=false
    STARTING = "Starting"
    RUNNING = "Running"  # enabled=true
    FAILED = "Failed"
    STOPPING = "Stopping"
    STOPPED = "Stopped"


S, C = SwarmState, ComponentState

SWARM: Mapping[SwarmState, frozenset[SwarmState]] = {
    S.NEW: frozenset({S.CREATING}),
    S.CREATING: frozenset({S.READY, S.FAILED, S.REMOVING}),
    S.READY: frozenset({S.READY, S.STARTING, S.STOPPING, S.FAILED, S.REMOVING}),
    S.STARTING: frozenset({S.RUNNING, S.FAILED, S.STOPPING, S.REMOVING}),
    S.RUNNING: frozenset({S.STOPPING, S.FAILED, S.STARTING}),
    S.STOPPING: frozenset({S.STOPPED, S.FAILED, S.REMOVING}),
    S.STOPPED: frozenset({S.STARTING, S.READY, S.REMOVING, S.FAILED, S.STOPPING}),
    # After a failure everything is kept, and every command may be repeated.
    S.FAILED: frozenset({S.CREATING, S.READY, S.STARTING, S.STOPPING, S.REMOVING, S.RUNNING, S.STOPPED}),
    S.REMOVING: frozenset({S.REMOVED, S.FAILED}),
    S.REMOVED: frozenset({S.CREATING}),
}

COMPONENT: Mapping[ComponentState, frozenset[ComponentState]] = {
    C.NEW: frozenset({C.PROVISIONING}),
    C.PROVISIONING: frozenset({C.HEALTHY, C.FAILED, C.STOPPING}),
    C.HEALTHY: frozenset({C.STARTING, C.FAILED, C.STOPPING, C.RUNNING}),
    C.STARTING: frozenset({C.RUNNING, C.FAILED, C.STOPPING}),
    C.RUNNING: frozenset({C.STOPPING, C.FAILED, C.HEALTHY}),
    C.STOPPING: frozenset({C.STOPPED, C.FAILED}),
    C.STOPPED: frozenset({C.PROVISIONING, C.STARTING, C.HEALTHY, C.FAILED}),
    C.FAILED: frozenset({C.PROVISIONING, C.HEALTHY, C.STARTING, C.RUNNING, C.STOPPING}),
}

# The states in which a command is allowed. One that has already had its effect is confirmed again, not refused.
ALLOWED: Mapping[Signal, frozenset[SwarmState]] = {
    Signal.CREATE: frozenset({S.NEW, S.REMOVED, S.FAILED}),
    Signal.TEMPLATE: frozenset({S.CREATING, S.READY, S.STOPPED, S.FAILED}),
    Signal.START: frozenset({S.READY, S.STOPPED, S.STARTING, S.RUNNING, S.FAILED}),
    Signal.STOP: frozenset({S.READY, S.STARTING, S.RUNNING, S.STOPPING, S.STOPPED, S.FAILED}),
    Signal.REMOVE: frozenset(set(S) - {S.NEW, S.RUNNING, S.REMOVED}),
    Signal.CONFIG: frozenset({S.READY, S.STARTING, S.RUNNING, S.STOPPING, S.STOPPED, S.FAILED}),
    Signal.STATUS: frozenset(set(S) - {S.NEW, S.REMOVED}),
}


def step(before: SwarmState, after: SwarmState) -> SwarmState:
    """Return `after` if that transition is allowed. Staying in the same state is always allowed."""
    if after is not before and after not in SWARM[before]:
        raise IllegalTransition(f"a swarm that is {before} cannot become {after}")
    return after


def check_allowed(signal: Signal, state: SwarmState, swarm: str) -> None:
    """Raise IllegalTransition with the allowed commands if `signal` is not allowed in that state."""
    if state in ALLOWED[signal]:
        return
    instead = [str(other) for other in ALLOWED if state in ALLOWED[other] and not other.of_component]
    first = "stop it first; " if signal is Signal.REMOVE and state in ALLOWED[Signal.STOP] else ""
    raise IllegalTransition(
        f"swarm {swarm} is {state}, and {signal} is not allowed then; {first}"
        + (f"allowed are {', '.join(instead)}" if instead else "create it first")
    )
