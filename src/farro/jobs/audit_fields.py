"""Turn a transition into the codes of the audit log. Free text (notes, messages) is never among them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from zlib import crc32

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
_DAEMONS = frozenset({"manager", "watchdog", "scheduler", "drain"})  # names that stay in the audit log
_WAYS = frozenset({"cli", "py", "web", "mcp", "top"})  # how a user came in: the first part of an operator's name


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


def without_names(codes: Mapping[str, Any], *, actor: str) -> dict[str, Any]:
    """Return the codes with pseudonyms for users and hosts (SPEC-1 §8: no personal data). `actor`: of codes without
    one."""
    found = {**codes, "actor": pseudonym(codes.get("actor") or actor)}
    if found.get("agent"):
        found["agent"] = pseudonym(found["agent"])
    if found.get("user"):
        found["user"] = f"user-{_digits(found['user'])}"
    return found


@lru_cache(256)
def pseudonym(name: str) -> str:
    """Return a stable pseudonym of a user, or of the agent of a host or user. Its slot and its random part stay, so
    that a line can be compared with the agents in hops[]; the names of daemons stay, too.

    [test_the_audit_log_names_no_user_and_no_host]
    """
    head, dot, rest = name.partition(".")
    way, dash, user = head.partition("-")
    if head in _DAEMONS or "/" in head:
        return name
    if dash and way in _WAYS:
        return f"{way}-{_digits(user)}{dot}{rest}"
    return f"agent-{_digits(head)}{dot}{rest}" if dot else name


def _digits(name: str) -> str:
    return f"{crc32(name.encode()):08x}"


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
