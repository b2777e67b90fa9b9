"""Build a controller's status message: counts, a line for each component, and recent errors."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from farro.swarm.controller.actions import ControllerContext
from farro.swarm.controller.observed import ComponentObserver
from farro.swarm.lifecycle import Aggregate, ComponentState, Observation, SwarmState
from farro.swarm.plan import Member, SwarmPlan
from farro.swarm.publish import earlier
from farro.swarm.wire import messages, names

ERRORS = 20  # the newest are reported
_REASON = 500  # characters of one
_VALUES = 20  # that a component adds to its status


class Summary:
    """`note` writes into the swarm's audit log."""

    def __init__(self, observer: ComponentObserver, now: Callable[[], str], note: Callable[..., None]) -> None:
        self._observer = observer
        self._note = note
        self._refused: dict[str, Any] = {}  # instance → its count of refused signals when that was last noted
        self._now = now
        self._errors: deque[dict[str, Any]] = deque(maxlen=ERRORS)
        self._reported: dict[str, tuple[Any, ...]] = {}  # instance → what was last reported of it
        self._ends: dict[str, tuple[float, str]] = {}  # instance → its last end: monotonic time, timestamp
        self._restart_errors: dict[str, dict[str, Any]] = {}  # instance → the error about its last restart
        self._noticed: dict[str, tuple[Any, ...]] = {}  # instance → the problem that is already among the errors

    def error(self, reason: str, correlation_id: str | None = None, member: Member | None = None) -> None:
        error = {
            "at": self._now(),
            "role": None if member is None else member.role,
            "instance": None if member is None else member.instance,
            "reason": reason[:_REASON],
            "correlationId": correlation_id,
        }
        self._errors.append({name: value for name, value in error.items() if value is not None})

    def errors(self) -> list[dict[str, Any]]:
        return list(self._errors)

    def lines(
        self, members: Sequence[Member], now_s: float, off: Collection[str] = (), *, restarting: bool = True
    ) -> list[dict[str, Any]]:
        """Return a line for each component.

        `off` holds components that worked and were told to stop: by the seed's lifecycle (§5.2) they are Stopped, and
        Healthy only until they are first enabled. `restarting` is False if dead components are not started again.
        """
        found = []
        for member in members:
            seen, report = self._observer.of(member.instance), self._observer.reports.get(member.instance)
            state = seen.state()
            if state is ComponentState.HEALTHY and member.instance in off:
                state = ComponentState.STOPPED
            if state is ComponentState.PROVISIONING and not seen.alive and not restarting:
                state = ComponentState.FAILED
            line: dict[str, Any] = {
                "role": member.role,
                "instance": member.instance,
                "state": str(state),
                "enabled": bool(seen.enabled),
                "starts": seen.launches,
                "lastEnd": self._last_end(member.instance, seen, now_s),
                "failure": seen.failure,
                "stalenessSec": None if seen.reported_s is None else round(max(0.0, now_s - seen.reported_s), 3),
                "tps": None if report is None else report.data.get("tps"),
                "told": None if report is None else _scalars(report.data.get("told")),
            }
            found.append({name: value for name, value in line.items() if value is not None})
            self._notice(member, seen, None if report is None else report.data.get("lastError"))
            if report is not None:
                self._audit_refused(member.instance, report.data.get("refused"))
        return found

    def _audit_refused(self, instance: str, refused: Any) -> None:
        """Record, once each, the signals that a component refused. A new process counts from zero."""
        data = refused if isinstance(refused, dict) else {}
        count = data.get("count")
        if self._refused.get(instance) != count:
            self._refused[instance] = count
            if count:
                key, reason = data.get("lastKey"), data.get("lastReason")
                self._note("refused", instance=instance, count=count, key=key, reason=reason)

    def changed(self, lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the lines that differ from what was last reported."""
        found = []
        for line in lines:
            what = tuple(line.get(name) for name in ("state", "enabled", "starts", "failure", "lastEnd"))
            if self._reported.get(line["instance"]) != what:
                self._reported[line["instance"]] = what
                found.append(line)
        return found

    def _last_end(self, instance: str, seen: Observation, now_s: float) -> dict[str, str] | None:
        """Return when and how a component last ended. The timestamp is computed once, so that it stays the same."""
        if seen.end is None or seen.end_s is None:
            return None
        known = self._ends.get(instance)
        if known is None or known[0] != seen.end_s:
            self._ends[instance] = known = (seen.end_s, earlier(self._now(), max(0.0, now_s - seen.end_s)))
        return {"at": known[1], "how": seen.end, **({"words": seen.end_log} if seen.end_log else {})}

    def _notice(self, member: Member, seen: Observation, last_error: object) -> None:
        """Add new problems of a component to the errors, once each. Starts before this controller do not count."""
        before = self._noticed.get(member.instance, (None, max(1, seen.launches), None))
        self._noticed[member.instance] = now = (seen.failure, max(1, seen.launches), last_error)
        if seen.failure is not None and seen.failure != before[0]:
            self.error(seen.failure, member=member)
        elif now[1] > before[1]:
            how = f"ended {seen.end}" if seen.end is not None else "ended"
            log = f"; its log ended with: {seen.end_log}" if seen.end_log else ""
            again = self._restart_errors.pop(member.instance, None)
            if again is not None and again in self._errors:  # one error for a component that keeps dying
                self._errors.remove(again)
            self.error(f"{how}, and was started again ({seen.launches} starts){log}", member=member)
            self._restart_errors[member.instance] = self._errors[-1]
        if isinstance(last_error, str) and last_error != before[2]:
            self.error(last_error, member=member)


def _scalars(data: object) -> dict[str, Any] | None:
    """Return what a component adds to its status (`bee.tell`), limited to a few plain values."""
    if not isinstance(data, dict):
        return None
    plain = {name: value for name, value in data.items() if isinstance(value, str | int | float)}
    return {name: value if not isinstance(value, str) else value[:100] for name, value in list(plain.items())[:_VALUES]}


def status_report(
    context: ControllerContext,
    state: SwarmState,
    aggregate: Aggregate,
    *,
    full: bool,
    at: str,
    about: str | None,
    queues: messages.StatusQueues,
) -> messages.StatusReport:
    """Build the status of a swarm. `about` is the correlation id of the status-request that it answers."""
    data: dict[str, Any] = {"health": aggregate.health}
    if aggregate.reason is not None:
        data["reason"] = aggregate.reason
    if about is not None:
        data["correlationId"] = about
    return messages.StatusReport(
        kind="status-full" if full else "status-delta",
        message_id=str(uuid.uuid4()),
        timestamp=at,
        role=names.CONTROLLER,
        instance=context.instance,
        swarm_id=context.swarm,
        enabled=True,
        state=str(state),
        watermark=None if aggregate.max_staleness_s is None else earlier(at, aggregate.max_staleness_s),
        max_staleness_sec=aggregate.max_staleness_s,
        totals=aggregate.totals,
        queues=queues,
        data=data,
    )


def queues_of(plan: SwarmPlan | None) -> messages.StatusQueues:
    """Return all queues that the components of a plan read, and all that they write."""
    if plan is None:
        return messages.StatusQueues()
    reads = {names.work_queue(plan.id, suffix) for bee in plan.bees for suffix in bee.work.inputs}
    writes = {names.work_queue(plan.id, suffix) for bee in plan.bees for suffix in bee.work.outputs}
    return messages.StatusQueues(inputs=tuple(sorted(reads)), outputs=tuple(sorted(writes)))
