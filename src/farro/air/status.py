"""Show jobs in Air-Executor's words: their state and progress, their tasks, and which processes are alive to run them.

The only place where farro's states are translated into Air-Executor's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, assert_never

from farro.errors import BadDocument, UnknownJob
from farro.execution import progress
from farro.execution.progress import read_result, step_results
from farro.jobs.states import Status
from farro.jobs.times import seconds_between, timestamp
from farro.lazy_dataclass import dataclass
from farro.queue import find_job, jobs
from farro.queue.history import known_attempts
from farro.store.port import AgentView, JobView, Store


class JobState(StrEnum):
    """The state of a job."""

    WAITING = "waiting"
    WORKING = "working"
    COMPLETED = "completed"
    FAILED = "failed"


class TaskState(StrEnum):
    """The state of a task."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class StateWithNote(NamedTuple):
    """The state of a job, with what the four words cannot express."""

    state: JobState
    note: str | None = None  # for people


def job_state(status: Status, *, terminal: bool = True, orphaned: bool = False) -> StateWithNote:
    """Translate a job's status.

    `orphaned`: the status is in_progress, but the agent that had the job is dead. That is never `working`: such a job
    must not look as if it only took long.
    """
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
    """Translate a step's state. `success` is None until it has ended.

    A task that began and did not end is running only while its job is worked on: what a dead worker left is pending.
    """
    if success is not None:
        return TaskState.COMPLETED if success else TaskState.FAILED
    return TaskState.RUNNING if begun and working else TaskState.PENDING


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskStatus:
    """The state of one task."""

    id: str
    state: TaskState
    exit_code: int | None = None
    duration_s: float | None = None
    needs: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStatus:
    """The state and progress of one job."""

    name: str | None  # None: unnamed
    job_id: str
    state: JobState
    status: Status  # farro's own status
    note: str | None
    done: int  # completed tasks
    total: int
    running: tuple[str, ...]
    duration_s: float | None  # from its first start to its end, or until now
    error: str | None
    tasks: tuple[TaskStatus, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveProcesses:
    """The processes that are alive to work."""

    workers: int  # slots
    busy: int
    manager: bool
    watchdog: bool


def live_processes(agents: Iterable[AgentView]) -> LiveProcesses:
    """Count the living agents."""
    living = [agent for agent in agents if agent.alive]
    workers = [agent for agent in living if agent.role not in (None, "Manager")]  # the manager is not a worker
    daemons = {agent.id.split(".", 1)[0] for agent in living if agent.role is None}
    return LiveProcesses(
        workers=len(workers),
        busy=sum(1 for agent in workers if agent.jobs),
        manager="manager" in daemons,
        watchdog="watchdog" in daemons,
    )


def named_job_statuses(store: Store, *, now: datetime) -> list[JobStatus]:
    """Return the status of every named job, ordered by name."""
    orphans = jobs.orphans(store)
    found = []
    for name, job_id in store.names().items():
        with contextlib.suppress(UnknownJob):  # pruned meanwhile
            found.append(job_status(store, job_id, name=name, now=now, orphans=orphans))
    return found


def unnamed_job_statuses(store: Store, *, now: datetime, limit: int) -> list[JobStatus]:
    """Return the status of at most `limit` jobs without a name."""
    orphans, known = jobs.orphans(store), set(store.names().values())
    found = [view for view in store.list(limit=limit + len(known)) if view.job_id not in known][:limit]
    return [_line(store, view, None, now, orphans) for view in found]


def job_status(
    store: Store, job_id: str, *, name: str | None, now: datetime, orphans: frozenset[str] | None = None
) -> JobStatus:
    """Return the status of one job. Raises UnknownJob."""
    view = find_job.find_view(store, job_id)
    return _line(store, view, name, now, jobs.orphans(store) if orphans is None else orphans)


def _line(store: Store, view: JobView, name: str | None, now: datetime, orphans: frozenset[str]) -> JobStatus:
    life = view.lifecycle
    translated = job_state(view.status, terminal=life.terminal, orphaned=view.job_id in orphans)
    tasks = tuple(_tasks(store.folder(view), translated.state is JobState.WORKING))
    error = None if life.error is None else f"{life.error.get('category')}: {life.error.get('message')}"
    note = translated.note
    if error is None and view.damaged is not None:
        error = f"damaged: {view.damaged}"
    elif error is None and not tasks:
        error = "damaged: its tasks cannot be read"
    elif view.waits_for and view.status is Status.QUEUED:
        note = f"after {', '.join(view.waits_for)}"
    return JobStatus(
        name=name,
        job_id=view.job_id,
        state=translated.state,
        status=view.status,
        note=note,
        done=sum(1 for task in tasks if task.state is TaskState.COMPLETED),
        total=len(tasks),
        running=tuple(task.id for task in tasks if task.state is TaskState.RUNNING),
        duration_s=seconds_between(life.first_claimed_at, life.finalized_at or timestamp(now)),
        error=error,
        tasks=tasks,
    )


def _tasks(folder: str, working: bool) -> Iterator[TaskStatus]:
    """Yield the plan's steps and the added ones, each as the last attempt left it."""
    numbers = known_attempts(folder)
    attempt = numbers[-1] if numbers else 0
    lines = progress.lines(folder, attempt)
    ended = {str(item.get("id") or item.get("step_number")): item for item in _ended(folder, attempt, lines)}
    began = set(progress.begun(folder, attempt)) if attempt else set()
    needs = _needs(progress.read_prompt(folder), lines)
    for task in dict.fromkeys((*needs, *ended, *(sorted(began) if working else ()))):
        yield _task(task, ended.get(task), task in began, working, needs.get(task, ()))


def _ended(folder: str, attempt: int, lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    result = read_result(folder, attempt) if attempt else {}
    return step_results(result) if "step_results" in result else [line for line in lines if "success" in line]


def _task(task: str, item: Mapping[str, Any] | None, began: bool, working: bool, needs: tuple[str, ...]) -> TaskStatus:
    if item is None:
        return TaskStatus(id=task, state=task_state(success=None, begun=began, working=working), needs=needs)
    code, duration, error = item.get("exit_code"), item.get("duration_s"), item.get("error")
    return TaskStatus(
        id=task,
        state=task_state(success=item.get("success") is True, begun=True, working=working),
        exit_code=code if isinstance(code, int) else None,
        duration_s=float(duration) if isinstance(duration, int | float) else None,
        needs=needs,
        error=error if isinstance(error, str) else None,
    )


def _needs(prompt: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return the plan's steps and the added ones, each with its dependencies; none if the prompt is not a plan."""
    from farro.plans.loading import load_data
    from farro.queue.plan_check import with_added

    try:
        plan = with_added(load_data(prompt, "prompt.json"), lines)
    except BadDocument:
        return {}
    return {step.id: step.depends_on for step in plan.steps}
