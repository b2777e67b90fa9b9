"""The states of a swarm and of a component, the commands that each state allows, and the status of a swarm computed
from what is known of its components (seed 003 §4, §5, §10).

Times are seconds of the observer's monotonic clock. A component's report is valid for TTL_S; after that its health
endpoint is polled before it is judged. An aggregate is as old as its oldest report: that report's time is the
watermark, its age the staleness.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Literal

from farro.errors import IllegalTransition
from farro.lazy_dataclass import dataclass
from farro.swarm.wire.messages import Totals
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


S = SwarmState

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


# The state that a successful command leads to, and the one while it is carried out.
EFFECTS: Mapping[Signal, SwarmState] = {
    Signal.CREATE: S.CREATING,
    Signal.TEMPLATE: S.READY,
    Signal.START: S.RUNNING,
    Signal.STOP: S.STOPPED,
    Signal.REMOVE: S.REMOVED,
}
DURING: Mapping[Signal, SwarmState] = {
    Signal.START: S.STARTING,
    Signal.STOP: S.STOPPING,
    Signal.REMOVE: S.REMOVING,
}


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


# --- what is known of a component, and the status of a swarm ---

TTL_S = 30.0
HEARTBEAT_S = 10.0

Health = Literal["Healthy", "Degraded", "Unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """All that is known of one component."""

    launched: bool = False  # the runtime has a record of it
    alive: bool = False  # its process runs
    launched_s: float | None = None
    reported_s: float | None = None  # its last status message or answered health poll
    healthy: bool | None = None
    enabled: bool | None = None
    switching: bool = False  # it reports that its workload is being started or ended
    asked_s: float | None = None  # when it was last asked to switch between enabled and disabled
    starts: int = 0  # launches in a row; starts over after it lived for long
    launches: int = 0  # all launches since it was last stopped, counted by the runtime
    failure: str | None = None  # why it is not started again
    forced: bool = False  # it was ended by force
    ended_s: float | None = None  # when it was found dead
    exit_code: int | None = None  # of a dead one; None if no process observed it
    end: str | None = None  # how it last ended, for people; kept after a restart
    end_s: float | None = None  # when that was seen
    end_log: str | None = None  # the last line of its log then
    hung: str | None = None  # for how long it reported nothing, if it was ended for that
    finished: str | None = None  # why it is not started again after it ended well

    def fresh(self, now_s: float, ttl_s: float = TTL_S) -> bool:
        return self.reported_s is not None and now_s - self.reported_s <= ttl_s

    def silence_s(self, now_s: float, observing_since_s: float) -> float:
        """Return how long the component could have reported and did not. Time without an observer does not count."""
        began_s = self.launched_s if self.reported_s is None else self.reported_s
        return now_s - max(observing_since_s, observing_since_s if began_s is None else began_s)

    def state(self) -> ComponentState:
        """Return the state that the aggregate reports."""
        if self.failure is not None:
            return ComponentState.FAILED
        if self.finished is not None:
            return ComponentState.STOPPED
        if not self.launched:
            return ComponentState.STOPPED if self.starts else ComponentState.NEW
        if self.healthy is None or not self.alive:
            return ComponentState.PROVISIONING
        if not self.healthy:
            return ComponentState.FAILED
        if self.enabled:
            return ComponentState.STOPPING if self.switching else ComponentState.RUNNING
        return ComponentState.STARTING if self.switching else ComponentState.HEALTHY


_RUNNING = (ComponentState.RUNNING, ComponentState.STOPPING)
_HEALTHY = (ComponentState.HEALTHY, ComponentState.STARTING, *_RUNNING)


@dataclass(frozen=True, kw_only=True, slots=True)
class Aggregate:
    """The report of a controller about its swarm."""

    health: Health
    reason: str | None  # why it is not Healthy
    watermark_s: float | None  # None if a component never reported
    max_staleness_s: float | None
    totals: Totals


def aggregate(members: Iterable[str], seen: Mapping[str, Observation], now_s: float) -> Aggregate:
    """Aggregate the components of the plan; others do not count."""
    known = [(name, seen.get(name, Observation())) for name in members]
    reported = [one.reported_s for _, one in known if one.reported_s is not None]
    watermark_s = min(reported) if reported and len(reported) == len(known) else None
    states = [(name, one, one.state()) for name, one in known]
    fresh = [(one, state) for _, one, state in states if one.fresh(now_s)]
    health, reason = _health(states, now_s)
    return Aggregate(
        health=health,
        reason=reason,
        watermark_s=watermark_s,
        max_staleness_s=None if watermark_s is None else max(0.0, now_s - watermark_s),
        totals=Totals(
            total=len(known),
            desired=len(known),
            healthy=sum(1 for _, state in fresh if state in _HEALTHY),
            running=sum(1 for _, state in fresh if state in _RUNNING),
            enabled=sum(1 for one, _ in fresh if one.enabled),
        ),
    )


def _health(states: list[tuple[str, Observation, ComponentState]], now_s: float) -> tuple[Health, str | None]:
    """Return Degraded if something is known to be wrong, Unknown if a component did not report, else Healthy."""
    wrong = [(name, one) for name, one, state in states if state is ComponentState.FAILED or one.forced]
    if wrong:
        name, one = wrong[0]
        why = one.failure or ("was ended by force" if one.forced else "says that it is not healthy")
        return "Degraded", _reason(name, why, len(wrong))
    silent = [(name, one) for name, one, _ in states if one.finished is None and not one.fresh(now_s)]
    if silent:
        name, one = silent[0]
        why = "never said anything" if one.reported_s is None else f"said nothing for {now_s - one.reported_s:.0f} s"
        if one.reported_s is None and one.end is not None:
            why = f"ended {one.end}; it was started {one.launches} times, and said nothing since"
        return "Unknown", _reason(name, why, len(silent))
    return "Healthy", None


def _reason(name: str, why: str, count: int) -> str:
    return f"{name} {why}" + (f", and {count - 1} more" if count > 1 else "")
