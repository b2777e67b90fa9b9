"""The one table of transitions between statuses, each with its reasons. Every store consults it."""

from __future__ import annotations

from types import MappingProxyType

from farro.errors import IllegalTransition
from farro.jobs.states import Reason, Status, is_terminal

_S, _R = Status, Reason
TRANSITIONS: MappingProxyType[tuple[Status, Status], frozenset[Reason]] = MappingProxyType(
    {
        (_S.QUEUED, _S.IN_PROGRESS): frozenset({_R.CLAIMED}),
        (_S.QUEUED, _S.QUEUED): frozenset({_R.ANSWERED, _R.REROUTED}),  # from one place to another
        (_S.QUEUED, _S.KILLED): frozenset({_R.KILLED, _R.MIGRATED}),
        (_S.IN_PROGRESS, _S.SUCCEEDED): frozenset({_R.COMMITTED, _R.FORCE_COMPLETED}),
        (_S.IN_PROGRESS, _S.FAILED): frozenset({_R.COMMITTED}),
        (_S.IN_PROGRESS, _S.QUEUED): frozenset({_R.ROUTED, _R.RETRIED, _R.RELEASED}),
        (_S.IN_PROGRESS, _S.STALE): frozenset({_R.ROUTING_EXHAUSTED, _R.AGENT_DIED}),
        (_S.IN_PROGRESS, _S.KILLED): frozenset({_R.KILLED}),
        (_S.STALE, _S.QUEUED): frozenset({_R.REQUEUED, _R.REROUTED}),
        (_S.STALE, _S.KILLED): frozenset({_R.GAVE_UP, _R.KILLED}),
        (_S.STALE, _S.SUCCEEDED): frozenset({_R.FORCE_COMPLETED}),
        (_S.FAILED, _S.QUEUED): frozenset({_R.REQUEUED, _R.REROUTED}),
        (_S.FAILED, _S.FAILED): frozenset({_R.FINALIZED}),
        (_S.FAILED, _S.KILLED): frozenset({_R.GAVE_UP, _R.KILLED}),
        (_S.FAILED, _S.SUCCEEDED): frozenset({_R.FORCE_COMPLETED}),
    }
)


def check(job_id: str, before: Status, after: Status, reason: Reason, *, finalized: bool) -> None:
    """Raise IllegalTransition unless the table has this transition for this reason."""
    if is_terminal(before, finalized=finalized):
        raise IllegalTransition(
            f"{job_id} is {before}, and that is final; nothing was changed. "
            f"`farro retry {job_id}` makes a new job from it"
        )
    reasons = TRANSITIONS.get((before, after), frozenset())
    if reasons and reason not in reasons:
        raise IllegalTransition(
            f"{job_id} is {before}: it becomes {after} when it is {' or '.join(sorted(reasons))}, and cannot be "
            f"{reason}. Nothing was changed"
        )
    if reason not in reasons:
        allowed = sorted({str(to) for (frm, to) in TRANSITIONS if frm is before})
        raise IllegalTransition(
            f"{job_id} is {before}: it cannot become {after} ({reason}); from {before} a job may become "
            f"{', '.join(allowed)}. Nothing was changed"
        )
