"""How a transition is told to the audit log: as codes, from the lifecycle that came of it.

Writing them down lives in observe.audit; free text (notes, messages) is never among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farro.jobs.envelope import Lifecycle
from farro.jobs.places import parse
from farro.jobs.states import Reason, Status

# Reasons that leave no doubt about what a job was before.
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
    """The last transition of this lifecycle: `event` is its reason, `from` and `status` what it was and is. None where
    there is nothing to say; `next` is the role that a routed job went on to, `decision` what a manager decided."""
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
    """A job that was claimed and not begun is in its place again, and its lifecycle says nothing of it."""
    return {**codes(claimed), "event": Reason.RELEASED, "from": Status.IN_PROGRESS, "status": Status.QUEUED}


def last_reason(lifecycle: Lifecycle) -> Reason:
    if lifecycle.status is Status.IN_PROGRESS:
        return Reason.CLAIMED
    return Reason.ENQUEUED if lifecycle.decision is None else lifecycle.decision.reason


def came_from(lifecycle: Lifecycle) -> Status:
    """What the job was before its last transition. Its history tells, also to whoever rolls a dead agent's decision
    forward and never saw it."""
    reason = last_reason(lifecycle)
    if reason in _FROM:
        return _FROM[reason]
    if reason is Reason.REQUEUED and lifecycle.requeued_from is not None:
        return lifecycle.requeued_from
    earlier = lifecycle.hops[-2] if len(lifecycle.hops) > 1 else None
    if lifecycle.attempt > (0 if earlier is None else earlier.attempt):
        return Status.IN_PROGRESS  # an attempt was counted since: it was claimed
    return Status.QUEUED if earlier is None else parse(earlier.to).status
