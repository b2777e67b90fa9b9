"""Rules of starting and stopping: stage by stage as the work flows, each when the one before was seen to be done.

What the stages are lives in swarm.ordering.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from farro.lazy_dataclass import dataclass
from farro.swarm import order
from farro.swarm.conformance.messages import Heard, Violation
from farro.swarm.conformance.trace import Known, told
from farro.swarm.plan import SwarmPlan
from farro.swarm.wire.messages import ControlSignal, Ready, Status
from farro.swarm.wire.names import Signal


def orders(known: Known, skew_s: float) -> Iterator[Violation]:
    free_s: dict[str, float] = {}  # swarm → when its last command ended: one at a time
    for one, body in known.commands():
        if one.key.signal not in (Signal.START, Signal.STOP) or body.swarm_id is None:
            continue
        ends = known.ends[body.correlation_id]
        plans = [made for at_s, made in known.plans.get(body.swarm_id, []) if at_s <= one.at_s + skew_s]
        if not ends or not isinstance(ends[0].body, Ready) or not plans:
            continue
        began_s = max(one.at_s, free_s.get(body.swarm_id, 0.0))
        ended_s = free_s[body.swarm_id] = max(ends[0].at_s, began_s)
        walk = _Walk(enabling=one.key.signal is Signal.START, began_s=began_s, ended_s=ended_s, skew_s=skew_s)
        yield from walk.faults(one, plans[-1], known)


@dataclass(kw_only=True)
class _Walk:
    """One start or stop: whom the controller asked when, and when each was seen to have done it."""

    enabling: bool
    began_s: float
    ended_s: float
    skew_s: float

    def faults(self, one: Heard, wanted: SwarmPlan, known: Known) -> Iterator[Violation]:
        stages = _stages(wanted)
        asked: list[tuple[str, float]] = []  # of the stages before
        seen: list[tuple[str, float]] = []
        for stage in stages if self.enabling else reversed(stages):
            asks = {name: at_s for name in stage if (at_s := self._asked(known.asks[name])) is not None}
            for name, at_s in asks.items():
                early = [other for other, then_s in (*asked, *seen) if then_s > at_s + self.skew_s]
                if early:
                    word = "enabled" if self.enabling else "disabled"
                    yield told("order", one, f"{name} was to be {word} before {early[0]} was")
            for name in stage:
                done_s = self._done(known.statuses[name])
                if done_s is None and self.enabling:
                    yield told("observed", one, f"was confirmed though {name} never said that it is enabled")
                if name in asks and done_s is not None:
                    seen.append((name, done_s))
            asked += asks.items()

    def _asked(self, asks: Sequence[Heard]) -> float | None:
        for ask in asks:
            assert isinstance(ask.body, ControlSignal)
            if self._within(ask) and (ask.body.args or {}).get("enabled") is self.enabling:
                return ask.at_s
        return None

    def _done(self, statuses: Sequence[Heard]) -> float | None:
        """When it first said so; before this began, where it was so already."""
        before = [one for one in statuses if one.at_s < self.began_s]
        if before and _enabled(before[-1]) is self.enabling:
            return before[-1].at_s
        return next((one.at_s for one in statuses if self._within(one) and _enabled(one) is self.enabling), None)

    def _within(self, one: Heard) -> bool:
        return self.began_s - self.skew_s <= one.at_s <= self.ended_s + self.skew_s


def _enabled(one: Heard) -> bool:
    assert isinstance(one.body, Status)
    return one.body.enabled


def _stages(wanted: SwarmPlan) -> list[list[str]]:
    place = {bee: number for number, stage in enumerate(order.order(wanted).stages) for bee in stage}
    stages: list[list[str]] = [[] for _ in order.order(wanted).stages]
    for member in wanted.members():
        stages[place[member.bee]].append(member.instance)
    return stages
