"""Tasks: what there is to do, and each task's way through the roles with what was said and changed.

What a way is lives in operations.task_ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farro.agents import service as agents
from farro.lazy_dataclass import dataclass
from farro.queue.catalog.rows import JobRow
from farro.web import answers
from farro.web.endpoints import Asked, Endpoint, get
from farro.web.job_queries import loaded, row_data
from farro.web.state import House

FEW = 5  # jobs of a task in the list
MOST = 20  # … whose way is told


@dataclass(frozen=True, kw_only=True)
class TaskLine:
    id: str
    title: str
    file: str | None
    problems: tuple[str, ...]
    roles: tuple[str, ...]
    jobs: tuple[answers.Row, ...]
    status: str | None


@dataclass(frozen=True, kw_only=True)
class Tasks:
    tasks: tuple[TaskLine, ...]


def listed(house: House, asked: Asked) -> Any:
    loaded(house)
    jobs = house.catalog.tasks()
    found = agents.list_tasks(house.root, house.settings, house.store.roles())
    names = {told.id for told in found}
    found += [agents.TaskSummary(id=task, title=task, file=None) for task in sorted(jobs) if task not in names]
    return {"tasks": [_line(house, told, jobs.get(told.id, [])) for told in found]}


def _line(house: House, told: agents.TaskSummary, jobs: list[JobRow]) -> dict[str, Any]:
    return {
        "id": told.id,
        "title": told.title,
        "file": told.file,
        "problems": told.problems,
        "roles": [role for role, _ in told.workflow],
        "jobs": [row_data(row, None) for row in jobs[:FEW]],
        "status": jobs[0].status if jobs else None,
    }


@dataclass(frozen=True, kw_only=True)
class StepTold:
    role: str
    rubric: str


@dataclass(frozen=True, kw_only=True)
class HopTold:
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
class JobWay(answers.Row):
    way: tuple[HopTold, ...]
    at_step: int | None
    diff: str


@dataclass(frozen=True, kw_only=True)
class TaskWhole:
    id: str
    title: str
    description: str
    file: str | None
    workflow: tuple[StepTold, ...]
    problems: tuple[str, ...]
    jobs: tuple[JobWay, ...]


def shown(house: House, asked: Asked) -> Any:
    loaded(house)
    task_id = asked.path["task"]
    rows = house.catalog.tasks().get(task_id, [])[:MOST]
    views = [(row, view) for row in rows if (view := house.store.find(row.job_id)) is not None]
    folders = [house.store.folder(view) for _, view in views]
    told = agents.find_task(house.root, house.settings, house.store.roles(), task_id, folders)
    jobs = []
    for row, view in views:
        way = agents.job_route(house.store, view)
        hops = [{"route": None, **vars(one.hop), "result": one.result, "verdict": one.verdict} for one in way.hops]
        jobs.append({**row_data(row, None), "way": hops, "at_step": way.at_step, "diff": way.diff})
    return {
        "id": told.id,
        "title": told.title,
        "description": told.description,
        "file": told.file,
        "workflow": [{"role": role, "rubric": rubric} for role, rubric in told.workflow],
        "problems": told.problems,
        "jobs": jobs,
    }


ENDPOINTS: tuple[Endpoint, ...] = (
    get("/api/tasks", listed, "The tasks, and how far each is.", Tasks, keep_s=1.0, tag="tasks"),
    get("/api/tasks/{task}", shown, "A task's way through the roles, with the diff.", TaskWhole, tag="tasks"),
)
