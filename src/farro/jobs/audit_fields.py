"""Turn a transition into the codes of the audit log. Free text (notes, messages) is never among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farro.jobs.envelope import Lifecycle
from farro.jobs.places import parse
from farro.jobs.states import Reason, Status

# Reasons that determine the status before the transition.
_FROM = {
    Reason.CLAIMED: Status.QUEUED,
    Reason.COMMITTED: Status.IN_PROGRESS,
    Reason.ROUTED: Status.IN_PROGRESS,
    Reason.RETRIED: Status.IN_PROGRESS,
    Reason.RELEASED: Status.IN_PROGRESS,
    Reason.ROUTING_EXHAUSTED: Status.IN_PROGRESS,
    Reason.AGENT_DIED: Status.IN_PROGRESS,
    Reason.GAVE_UP: Status.STALE,
    Reason.FINALIZED: Status.FAILED,
    Reason.ANSWERED: Status.QUEUED,
}


def codes(lifecycle: Lifecycle) -> dict[str, str | int | bool | None]:
    """Return the codes of the last transition: `event` is its reason, `from` and `status` the statuses before and
    after, `next` the role that a routed job went to, `decision` the decision of the manager. Fields may be None."""
    reason = last_reason(lifecycle)
    role, onward = lifecycle.role, None
    route: Mapping[str, Any] = {}
    if reason in (Reason.ROUTED, Reason.REROUTED):
        role, onward = lifecycle.hops[-1].role, lifecycle.role
    if reason is not Reason.CLAIMED and lifecycle.hops:
        route = lifecycle.hops[-1].route or {}
    return {
        "event": reason,
        "actor": lifecycle.agent,
        "job_id": lifecycle.job_id,
        "role": role,
        "from": _FROM.get(reason) or (None if reason is Reason.ENQUEUED else came_from(lifecycle)),
        "status": lifecycle.status,
        "next": onward,
        "attempt": lifecycle.attempt,
        "correlation_id": lifecycle.correlation_id,
        "decision": route.get("code"),
        "degraded_bypass": True if route.get("code") == "degraded_bypass" else None,
        "error": None if lifecycle.error is None else lifecycle.error.get("category"),
    }


def handed_back(claimed: Lifecycle) -> dict[str, str | int | bool | None]:
    """Return the codes of a claim that was returned before it started; the lifecycle does not record it."""
    return {**codes(claimed), "event": Reason.RELEASED, "from": Status.IN_PROGRESS, "status": Status.QUEUED}


def last_reason(lifecycle: Lifecycle) -> Reason:
    if lifecycle.status is Status.IN_PROGRESS:
        return Reason.CLAIMED
    return Reason.ENQUEUED if lifecycle.decision is None else lifecycle.decision.reason


def came_from(lifecycle: Lifecycle) -> Status:
    """Return the status before the last transition, from the history alone: recovery, which rolls a dead agent's
    decision forward, never saw it."""
    reason = last_reason(lifecycle)
    if reason in _FROM:
        return _FROM[reason]
    if reason is Reason.REQUEUED and lifecycle.requeued_from is not None:
        return lifecycle.requeued_from
    earlier = lifecycle.hops[-2] if len(lifecycle.hops) > 1 else None
    if lifecycle.attempt > (0 if earlier is None else earlier.attempt):
        return Status.IN_PROGRESS  # an attempt was counted since, so it was claimed
    return Status.QUEUED if earlier is None else parse(earlier.to).status
