"""Decide what to do next for a command, from its goal and what is known of the components. Pure: no clock, no bus.

A controller decides again after each message and at each turn; it keeps no other plan. So a restarted
controller needs only the open command and a fresh look at its components.

- Components are launched all at once, and enabled stage by stage: readers wait until their writers were *observed* to
  be enabled. Disabling goes the other way round. [test_nothing_is_enabled_before_what_it_reads_from]
- Each component has its own time limit, and the swarm one for all (seed 003 §8). A component that starts too late fails
  the command; one that stops too late is ended by force, reported as degraded, and delays no other.
- A failure deletes nothing. [test_a_failure_removes_nothing]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Literal

from farro.lazy_dataclass import dataclass
from farro.swarm.lifecycle import Observation
from farro.swarm.plan import Member, SwarmPlan, Timeouts, member_stages, start_order
from farro.swarm.wire.names import Signal


class Target(StrEnum):
    PROVISIONED = "provisioned"  # all components run, healthy and disabled (template)
    ENABLED = "enabled"  # start
    DISABLED = "disabled"  # stop
    GONE = "gone"  # remove


@dataclass(frozen=True, kw_only=True, slots=True)
class ComponentAction:
    """One step for one component."""

    what: Literal["launch", "enable", "disable", "poll", "force", "deprovision"]
    instance: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ReconcileDecision:
    """The steps to do now, and the progress of the command."""

    do: tuple[ComponentAction, ...] = ()
    done: bool = False
    failed: str | None = None
    code: str | None = None  # of the failure
    degraded: tuple[str, ...] = ()  # components that were ended by force


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandGoal:
    """A command in progress and its goal."""

    plan: SwarmPlan
    target: Target
    begun_s: float


def reconcile(goal: CommandGoal, seen: Mapping[str, Observation], now_s: float) -> ReconcileDecision:
    """Decide the next steps, and whether the command has had its effect."""
    match goal.target:
        case Target.PROVISIONED:
            return _provision(goal, seen, now_s)
        case Target.ENABLED:
            return _enable(goal, seen, now_s)
        case Target.DISABLED:
            return _disable(goal, seen, now_s)
        case Target.GONE:
            return _remove(goal, seen, now_s)


# --- template ---


def _provision(goal: CommandGoal, seen: Mapping[str, Observation], now_s: float) -> ReconcileDecision:
    limits, members = goal.plan.timeouts, list(goal.plan.members())
    failed = _failure(members, seen)
    if failed is not None:
        return failed
    ordered = itertools.chain(*member_stages(goal.plan))
    launches = [ComponentAction(what="launch", instance=one.instance) for one in ordered if _missing(seen, one)]
    waiting = [one for one in members if not _ready(_observed(seen, one), now_s)]
    if not waiting and not launches:
        enabled = [one for one in members if _observed(seen, one).enabled]
        if enabled:  # its plan was replaced in a running swarm: a template always ends disabled
            return _disable(goal, seen, now_s)
        return ReconcileDecision(done=True)
    for one in waiting:
        found = _observed(seen, one)
        if found.launched_s is not None and now_s - found.launched_s >= limits.provision:
            hint = "" if found.reported_s is not None else ": it never said anything; its log may tell why"
            why = f"was not healthy {limits.provision:g} s after its launch{hint}"
            return _timed_out(one, "PROVISION_TIMEOUT", why)
    if now_s - goal.begun_s >= limits.ready:
        return _timed_out(waiting[0], "READY_TIMEOUT", f"was not healthy when the swarm's {limits.ready:g} s were over")
    polls = list(_poll_actions(waiting, seen, now_s))
    return ReconcileDecision(do=(*launches, *polls))


# --- start ---


def _enable(goal: CommandGoal, seen: Mapping[str, Observation], now_s: float) -> ReconcileDecision:
    limits, stages = goal.plan.timeouts, member_stages(goal.plan)
    failed = _failure([one for stage in stages for one in stage], seen)
    if failed is not None:
        return failed
    for stage in stages:
        waiting = [one for one in stage if not (_observed(seen, one).enabled and _live(_observed(seen, one), now_s))]
        if not waiting:
            continue
        for one in waiting:
            asked = _observed(seen, one).asked_s
            if asked is not None and not _observed(seen, one).enabled and now_s - asked >= limits.start:
                return _timed_out(one, "START_TIMEOUT", f"was not enabled {limits.start:g} s after it was asked to")
        if now_s - goal.begun_s >= limits.start_total:
            return _timed_out(
                waiting[0], "START_TIMEOUT", f"was not enabled when the swarm's {limits.start_total:g} s were over"
            )
        launches = [ComponentAction(what="launch", instance=one.instance) for one in waiting if _missing(seen, one)]
        asks = [
            ComponentAction(what="enable", instance=one.instance)
            for one in waiting
            if _observed(seen, one).healthy
            and not _observed(seen, one).enabled
            and _observed(seen, one).asked_s is None
        ]
        polls = _poll_actions(waiting, seen, now_s)
        return ReconcileDecision(do=(*launches, *asks, *polls))
    return ReconcileDecision(done=True)


# --- stop and remove ---


def _disable(goal: CommandGoal, seen: Mapping[str, Observation], now_s: float) -> ReconcileDecision:
    limits, stages = goal.plan.timeouts, member_stages(goal.plan)
    forced = tuple(one.instance for stage in stages for one in stage if _observed(seen, one).forced)
    for stage in reversed(stages):
        waiting = [one for one in stage if _works(_observed(seen, one))]
        if not waiting:
            continue
        do: list[ComponentAction] = []
        for one in waiting:
            asked = _observed(seen, one).asked_s
            if asked is None:
                do.append(ComponentAction(what="disable", instance=one.instance))
            elif now_s - asked >= limits.stop:
                do.append(ComponentAction(what="force", instance=one.instance))
        return ReconcileDecision(do=tuple(do), degraded=forced)
    return ReconcileDecision(done=True, degraded=forced)


def _remove(goal: CommandGoal, seen: Mapping[str, Observation], now_s: float) -> ReconcileDecision:
    stopped = _disable(goal, seen, now_s)
    if not stopped.done:
        return stopped
    left = [name for name, one in sorted(seen.items()) if one.launched]
    if not left:
        return stopped
    place = {one.instance: number for number, one in enumerate(itertools.chain(*member_stages(goal.plan)))}
    left.sort(key=lambda name: -place.get(name, -1))
    do = tuple(ComponentAction(what="deprovision", instance=name) for name in left)
    return ReconcileDecision(do=do, degraded=stopped.degraded)


# --- helpers ---


def _observed(seen: Mapping[str, Observation], member: Member) -> Observation:
    return seen.get(member.instance, _UNSEEN)


_UNSEEN = Observation()


def _missing(seen: Mapping[str, Observation], member: Member) -> bool:
    one = _observed(seen, member)
    return not one.launched and one.failure is None and one.finished is None


def _ready(one: Observation, now_s: float) -> bool:
    return bool(one.healthy) and _live(one, now_s)


def _live(one: Observation, now_s: float) -> bool:
    return one.launched and one.alive and one.fresh(now_s)


def _works(one: Observation) -> bool:
    """Return whether a component may be working. One that has not reported since its launch may; a dead one does
    not."""
    return one.launched and one.alive and one.enabled is not False


def _failure(members: Iterable[Member], seen: Mapping[str, Observation]) -> ReconcileDecision | None:
    for one in members:
        why = _observed(seen, one).failure or _observed(seen, one).finished
        if why is not None:
            return ReconcileDecision(failed=f"{one.instance} {why}", code="COMPONENT_FAILED")
    return None


def _timed_out(member: Member, code: str, why: str) -> ReconcileDecision:
    return ReconcileDecision(failed=f"{member.instance} {why}", code=code)


def _poll_actions(
    members: Iterable[Member], seen: Mapping[str, Observation], now_s: float
) -> Iterator[ComponentAction]:
    for one in members:
        found = _observed(seen, one)
        if found.launched and found.alive and not (found.fresh(now_s) and found.healthy):
            yield ComponentAction(what="poll", instance=one.instance)


# --- how long a command may take (seed 003 §8) ---

MARGIN_S = 30.0
CONFIG_S = 30.0  # for a component to report the result of a config update
STATUS_S = 10.0
HANDSHAKE_S = Timeouts().provision  # a controller has as long to come up as a component


def limit_s(signal: Signal, plan: SwarmPlan | None) -> float:
    """Return after how many seconds the orchestrator gives up a command; `plan` is None if the swarm has none yet.

    These limits are longer by a margin than those of the controller, which ends its commands itself while it lives.
    """
    times = Timeouts() if plan is None else plan.timeouts
    stages = 1 if plan is None else len(start_order(plan).stages)
    match signal:
        case Signal.CREATE:
            return HANDSHAKE_S
        case Signal.TEMPLATE:  # components that left the plan are stopped first
            return times.ready + (stages + 1) * times.stop + MARGIN_S
        case Signal.START:
            return times.start_total + MARGIN_S
        case Signal.STOP:
            return stages * times.stop + MARGIN_S
        case Signal.REMOVE:
            return (stages + 1) * times.stop + MARGIN_S
        case Signal.CONFIG:
            return CONFIG_S + MARGIN_S
        case Signal.STATUS:
            return STATUS_S
