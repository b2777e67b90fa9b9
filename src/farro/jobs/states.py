"""Define the statuses of a job, the reasons for changing one, and the one table of transitions between them."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType

from farro.errors import IllegalTransition


class Status(StrEnum):
    """The status of a job. Each comment names who moves the job on, also after a crash."""

    QUEUED = "queued"  # waits in a role's incoming/; a worker claims it
    IN_PROGRESS = "in_progress"  # an agent owns it; when that agent dies, a watchdog moves it on
    SUCCEEDED = "succeeded"  # terminal
    FAILED = "failed"  # terminal once finalized_at is set; until then the manager or an operator moves it on
    STALE = "stale"  # its agent died or could not route it; the manager requeues it or gives up
    KILLED = "killed"  # terminal

    @classmethod
    def parse(cls, text: str) -> Status:
        """Parse the JSON value; the source document's spelling `in-progress` is accepted."""
        return cls(text.replace("-", "_"))


class Reason(StrEnum):
    """Why a job changed its status: the code in hops[], in decisions and in the audit log."""

    ENQUEUED = "enqueued"
    CLAIMED = "claimed"
    COMMITTED = "committed"
    ROUTED = "routed"
    RETRIED = "retried"
    RELEASED = "released"
    ROUTING_EXHAUSTED = "routing_exhausted"
    AGENT_DIED = "agent_died"
    REQUEUED = "requeued"
    GAVE_UP = "gave_up"
    KILLED = "killed"
    FORCE_COMPLETED = "force_completed"
    FINALIZED = "finalized"  # the manager made a failure final
    ANSWERED = "answered"  # a person approved or refused
    MIGRATED = "migrated"  # moved to another store; only a job that was never started
    REROUTED = "rerouted"  # a person overrode the workflow
    RESUMED = "resumed"  # a person resumed the account that it waited for


TERMINAL = frozenset({Status.SUCCEEDED, Status.KILLED})
FINISHED = (Status.SUCCEEDED, Status.FAILED, Status.KILLED)  # work on them has ended; a failure may not be final yet


def is_terminal(status: Status, *, finalized: bool) -> bool:
    return status in TERMINAL or (finalized and status is Status.FAILED)


# Every store consults this table.
_S, _R = Status, Reason
TRANSITIONS: MappingProxyType[tuple[Status, Status], frozenset[Reason]] = MappingProxyType(
    {
        (_S.QUEUED, _S.IN_PROGRESS): frozenset({_R.CLAIMED}),
        (_S.QUEUED, _S.QUEUED): frozenset({_R.ANSWERED, _R.REROUTED, _R.RESUMED}),  # to another place or time
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


def check_transition(job_id: str, before: Status, after: Status, reason: Reason, *, finalized: bool) -> None:
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
