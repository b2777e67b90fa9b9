"""Import the jobs of an Air-Executor. Its folder is only read; what is left to run is enqueued by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from datetime import timedelta
from functools import partial
from typing import Any, Literal

from farro import documents
from farro.air.status import JobState, TaskState
from farro.config.settings import RunnersSettings
from farro.documents import Document, Path, refusal, shapes, show
from farro.errors import BadDocument, FarroError, InputError
from farro.execution import progress
from farro.host import fs
from farro.jobs import ids
from farro.jobs.request import JobRequest
from farro.jobs.times import moment_or_none
from farro.lazy_dataclass import dataclass
from farro.plans.forms import TASK_STATE
from farro.plans.loading import load
from farro.queue.submit import SubmitPolicy, submit
from farro.store.port import Store

STATES = tuple(map(str, TaskState))
_NO_PART = (*TASK_STATE, "job_name")  # fields that a plan does not have


@dataclass(frozen=True, kw_only=True, slots=True)
class AirJob:
    """The contents of state.json."""

    id: str
    name: str
    state: Literal["waiting", "working", "completed", "failed"]
    created_at: str | None = None
    updated_at: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RemainingTasks:
    """A task list, divided by what became of each task."""

    tasks: tuple[Mapping[str, Any], ...]  # to run, with their unfinished dependencies
    completed: tuple[str, ...]
    failed: tuple[tuple[str, str], ...]  # ids with their errors
    orphaned: tuple[str, ...]  # recorded as running without a runner: not done
    themselves: tuple[str, ...]  # their command is `air-executor run-task` of themselves, as Air-Executor wrote them


def read_state(document: Document, folder: str) -> AirJob:
    """Read state.json. Raises BadDocument with every problem and its position."""
    job = shapes.check(AirJob, document.data).accepted(document)
    if job.name != folder:
        message = f"is {show(job.name)}, but the folder is {show(folder)}; make them the same"
        raise refusal(document.source, [document.problem(("name",), message)])
    return job


def remaining_tasks(document: Document, *, task_timeout_s: float | None, cwd: str) -> RemainingTasks:
    """Return what is left of tasks.json.

    The whole list is checked as a plan first, so that a torn, empty or wrong list never counts as done.
    """
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


def imported_state(job: AirJob, found: RemainingTasks) -> JobState:
    """Return the state of a job by its tasks: state.json may say completed while a task never ran."""
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


FOLDER = ".air-executor"
MARK = "air_executor"  # key in the metadata of an imported job
_SLACK = timedelta(seconds=60)  # between the start of a runner and its entry in runner.pid
_PID_LIMIT = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedJob:
    """What became of one job."""

    name: str
    action: str  # imported, already, nothing, failed; problem: it could not be imported
    message: str
    job_id: str | None = None
    tasks: int = 0  # to run
    completed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportReport:
    """What became of all jobs of the folder."""

    folder: str
    jobs: tuple[ImportedJob, ...]
    config: Mapping[str, Any]  # settings of its config.yaml that differ from this root's `runners`

    @property
    def whole(self) -> bool:
        return all(job.action != "problem" for job in self.jobs)


StartedAt = Callable[[int], float | None]  # start time of a process in Unix time; None: no such process


def import_air(
    store: Store,
    given: str,
    *,
    runners: RunnersSettings,
    started_at_s: StartedAt,
    failed: bool = False,
    dry_run: bool = False,
    policy: SubmitPolicy,
) -> ImportReport:
    """Import the jobs of a folder. A problem with one job is reported for that job alone.

    With `failed`, failed jobs are enqueued too, from their failed tasks on. Raises BadDocument if config.yaml is wrong;
    then nothing was imported.
    """
    folder = _folder(given)
    config = _config(f"{folder}/config.yaml")
    jobs = []
    for name in sorted(fs.subdirectories(f"{folder}/jobs")):
        try:
            job, found = _read(f"{folder}/jobs/{name}", name, config, started_at_s)
            jobs.append(_take(store, job, found, failed=failed, dry_run=dry_run, policy=policy))
        except (FarroError, OSError) as error:
            jobs.append(ImportedJob(name=name, action="problem", message=str(error)))
    differing = {
        item.name: getattr(config, item.name)
        for item in fields(RunnersSettings)
        if config is not None and item.name != "base_path" and getattr(config, item.name) != getattr(runners, item.name)
    }
    return ImportReport(folder=folder, jobs=tuple(jobs), config=differing)


def _folder(given: str) -> str:
    for folder in (given, f"{given}/{FOLDER}"):
        if os.path.isdir(f"{folder}/jobs") and not os.path.isdir(f"{folder}/agents"):
            return os.path.abspath(folder)
    if os.path.isdir(f"{given}/jobs"):
        raise InputError(f"{given} is a farro root, no Air-Executor's folder; name the {FOLDER} folder")
    raise InputError(f"{given} is no Air-Executor's folder: it has no jobs in it; name the {FOLDER} folder")


def _config(path: str) -> RunnersSettings | None:
    """Read config.yaml, with Air-Executor's keys at its top level; None if there is none."""
    if not os.path.lexists(path):
        return None
    document = _document(path)
    if document.data is None:
        return RunnersSettings()
    return shapes.check(RunnersSettings, document.data).accepted(document)


def _read(
    folder: str, name: str, config: RunnersSettings | None, started_at_s: StartedAt
) -> tuple[AirJob, RemainingTasks]:
    ids.check_job_name(name)
    job = read_state(_document(f"{folder}/state.json"), name)
    if (pid := _runner(f"{folder}/runner.pid", started_at_s)) is not None:
        raise InputError(
            f"{folder}/runner.pid: its runner, process {pid}, is alive; stop that Air-Executor first, then import again"
        )
    cwd = os.path.dirname(os.path.dirname(os.path.dirname(folder)))  # the folder in which Air-Executor was started
    timeout_s = None if config is None else float(config.task_timeout)
    return job, remaining_tasks(_document(f"{folder}/tasks.json"), task_timeout_s=timeout_s, cwd=cwd)


def _runner(path: str, started_at_s: StartedAt) -> int | None:
    """Return the process that runs the job now, or None.

    A process that began after runner.pid was written has only reused the number. A file that cannot be read counts as
    no runner.
    """
    try:
        lines = fs.read_regular(path, _PID_LIMIT).decode("utf-8", "replace").split()
    except OSError:
        return None
    if not lines or not lines[0].isascii() or not lines[0].isdecimal() or not 0 < int(lines[0][:12]) < 1 << 31:
        return None
    pid = int(lines[0][:12])
    began_s = started_at_s(pid)
    noted = moment_or_none(lines[1]) if len(lines) > 1 else None
    if began_s is None or (noted is not None and began_s > (noted + _SLACK).timestamp()):
        return None
    return pid


def _take(
    store: Store, job: AirJob, found: RemainingTasks, *, failed: bool, dry_run: bool, policy: SubmitPolicy
) -> ImportedJob:
    taken = partial(ImportedJob, name=job.name, completed=found.completed)
    state = imported_state(job, found)
    if not found.tasks and not found.completed:
        return taken(action="nothing", message="it has no tasks")
    if state is JobState.COMPLETED:
        return taken(action="nothing", message=f"completed: {_whole(len(found.completed))}")
    present = store.named(job.name)
    if present is not None and _mark(store, present).get("id") == job.id:
        return taken(action="already", message=f"already imported, as {present}", job_id=present)
    if state is JobState.FAILED and not failed:
        return taken(action="failed", message=_why_failed(found), tasks=len(found.tasks))
    if present is not None:
        raise InputError(
            f"the name {job.name} is already used by job {present}; `farro prune` frees the names of finished jobs, "
            "or rename the folder and the name in its state.json"
        )
    plan = _plan(job, found)
    message = _said(job, found)
    if dry_run:
        return taken(action="imported", message=message, tasks=len(found.tasks))
    request = JobRequest(document=Document(plan, f"{job.name}/tasks.json"), name=job.name)
    (made,) = submit(store, [request], policy)
    return taken(action="imported", message=message, job_id=made.id, tasks=len(found.tasks))


def _plan(job: AirJob, found: RemainingTasks) -> dict[str, Any]:
    mark = {"id": job.id, "state": job.state, "created_at": job.created_at, "completed": list(found.completed)}
    return {"name": job.name, "tasks": list(found.tasks), "metadata": {MARK: mark}}


def _mark(store: Store, job_id: str) -> Mapping[str, Any]:
    view = store.find(job_id)
    metadata = {} if view is None else progress.read_prompt(store.folder(view)).get("metadata")
    mark = metadata.get(MARK) if isinstance(metadata, dict) else None
    return mark if isinstance(mark, dict) else {}


def _why_failed(found: RemainingTasks) -> str:
    rest = f"{len(found.tasks)} tasks are not done; queue them with --failed"
    return f"task {found.failed[0][0]}: {found.failed[0][1]}; {rest}" if found.failed else rest


def _said(job: AirJob, found: RemainingTasks) -> str:
    parts = [f"{len(found.tasks)} to run, {len(found.completed)} done before"]
    if found.orphaned:
        parts.append(f"{', '.join(found.orphaned)} had started and not ended, and will run again")
    if job.state == "completed":
        parts.append("its state was wrong: it said completed")
    if found.themselves:
        parts.append(
            f"{', '.join(found.themselves)} will do nothing: the command is `air-executor run-task` of the task itself"
        )
    return "; ".join(parts)


def _document(path: str) -> Document:
    try:
        text = fs.read_regular(path, documents.DEFAULT.size)
    except FileNotFoundError as error:
        raise InputError(f"{path}: is missing") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if not text.strip() and not path.endswith(".yaml"):
        raise BadDocument(path, [documents.Document(None, path).problem((), "is empty; it must hold JSON")])
    return documents.parse(text, path)


def _whole(count: int) -> str:
    return "its one task is done" if count == 1 else f"all {count} tasks are done"
