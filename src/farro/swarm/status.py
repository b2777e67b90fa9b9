"""What is known of a swarm's components, and what that comes to for the swarm (seed 003 §4, §10).

Messages live in messages; what is done about it lives in reconcile. Times are seconds of the observer's own clock.

A component's word holds for `ttl_s`; after that its health is asked for over HTTP before anything is said of it. An
aggregate is as old as the oldest word in it: that is its watermark, and how long ago that was, its staleness.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from farro.lazy_dataclass import dataclass
from farro.swarm.lifecycle import ComponentState

TTL_S = 30.0
HEARTBEAT_S = 10.0

Health = Literal["Healthy", "Degraded", "Unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """All that is known of one component."""

    launched: bool = False  # the runtime has it
    alive: bool = False  # … and it lives
    launched_s: float | None = None
    word_s: float | None = None  # when it, or its health endpoint, last said anything
    healthy: bool | None = None
    enabled: bool | None = None
    asked_s: float | None = None  # when it was last asked to be enabled or disabled otherwise than it is
    starts: int = 0  # how often it was launched in a row: one that lived for long is no longer one that dies
    launches: int = 0  # … and in all since it was last stopped; the runtime counts, no controller's end forgets it
    failure: str | None = None  # why nobody tries any more
    forced: bool = False  # it was ended by force
    ended_s: float | None = None  # when it was found dead
    exit_code: int | None = None  # of one that is dead; None: nobody saw it
    end: str | None = None  # how it last ended, for people: also of one that was started again
    end_s: float | None = None  # when that was seen
    end_words: str | None = None  # the last line of its log then
    hung: str | None = None  # it was ended because it said nothing: for how long
    finished: str | None = None  # it ended well and is not started again: why not

    def fresh(self, now_s: float, ttl_s: float = TTL_S) -> bool:
        return self.word_s is not None and now_s - self.word_s <= ttl_s

    def silence_s(self, now_s: float, attentive_s: float) -> float:
        """How long it had the chance to say something, and did not. `attentive_s`: since when whoever judges it was
        there all the time: what is said to one that sleeps is not heard."""
        began_s = self.launched_s if self.word_s is None else self.word_s
        return now_s - max(attentive_s, attentive_s if began_s is None else began_s)

    def state(self, now_s: float, ttl_s: float = TTL_S) -> ComponentState:
        """As the aggregate tells it."""
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
            return ComponentState.RUNNING
        return ComponentState.HEALTHY


@dataclass(frozen=True, kw_only=True, slots=True)
class Aggregate:
    """What a controller says of its swarm."""

    health: Health
    reason: str | None  # why it is not Healthy
    watermark_s: float | None  # None: somebody never said anything
    max_staleness_s: float | None
    desired: int
    healthy: int
    running: int
    enabled: int


def aggregate(members: Iterable[str], seen: Mapping[str, Seen], now_s: float, ttl_s: float = TTL_S) -> Aggregate:
    """Of the components that shall be there; others are not looked at."""
    wanted = list(members)
    known = [(name, seen.get(name, Seen())) for name in wanted]
    words = [one.word_s for _, one in known]
    told = [word for word in words if word is not None]
    watermark_s = min(told) if told and len(told) == len(words) else None
    states = [(name, one, one.state(now_s, ttl_s)) for name, one in known]
    fresh = [(one, state) for _, one, state in states if one.fresh(now_s, ttl_s)]
    health, reason = _health(states, now_s, ttl_s)
    return Aggregate(
        health=health,
        reason=reason,
        watermark_s=watermark_s,
        max_staleness_s=None if watermark_s is None else max(0.0, now_s - watermark_s),
        desired=len(wanted),
        healthy=sum(1 for _, state in fresh if state in (ComponentState.HEALTHY, ComponentState.RUNNING)),
        running=sum(1 for _, state in fresh if state is ComponentState.RUNNING),
        enabled=sum(1 for one, _ in fresh if one.enabled),
    )


def _health(states: list[tuple[str, Seen, ComponentState]], now_s: float, ttl_s: float) -> tuple[Health, str | None]:
    """Degraded: something is known to be wrong. Unknown: nothing is, but not everything was heard of."""
    wrong = [(name, one) for name, one, state in states if state is ComponentState.FAILED or one.forced]
    if wrong:
        name, one = wrong[0]
        why = one.failure or ("was ended by force" if one.forced else "says that it is not healthy")
        return "Degraded", _told(name, why, len(wrong))
    silent = [(name, one) for name, one, _ in states if one.finished is None and not one.fresh(now_s, ttl_s)]
    if silent:
        name, one = silent[0]
        why = "never said anything" if one.word_s is None else f"said nothing for {now_s - one.word_s:.0f} s"
        if one.word_s is None and one.end is not None:
            why = f"ended {one.end}; it was started {one.launches} times, and said nothing since"
        return "Unknown", _told(name, why, len(silent))
    return "Healthy", None


def _told(name: str, why: str, count: int) -> str:
    return f"{name} {why}" + (f", and {count - 1} more" if count > 1 else "")
