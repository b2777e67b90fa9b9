"""Compute the next lifecycle of a job, checked against the table of transitions.

`after` decides which move an outcome asks for; the stores carry it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, assert_never

from farro.jobs import places, states
from farro.jobs.envelope import Decision, Hop, Lifecycle
from farro.jobs.outcomes import ErrorInfo, Failed, Outcome, Released, Succeeded, Unroutable
from farro.jobs.retry import GiveUp, RetryAfter, RetryPolicy, Uniform, decide, delay_after
from farro.jobs.states import Reason, Status
from farro.jobs.times import timestamp
from farro.lazy_dataclass import dataclass, replace

LONGEST_WAIT_S = 86_400.0  # the longest delay that a provider may ask for: quotas renew daily
AWAITS_ACCOUNT = "awaits_account"  # the code of a hop that released a job whose provider's account is paused


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """A decision that is not yet part of a lifecycle."""

    reason: Reason
    status: Status
    role: str
    delay_s: float | None = None
    error: ErrorInfo | None = None
    note: str | None = None
    route: Mapping[str, Any] | None = None  # the routing decision, as in Hop.route
    waits: bool = False  # the job waits for a person

    @property
    def to(self) -> str:
        return places.WAITING if self.waits else places.destination(self.role, self.status)


def enqueued(
    *,
    job_id: str,
    role: str,
    now: datetime,
    not_before: datetime | None = None,
    routing: Mapping[str, Any] | None = None,
    retry_of: str | None = None,
    waits: bool = False,
) -> Lifecycle:
    """Return the lifecycle of a new job. With `waits` it runs after other jobs and stays among the waiting jobs until
    they have ended: a decision like any other, which recovery carries out."""
    stamp = timestamp(now)
    due = None if not_before is None else timestamp(not_before)
    return Lifecycle(
        job_id=job_id,
        role=role,
        status=Status.QUEUED,
        created_at=stamp,
        enqueued_at=stamp,
        updated_at=stamp,
        not_before=due,
        routing=routing,
        retry_of=retry_of,
        decision=Decision(attempt=0, reason=Reason.ENQUEUED, to=places.WAITING, not_before=due) if waits else None,
    )


def unblocked(before: Lifecycle, *, by: str, now: datetime, note: str | None = None) -> Lifecycle:
    """Move a waiting job into its queue: its dependencies have ended. The status stays `queued`, so this is no
    transition."""
    stamp, to = timestamp(now), places.incoming(before.role)
    hop = Hop(at=stamp, role=before.role, attempt=before.attempt, reason=Reason.ENQUEUED, to=to, by=by, note=note)
    decision = Decision(attempt=before.attempt, reason=Reason.ENQUEUED, to=to, not_before=before.not_before)
    return before.changed(
        enqueued_at=stamp, updated_at=stamp, agent=by, hops=(*before.hops, hop), error=None, decision=decision
    )


def waits(lifecycle: Lifecycle) -> bool:
    """Return whether a queued job says that it is among the waiting jobs."""
    return lifecycle.decision is not None and lifecycle.decision.to == places.WAITING


def waits_for_person(lifecycle: Lifecycle) -> bool:
    """Return whether the manager sent the job to wait for a person. A job with dependencies waits from its
    submission."""
    return waits(lifecycle) and lifecycle.decision is not None and lifecycle.decision.reason is Reason.ROUTED


def awaited_accounts(lifecycle: Lifecycle) -> tuple[str, ...]:
    """Return the paused accounts that a queued job waits for."""
    if lifecycle.status is not Status.QUEUED or not lifecycle.hops:
        return ()
    route = lifecycle.hops[-1].route or {}
    accounts = route.get("accounts") if route.get("code") == AWAITS_ACCOUNT else None
    return tuple(map(str, accounts)) if isinstance(accounts, list) else ()


def dependency_failed(role: str, why: str) -> Move:
    """Return the move of a job whose dependency failed: it will never run."""
    error = ErrorInfo(category="dependency_failed", message=why)
    return Move(reason=Reason.KILLED, status=Status.KILLED, role=role, error=error, note=why)


def claimed(
    before: Lifecycle,
    *,
    agent: str,
    attempt: int,
    correlation_id: str,
    now: datetime,
    policy_version: str | None = None,
) -> Lifecycle:
    before.check_transition(Status.IN_PROGRESS, Reason.CLAIMED)
    stamp = timestamp(now)
    return before.changed(
        status=Status.IN_PROGRESS,
        attempt=attempt,
        agent=agent,
        correlation_id=correlation_id,
        updated_at=stamp,
        first_claimed_at=before.first_claimed_at or stamp,
        not_before=None,
        error=None,
        policy_version=policy_version,
    )


def decided(
    before: Lifecycle, move: Move, *, by: str, attempt: int, now: datetime, result_sha256: str | None = None
) -> Lifecycle:
    """Return the lifecycle after `move`. Raise IllegalTransition when the table does not allow it.

    A terminal commit sets finalized_at; where routing ends at the manager, only the manager's commit does
    (DESIGN §3.2).
    """
    before.check_transition(move.status, move.reason)
    stamp, to = timestamp(now), move.to
    not_before = None if move.delay_s is None else timestamp(now + timedelta(seconds=move.delay_s))
    requeued = move.reason is Reason.REQUEUED
    final = move.status in states.TERMINAL or (
        move.status is Status.FAILED and (move.reason is Reason.FINALIZED or not _manager_finalizes(before))
    )
    hop = Hop(
        at=stamp,
        role=before.role,
        attempt=attempt,
        reason=move.reason,
        to=to,
        by=by,
        note=move.note,
        route=move.route,
        claimed_at=before.updated_at if before.status is Status.IN_PROGRESS else None,  # as `claimed` wrote it
    )
    return before.changed(
        role=move.role,
        status=move.status,
        attempt=attempt,
        retry_count=before.retry_count + requeued,
        hops=(*before.hops, hop),
        enqueued_at=stamp if move.status is Status.QUEUED else before.enqueued_at,
        updated_at=stamp,
        finalized_at=stamp if final else None,
        not_before=not_before,
        agent=by,
        requeued_from=before.status if requeued else None,
        result_sha256=result_sha256 or before.result_sha256,
        error=_error(before, move),
        decision=Decision(attempt=attempt, reason=move.reason, to=to, not_before=not_before),
    )


def _error(before: Lifecycle, move: Move) -> Mapping[str, str] | None:
    if move.error is not None:
        return {"category": move.error.category, "message": move.error.message}
    return before.error if move.reason is Reason.FINALIZED else None


def _manager_finalizes(lifecycle: Lifecycle) -> bool:
    return (lifecycle.routing or {}).get("mode") == "manager" and lifecycle.role != "Manager"


def is_decided(lifecycle: Lifecycle, highest_attempt: int) -> bool:
    """Return whether recovery only has to carry out the decision in job.json (DESIGN §3.3)."""
    return lifecycle.decision is not None and lifecycle.decision.attempt == highest_attempt


def completion_text(lifecycle: Lifecycle) -> str | None:
    """Return the result.md of a job that was declared succeeded: who did it, and why. None: that was not the end."""
    if lifecycle.decision is None or lifecycle.decision.reason is not Reason.FORCE_COMPLETED:
        return None
    last = lifecycle.hops[-1]
    why = last.note or "No reason was given."
    return f"# Declared succeeded\n\nBy {last.by} at {last.at}, after attempt {last.attempt}.\n\n{why}\n"


def next_role(lifecycle: Lifecycle) -> str | None:
    """Return the next role after a success; None when the job ends here."""
    routing = lifecycle.routing or {}
    if routing.get("mode") == "manager":
        return None if lifecycle.role == "Manager" else "Manager"
    onward = routing.get("next")
    return onward if onward is not None and onward != lifecycle.role and lifecycle.hop_start == 0 else None


def after(lifecycle: Lifecycle, outcome: Outcome, policy: RetryPolicy, uniform: Uniform, *, attempt: int) -> Move:
    """Return the move that an outcome asks for."""
    match outcome:
        case Succeeded():
            onward = next_role(lifecycle)
            if onward is not None:
                return Move(reason=Reason.ROUTED, status=Status.QUEUED, role=onward)
            return Move(reason=Reason.COMMITTED, status=Status.SUCCEEDED, role=lifecycle.role)
        case Failed(error=error, retryable=retryable, retry_after_s=wait_s):
            if retryable:
                match decide(lifecycle.attempts_in_hop(attempt), policy, uniform):
                    case RetryAfter(delay_s=delay_s):
                        return Move(
                            reason=Reason.RETRIED,
                            status=Status.QUEUED,
                            role=lifecycle.role,
                            delay_s=min(max(delay_s, wait_s or 0.0), LONGEST_WAIT_S),
                            error=error,
                        )
                    case GiveUp():
                        pass
            return Move(reason=Reason.COMMITTED, status=Status.FAILED, role=lifecycle.role, error=error)
        case Released(note=note, wait=wait):
            back = Move(reason=Reason.RELEASED, status=Status.QUEUED, role=lifecycle.role, note=note or None)
            if wait is None:
                return back
            route = {"code": AWAITS_ACCOUNT, "accounts": list(wait.accounts)}
            return replace(back, delay_s=min(wait.delay_s, LONGEST_WAIT_S), route=route)
        case Unroutable(error=error):
            return Move(reason=Reason.ROUTING_EXHAUSTED, status=Status.STALE, role=lifecycle.role, error=error)
    assert_never(outcome)


def resolve_stale(lifecycle: Lifecycle, policy: RetryPolicy, uniform: Uniform, *, highest: int) -> Move:
    """Decide about a stale job: requeue it while attempts remain, else give up (RELIABILITY 20)."""
    # Requeues count too: otherwise a claim that dies before it counts its attempt would be requeued for ever.
    attempts = max(lifecycle.attempts_in_hop(highest), lifecycle.requeues_in_hop)
    if _not_its_fault(lifecycle):
        again = Move(reason=Reason.REQUEUED, status=Status.QUEUED, role=lifecycle.role)
        return replace(again, delay_s=delay_after(attempts, policy, uniform))
    match decide(attempts, policy, uniform):
        case RetryAfter(delay_s=delay_s):
            # No delay after the first death: most workers die by no fault of their job. A job that kills its workers
            # waits longer each time.
            later = Move(reason=Reason.REQUEUED, status=Status.QUEUED, role=lifecycle.role)
            return later if attempts <= 1 else replace(later, delay_s=delay_s)
        case GiveUp(attempts=count):
            why = (lifecycle.error or {}).get("message", "its agent died")
            return Move(
                reason=Reason.GAVE_UP,
                status=Status.KILLED,
                role=lifecycle.role,
                error=ErrorInfo(
                    category="attempts_exhausted", message=f"gave up after {count} attempts; the last: {why}"
                ),
            )


def _not_its_fault(lifecycle: Lifecycle) -> bool:
    """Return whether the job became stale through no fault of its own: it was done but could not be handed on, or the
    manager died while deciding. Neither is an attempt of the work, and a manager that is killed repeatedly must not
    kill the jobs that it routes. `abandon_after` bounds these."""
    exhausted = bool(lifecycle.hops) and lifecycle.hops[-1].reason is Reason.ROUTING_EXHAUSTED
    return exhausted or (lifecycle.role == "Manager" and (lifecycle.routing or {}).get("mode") == "manager")
