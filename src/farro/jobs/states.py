"""Define the statuses of a job, and the reasons for changing one."""

from __future__ import annotations

from enum import StrEnum


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


TERMINAL = frozenset({Status.SUCCEEDED, Status.KILLED})


def is_terminal(status: Status, *, finalized: bool) -> bool:
    return status in TERMINAL or (finalized and status is Status.FAILED)
