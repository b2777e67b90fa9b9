"""Air-Executor's words for what farro's jobs and steps are: the one place where they are translated. Pure.

What the statuses mean to farro itself lives in kernel.states.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, assert_never

from farro.jobs.states import Status


class JobState(StrEnum):
    WAITING = "waiting"
    WORKING = "working"
    COMPLETED = "completed"
    FAILED = "failed"


class TaskState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class StateWithNote(NamedTuple):
    state: JobState
    note: str | None = None  # what the four words cannot say


def job_state(status: Status, *, terminal: bool = True, orphaned: bool = False) -> StateWithNote:
    """`orphaned`: it says in_progress, and the agent that had it is dead. Never `working`: nobody works on it, and a
    job that nobody works on must not look as if it only took long."""
    match status:
        case Status.QUEUED:
            return StateWithNote(JobState.WAITING)
        case Status.IN_PROGRESS if orphaned:
            return StateWithNote(JobState.WAITING, "its worker died; a watchdog recovers it")
        case Status.IN_PROGRESS:
            return StateWithNote(JobState.WORKING)
        case Status.STALE:
            return StateWithNote(
                JobState.WAITING, "its last attempt was lost; the manager decides whether it runs again"
            )
        case Status.SUCCEEDED:
            return StateWithNote(JobState.COMPLETED)
        case Status.FAILED:
            return StateWithNote(JobState.FAILED, None if terminal else "it may still be queued again")
        case Status.KILLED:
            return StateWithNote(JobState.FAILED, "killed")
        case _:
            assert_never(status)


def task_state(*, success: bool | None, begun: bool, working: bool) -> TaskState:
    """`success`: how it ended, None when it has not. A task that began and did not end is running only while its job is
    worked on: what a dead worker left behind is pending, neither running for ever nor done."""
    if success is not None:
        return TaskState.COMPLETED if success else TaskState.FAILED
    return TaskState.RUNNING if begun and working else TaskState.PENDING
