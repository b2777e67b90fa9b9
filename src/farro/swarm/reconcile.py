"""From what is wanted of a swarm and what is known of its components to what is to be done now. Pure: no clock, no bus.

A controller asks again whenever it has heard something, and at the next moment named here; it keeps no other plan. So
its restart needs nothing but the command that it works on and a fresh look at its components.

- Components are launched all at once, and enabled stage by stage: those that read wait until those that write were
  *seen* to be enabled. Disabling goes the other way round. [test_nothing_is_enabled_before_what_it_reads_from]
- A component has its own time for each, and the swarm one for all (seed 003 §8). What is over its time to start fails
  the command; what is over its time to stop is ended by force, told as degraded, and stops nobody else.
- Failing deletes nothing. [test_a_failure_removes_nothing]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Literal

from farro.lazy_dataclass import dataclass
from farro.swarm.order import Order
from farro.swarm.plan import Member, SwarmPlan
from farro.swarm.status import TTL_S, Seen

POLL_S = 2.0  # a component whose word is too old is asked so often


class Target(StrEnum):
    PROVISIONED = "provisioned"  # everything there, healthy, disabled (template)
    ENABLED = "enabled"  # start
    DISABLED = "disabled"  # stop
    GONE = "gone"  # remove


@dataclass(frozen=True, kw_only=True, slots=True)
class Do:
    """Something for one component."""

    what: Literal["launch", "enable", "disable", "poll", "force", "deprovision"]
    instance: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """How far the command is. `next_s`: when to ask again at the latest, though nothing was heard."""

    do: tuple[Do, ...] = ()
    done: bool = False
    failed: str | None = None
    code: str | None = None  # of a failure
    degraded: tuple[str, ...] = ()  # those that were ended by force
    next_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A command on its way."""

    plan: SwarmPlan
    order: Order
    target: Target
    begun_s: float
    ttl_s: float = TTL_S


def reconcile(wanted: Wanted, seen: Mapping[str, Seen], now_s: float) -> Verdict:
    """What to do now, and whether the command has had its effect."""
    match wanted.target:
        case Target.PROVISIONED:
            return _provision(wanted, seen, now_s)
        case Target.ENABLED:
            return _enable(wanted, seen, now_s)
        case Target.DISABLED:
            return _disable(wanted, seen, now_s)
        case Target.GONE:
            return _remove(wanted, seen, now_s)


# --- template ---


def _provision(wanted: Wanted, seen: Mapping[str, Seen], now_s: float) -> Verdict:
    limits, members = wanted.plan.timeouts, list(wanted.plan.members())
    failed = _failure(members, seen)
    if failed is not None:
        return failed
    launches = [Do(what="launch", instance=one.instance) for one in _ordered(wanted, members) if _missing(seen, one)]
    waiting = [one for one in members if not _ready(seen.get(one.instance, Seen()), now_s, wanted.ttl_s)]
    if not waiting and not launches:
        enabled = [one for one in members if _of(seen, one).enabled]
        if enabled:  # replaced under a running swarm: a template always ends disabled
            return _disable(wanted, seen, now_s)
        return Verdict(done=True)
    for one in waiting:
        began = _of(seen, one).launched_s
        if began is not None and now_s - began >= limits.provision:
            mute = "" if _of(seen, one).word_s is not None else ": it never said anything; its log may tell why"
            return _over(one, "PROVISION_TIMEOUT", f"was not healthy {limits.provision:g} s after its launch{mute}")
    if now_s - wanted.begun_s >= limits.ready:
        return _over(waiting[0], "READY_TIMEOUT", f"was not healthy when the swarm's {limits.ready:g} s were over")
    polls = list(_polls(waiting, seen, now_s, wanted.ttl_s))
    return Verdict(do=(*launches, *polls), next_s=now_s + POLL_S)


# --- start ---


def _enable(wanted: Wanted, seen: Mapping[str, Seen], now_s: float) -> Verdict:
    limits, stages = wanted.plan.timeouts, _stages(wanted)
    failed = _failure([one for stage in stages for one in stage], seen)
    if failed is not None:
        return failed
    for stage in stages:
        waiting = [one for one in stage if not (_of(seen, one).enabled and _live(_of(seen, one), now_s, wanted.ttl_s))]
        if not waiting:
            continue
        for one in waiting:
            asked = _of(seen, one).asked_s
            if asked is not None and not _of(seen, one).enabled and now_s - asked >= limits.start:
                return _over(one, "START_TIMEOUT", f"was not enabled {limits.start:g} s after it was asked to")
        if now_s - wanted.begun_s >= limits.start_total:
            return _over(
                waiting[0], "START_TIMEOUT", f"was not enabled when the swarm's {limits.start_total:g} s were over"
            )
        launches = [Do(what="launch", instance=one.instance) for one in waiting if _missing(seen, one)]
        asks = [
            Do(what="enable", instance=one.instance)
            for one in waiting
            if _of(seen, one).healthy and not _of(seen, one).enabled and _of(seen, one).asked_s is None
        ]
        polls = _polls(waiting, seen, now_s, wanted.ttl_s)
        return Verdict(do=(*launches, *asks, *polls), next_s=now_s + POLL_S)
    return Verdict(done=True)


# --- stop and remove ---


def _disable(wanted: Wanted, seen: Mapping[str, Seen], now_s: float) -> Verdict:
    limits, stages = wanted.plan.timeouts, _stages(wanted)
    forced = tuple(one.instance for stage in stages for one in stage if _of(seen, one).forced)
    for stage in reversed(stages):
        waiting = [one for one in stage if _works(_of(seen, one))]
        if not waiting:
            continue
        do: list[Do] = []
        for one in waiting:
            asked = _of(seen, one).asked_s
            if asked is None:
                do.append(Do(what="disable", instance=one.instance))
            elif now_s - asked >= limits.stop:
                do.append(Do(what="force", instance=one.instance))
        return Verdict(do=tuple(do), degraded=forced, next_s=now_s + POLL_S)
    return Verdict(done=True, degraded=forced)


def _remove(wanted: Wanted, seen: Mapping[str, Seen], now_s: float) -> Verdict:
    stopped = _disable(wanted, seen, now_s)
    if not stopped.done:
        return stopped
    left = [name for name, one in sorted(seen.items()) if one.launched]
    if not left:
        return stopped
    backwards = {one.instance: place for place, one in enumerate(_ordered(wanted, list(wanted.plan.members())))}
    left.sort(key=lambda name: -backwards.get(name, -1))
    do = tuple(Do(what="deprovision", instance=name) for name in left)
    return Verdict(do=do, degraded=stopped.degraded, next_s=now_s + POLL_S)


# --- looking ---


def _of(seen: Mapping[str, Seen], member: Member) -> Seen:
    return seen.get(member.instance, _NOTHING)


_NOTHING = Seen()


def _missing(seen: Mapping[str, Seen], member: Member) -> bool:
    one = _of(seen, member)
    return not one.launched and one.failure is None and one.finished is None


def _ready(one: Seen, now_s: float, ttl_s: float) -> bool:
    return bool(one.healthy) and _live(one, now_s, ttl_s)


def _live(one: Seen, now_s: float, ttl_s: float) -> bool:
    return one.launched and one.alive and one.fresh(now_s, ttl_s)


def _works(one: Seen) -> bool:
    """Whether it may be doing work: what nobody has heard of since it was launched may. A dead one does none."""
    return one.launched and one.alive and one.enabled is not False


def _failure(members: Iterable[Member], seen: Mapping[str, Seen]) -> Verdict | None:
    for one in members:
        why = _of(seen, one).failure or _of(seen, one).finished
        if why is not None:
            return Verdict(failed=f"{one.instance} {why}", code="COMPONENT_FAILED")
    return None


def _over(member: Member, code: str, why: str) -> Verdict:
    return Verdict(failed=f"{member.instance} {why}", code=code)


def _polls(members: Iterable[Member], seen: Mapping[str, Seen], now_s: float, ttl_s: float) -> Iterator[Do]:
    for one in members:
        found = _of(seen, one)
        if found.launched and found.alive and not (found.fresh(now_s, ttl_s) and found.healthy):
            yield Do(what="poll", instance=one.instance)


def _stages(wanted: Wanted) -> list[list[Member]]:
    """The members of each stage, in the plan's order."""
    stage_of = {bee: number for number, stage in enumerate(wanted.order.stages) for bee in stage}
    stages: list[list[Member]] = [[] for _ in wanted.order.stages]
    for one in wanted.plan.members():
        stages[stage_of[one.bee]].append(one)
    return stages


def _ordered(wanted: Wanted, members: list[Member]) -> list[Member]:
    place = {bee: number for number, bee in enumerate(wanted.order.bees)}
    return sorted(members, key=lambda one: place[one.bee])
