"""What a controller's status says beyond the counts: a line for each component, and recent errors.

The counts live in swarm.status; when a status is sent, in the controller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from farro.swarm.controller.observed import Watch
from farro.swarm.lifecycle import ComponentState
from farro.swarm.plan import Member
from farro.swarm.publish import earlier
from farro.swarm.status import Seen

ERRORS = 20  # the newest are told
_REASON = 500  # characters of one
_WORDS = 20  # that a component adds to its status are told on


class Summary:
    """`note` writes into the swarm's audit trail."""

    def __init__(self, watch: Watch, now: Callable[[], str], note: Callable[..., None]) -> None:
        self._watch = watch
        self._note = note
        self._refused: dict[str, Any] = {}  # instance → how many it had refused when that was last noted
        self._now = now
        self._errors: deque[dict[str, Any]] = deque(maxlen=ERRORS)
        self._told: dict[str, tuple[Any, ...]] = {}  # instance → what was last told of it
        self._ends: dict[str, tuple[float, str]] = {}  # instance → when it last ended: on our clock, and for people
        self._again: dict[str, dict[str, Any]] = {}  # instance → the error that tells of its last start
        self._noticed: dict[str, tuple[Any, ...]] = {}  # instance → the trouble that stands among the errors

    def error(self, reason: str, correlation_id: str | None = None, member: Member | None = None) -> None:
        told = {
            "at": self._now(),
            "role": None if member is None else member.role,
            "instance": None if member is None else member.instance,
            "reason": reason[:_REASON],
            "correlationId": correlation_id,
        }
        self._errors.append({name: value for name, value in told.items() if value is not None})

    def errors(self) -> list[dict[str, Any]]:
        return list(self._errors)

    def lines(
        self, members: Sequence[Member], now_s: float, off: Collection[str] = (), *, tended: bool = True
    ) -> list[dict[str, Any]]:
        """Of every component. `off`: those that worked, and were told to stop: by the seed's lifecycle (§5.2) they are
        Stopped then, and Healthy only until they are first enabled. Not `tended`: nobody starts again what is dead."""
        found = []
        for member in members:
            seen, said = self._watch.of(member.instance), self._watch.said.get(member.instance)
            state = seen.state(now_s)
            if state is ComponentState.HEALTHY and member.instance in off:
                state = ComponentState.STOPPED
            if state is ComponentState.PROVISIONING and not seen.alive and not tended:
                state = ComponentState.FAILED
            line: dict[str, Any] = {
                "role": member.role,
                "instance": member.instance,
                "state": str(state),
                "enabled": bool(seen.enabled),
                "starts": seen.launches,
                "lastEnd": self._last_end(member.instance, seen, now_s),
                "failure": seen.failure,
                "stalenessSec": None if seen.word_s is None else round(max(0.0, now_s - seen.word_s), 3),
                "tps": None if said is None else said.data.get("tps"),
                "told": None if said is None else _scalars(said.data.get("told")),
            }
            found.append({name: value for name, value in line.items() if value is not None})
            self._notice(member, seen, None if said is None else said.data.get("lastError"))
            if said is not None:
                self._audit(member.instance, said.data.get("refused"))
        return found

    def _audit(self, instance: str, refused: Any) -> None:
        """What a component heard and did not obey, once. A new process counts anew."""
        told = refused if isinstance(refused, dict) else {}
        count = told.get("count")
        if self._refused.get(instance) != count:
            self._refused[instance] = count
            if count:
                key, reason = told.get("lastKey"), told.get("lastReason")
                self._note("refused", instance=instance, count=count, key=key, reason=reason)

    def changed(self, lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those of which something else is to be told than was."""
        found = []
        for line in lines:
            what = tuple(line.get(name) for name in ("state", "enabled", "starts", "failure", "lastEnd"))
            if self._told.get(line["instance"]) != what:
                self._told[line["instance"]] = what
                found.append(line)
        return found

    def _last_end(self, instance: str, seen: Seen, now_s: float) -> dict[str, str] | None:
        """When and how it last ended. The time is reckoned once: then it is the same however often it is told."""
        if seen.end is None or seen.end_s is None:
            return None
        known = self._ends.get(instance)
        if known is None or known[0] != seen.end_s:
            self._ends[instance] = known = (seen.end_s, earlier(self._now(), max(0.0, now_s - seen.end_s)))
        return {"at": known[1], "how": seen.end, **({"words": seen.end_words} if seen.end_words else {})}

    def _notice(self, member: Member, seen: Seen, said: object) -> None:
        """Trouble of a component becomes an error once: when it is new. Starts of before this controller are not."""
        before = self._noticed.get(member.instance, (None, max(1, seen.launches), None))
        self._noticed[member.instance] = now = (seen.failure, max(1, seen.launches), said)
        if seen.failure is not None and seen.failure != before[0]:
            self.error(seen.failure, member=member)
        elif now[1] > before[1]:
            how = f"ended {seen.end}" if seen.end is not None else "ended"
            words = f"; its log ended with: {seen.end_words}" if seen.end_words else ""
            again = self._again.pop(member.instance, None)
            if (
                again is not None and again in self._errors
            ):  # of one that dies again and again the last time stands for all
                self._errors.remove(again)
            self.error(f"{how}, and was started again ({seen.launches} starts){words}", member=member)
            self._again[member.instance] = self._errors[-1]
        if isinstance(said, str) and said != before[2]:
            self.error(said, member=member)


def _scalars(told: object) -> dict[str, Any] | None:
    """What a component adds to its status (`bee.tell`), as far as it is a few plain values."""
    if not isinstance(told, dict):
        return None
    plain = {name: value for name, value in told.items() if isinstance(value, str | int | float)}
    return {name: value if not isinstance(value, str) else value[:100] for name, value in list(plain.items())[:_WORDS]}
