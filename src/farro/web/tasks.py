"""List tasks, and show how a task's jobs went through the roles, with results and the diff."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farro.agents import service as agents
from farro.lazy_dataclass import dataclass
from farro.queue.catalog.rows import JobRow
from farro.web import responses
from farro.web.job_queries import require_loaded, row_data
from farro.web.request_handling import ApiRequest, Routes, WebState

routes = Routes("tasks")

LISTED_JOBS = 5  # newest jobs of a task in the list
SHOWN_JOBS = 20  # newest jobs of a task whose route is shown


@dataclass(frozen=True, kw_only=True)
class TaskData:
    id: str
    title: str
    file: str | None
    problems: tuple[str, ...]
    roles: tuple[str, ...]
    jobs: tuple[responses.JobData, ...]
    status: str | None


@dataclass(frozen=True, kw_only=True)
class TasksResponse:
    tasks: tuple[TaskData, ...]


@routes.get("/api/tasks", "The tasks, with the status of each.", TasksResponse, cache_s=1.0)
def list_tasks(state: WebState, request: ApiRequest) -> Any:
    require_loaded(state)
    jobs = state.catalog.tasks()
    found = agents.list_tasks(state.root, state.settings, state.store.roles())
    names = {task.id for task in found}
    found += [agents.TaskSummary(id=task, title=task, file=None) for task in sorted(jobs) if task not in names]
    return {"tasks": [_task_data(state, task, jobs.get(task.id, [])) for task in found]}


def _task_data(state: WebState, task: agents.TaskSummary, jobs: list[JobRow]) -> dict[str, Any]:
    return {
        "id": task.id,
        "title": task.title,
        "file": task.file,
        "problems": task.problems,
        "roles": [role for role, _ in task.workflow],
        "jobs": [row_data(row, None) for row in jobs[:LISTED_JOBS]],
        "status": jobs[0].status if jobs else None,
    }


@dataclass(frozen=True, kw_only=True)
class TaskStepData:
    role: str
    rubric: str


@dataclass(frozen=True, kw_only=True)
class HopData:
    at: str
    role: str
    attempt: int
    reason: str
    to: str
    by: str
    note: str | None
    route: Mapping[str, Any] | None
    result: str | None
    verdict: str | None


@dataclass(frozen=True, kw_only=True)
class TaskJobData(responses.JobData):
    way: tuple[HopData, ...]
    at_step: int | None
    diff: str


@dataclass(frozen=True, kw_only=True)
class TaskResponse:
    id: str
    title: str
    description: str
    file: str | None
    workflow: tuple[TaskStepData, ...]
    problems: tuple[str, ...]
    jobs: tuple[TaskJobData, ...]


@routes.get("/api/tasks/{task}", "A task's route through the roles, with the diff.", TaskResponse)
def show_task(state: WebState, request: ApiRequest) -> Any:
    require_loaded(state)
    task_id = request.path["task"]
    rows = state.catalog.tasks().get(task_id, [])[:SHOWN_JOBS]
    views = [(row, view) for row in rows if (view := state.store.find(row.job_id)) is not None]
    folders = [state.store.folder(view) for _, view in views]
    task = agents.find_task(state.root, state.settings, state.store.roles(), task_id, folders)
    jobs = []
    for row, view in views:
        route = agents.job_route(state.store, view)
        hops = [{"route": None, **vars(hop.hop), "result": hop.result, "verdict": hop.verdict} for hop in route.hops]
        for data in hops:
            data.pop("claimed_at", None)  # job.json and `farro show` have it
        jobs.append({**row_data(row, None), "way": hops, "at_step": route.at_step, "diff": route.diff})
    return {
        "id": task.id,
        "title": task.title,
        "description": task.description,
        "file": task.file,
        "workflow": [{"role": role, "rubric": rubric} for role, rubric in task.workflow],
        "problems": task.problems,
        "jobs": jobs,
    }
