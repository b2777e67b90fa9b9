"""Air-Executor's records of a job: what is left to run of a task list, by what became of each task. Pure.

Task lists as plans, without their history, are read by forms; files and queueing live in operations.air_import.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from farro.air.words import JobState, TaskState
from farro.documents import Document, Path, refusal, shapes, show
from farro.lazy_dataclass import dataclass
from farro.plans.forms import TASK_STATE
from farro.plans.loading import load

STATES = tuple(map(str, TaskState))
_NO_PART = (*TASK_STATE, "job_name")  # of a plan


@dataclass(frozen=True, kw_only=True, slots=True)
class AirJob:
    """state.json."""

    id: str
    name: str
    state: Literal["waiting", "working", "completed", "failed"]
    created_at: str | None = None
    updated_at: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RemainingTasks:
    """What a task list comes to."""

    tasks: tuple[Mapping[str, Any], ...]  # to run, with the dependencies that are not done yet
    completed: tuple[str, ...]
    failed: tuple[tuple[str, str], ...]  # with their errors
    orphaned: tuple[str, ...]  # say that they run, and nobody runs them: not done
    themselves: tuple[str, ...]  # whose command is `air-executor run-task`: of themselves, as the original wrote them


def job_of(document: Document, folder: str) -> AirJob:
    """BadDocument with every problem and its place."""
    checked = shapes.check(AirJob, document.data)
    problems = [document.problem(fault.path, fault.message, key=fault.key) for fault in checked.faults]
    if checked.value is None or problems:
        raise refusal(document.source, problems)
    if checked.value.name != folder:
        message = f"is {show(checked.value.name)}, but the folder is {show(folder)}; make them the same"
        raise refusal(document.source, [document.problem(("name",), message)])
    return checked.value


def left(document: Document, *, task_timeout_s: float | None, cwd: str) -> RemainingTasks:
    """What is left of tasks.json. Checked whole first, as a plan, so that a task list that is torn, empty or wrong is
    never taken for one that is done."""
    problems = [document.problem(path, message) for path, message in _wrong_states(document.data)]
    if problems:
        raise refusal(document.source, problems)
    if document.data:
        load(document)
    by_state = {state: [task for task in document.data if task["status"] == state] for state in STATES}
    completed = {task["id"] for task in by_state["completed"]}
    rest = [task for task in document.data if task["id"] not in completed]
    return RemainingTasks(
        tasks=tuple(_task(task, completed, task_timeout_s, cwd) for task in rest),
        completed=tuple(task["id"] for task in by_state["completed"]),
        failed=tuple((task["id"], str(task.get("error") or "no error was recorded")) for task in by_state["failed"]),
        orphaned=tuple(task["id"] for task in by_state["running"]),
        themselves=tuple(task["id"] for task in rest if _runs_itself(task)),
    )


def verdict(job: AirJob, found: RemainingTasks) -> JobState:
    """What the job is by its tasks: the state file may say completed while a task never ran."""
    if found.failed or (job.state == "failed" and found.tasks):
        return JobState.FAILED
    return JobState.WAITING if found.tasks else JobState.COMPLETED


def _wrong_states(data: Any) -> Iterator[tuple[Path, str]]:
    if not isinstance(data, list):
        yield (), "must be a list of tasks"
        return
    for place, task in enumerate(data):
        if isinstance(task, dict) and task.get("status") not in STATES:
            yield (place, "status"), f"must be {', '.join(STATES)}, not {show(task.get('status'))}"


def _task(task: Mapping[str, Any], completed: set[str], timeout_s: float | None, cwd: str) -> dict[str, Any]:
    made = {name: value for name, value in task.items() if name not in _NO_PART}
    if "dependencies" in made:
        made["dependencies"] = [name for name in made["dependencies"] if name not in completed]
    made.setdefault("cwd", cwd)
    if timeout_s is not None:
        made.setdefault("timeout", timeout_s)
    return made


def _runs_itself(task: Mapping[str, Any]) -> bool:
    name = str(task["command"]).rsplit("/", 1)[-1]
    return name == "air-executor" and list(task.get("args") or ())[:1] == ["run-task"]
