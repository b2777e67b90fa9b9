"""List tasks and the routes of their jobs: what tasks/ says, which hops a job took, what each answered and changed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from farro.agents.call_records import DIFF
from farro.config.settings import Settings
from farro.errors import BadDocument, NoTask
from farro.execution import task_snapshot
from farro.execution.progress import read_result
from farro.host import fs
from farro.jobs.envelope import Hop, Lifecycle
from farro.lazy_dataclass import dataclass
from farro.queue.history import known_attempts
from farro.roles import task as tasks
from farro.roles import workflow
from farro.roles.task import WorkflowTask
from farro.store.port import JobView, Store

FOLDER = "tasks"
_LIMIT = 4 << 20
_TEXT = 256 << 10  # bytes of one result
_DIFF = 1 << 20  # bytes of all diffs of a job


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSummary:
    """A file of tasks/, or a task that only jobs know."""

    id: str
    title: str
    file: str | None
    problems: tuple[str, ...] = ()
    description: str = ""
    workflow: tuple[tuple[str, str], ...] = ()  # role and rubric of each step


@dataclass(frozen=True, kw_only=True, slots=True)
class HopReport:
    """One hop of a job with the result of its role."""

    hop: Hop
    result: str | None  # the role's result.md
    verdict: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRoute:
    """The route of a job through the roles."""

    hops: tuple[HopReport, ...]
    at_step: int | None  # the present step of the workflow
    diff: str


def list_tasks(root: str, settings: Settings, roles: Sequence[str]) -> list[TaskSummary]:
    """List every file of tasks/ by name, each with its problems."""
    try:
        names = sorted(fs.listdir(f"{root}/{FOLDER}"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    found: dict[str, TaskSummary] = {}
    for name in names:
        stem, _, ending = name.rpartition(".")
        if stem and ending in ("json", "md") and not name.startswith(".") and stem != "README":
            summary = _read(root, name, stem, settings, roles)
            if stem not in found or ending == "json":
                found[stem] = summary
    return list(found.values())


def _read(root: str, name: str, stem: str, settings: Settings, roles: Sequence[str]) -> TaskSummary:
    file = f"{FOLDER}/{name}"
    try:
        text = fs.read_regular(f"{root}/{file}", _LIMIT)
        absolute = settings.security.allow_absolute_paths
        found = tasks.read(text, file, name=stem, roles=roles, allow_absolute=absolute)
    except BadDocument as bad:
        return TaskSummary(id=stem, title=stem, file=file, problems=tuple(str(bad).splitlines()))
    except OSError as error:
        return TaskSummary(id=stem, title=stem, file=file, problems=(f"{file}: {error.strerror or error}",))
    return _summary(stem, file, found)


def _summary(stem: str, file: str | None, found: WorkflowTask | tasks.TaskText) -> TaskSummary:
    if not isinstance(found, WorkflowTask):
        first = next((line.strip("# ").strip() for line in found.text.splitlines() if line.strip()), stem)
        return TaskSummary(id=stem, title=first[:200], file=file, description=found.text)
    steps = tuple((hop.role, hop.rubric) for hop in found.workflow)
    return TaskSummary(id=stem, title=found.title, file=file, description=found.description, workflow=steps)


def find_task(root: str, settings: Settings, roles: Sequence[str], task_id: str, folders: Sequence[str]) -> TaskSummary:
    """Return a task from its file, else from the snapshot of a job that follows it, in one of `folders`."""
    for summary in list_tasks(root, settings, roles):
        if summary.id == task_id:
            return summary
    for folder in folders:
        with contextlib.suppress(BadDocument, OSError):
            kept = task_snapshot.kept(folder)
            if kept is not None:
                return _summary(task_id, None, kept)
    if folders:
        return TaskSummary(id=task_id, title=task_id, file=None)
    raise NoTask(f"no task {task_id} in {root}/{FOLDER}, and no job that belongs to it")


def job_route(store: Store, view: JobView) -> JobRoute:
    """Return the hops of a job. A hop that ended an attempt has that attempt's result."""
    folder, life = store.folder(view), view.lifecycle
    numbers = known_attempts(folder)
    reports: list[HopReport] = []
    seen: set[int] = set()
    for hop in life.hops:
        fresh = hop.attempt in numbers and hop.attempt not in seen
        seen.add(hop.attempt)
        result = _text(f"{folder}/attempts/{hop.attempt:04d}", ("result.md", "error.md")) if fresh else None
        verdict = _answered(read_result(folder, hop.attempt), "verdict") if fresh else None
        reports.append(HopReport(hop=hop, result=result, verdict=verdict))
    return JobRoute(hops=tuple(reports), at_step=_at(folder, life), diff=_diffs(folder, numbers))


def _at(folder: str, life: Lifecycle) -> int | None:
    try:
        kept = task_snapshot.kept(folder)
    except (BadDocument, OSError):
        return None
    if not isinstance(kept, WorkflowTask):
        return None
    return workflow.position(life.hops, life.first_role, kept).step


def _answered(result: Mapping[str, Any], name: str) -> str | None:
    """Return a field of the answer in a result, if it is text."""
    agent = result.get("agent")
    answer = agent.get("answer") if isinstance(agent, Mapping) else None
    value = answer.get(name) if isinstance(answer, Mapping) else None
    return value if isinstance(value, str) else None


def _diffs(folder: str, numbers: Sequence[int]) -> str:
    """Join what the attempts changed: the diff that a program left, else the patch of an answer."""
    parts: list[str] = []
    size = 0
    for number in numbers:
        home = f"{folder}/attempts/{number:04d}"
        text = ""
        for step in sorted(fs.subdirectories(f"{home}/steps")):
            text += _text(f"{home}/steps/{step}", (DIFF,)) or ""
        text = text or _answered(read_result(folder, number), "patch") or ""
        if text and text not in parts and size < _DIFF:
            parts.append(text if text.endswith("\n") else f"{text}\n")
            size += len(text)
    return "".join(parts)[:_DIFF]


def _text(home: str, names: Sequence[str]) -> str | None:
    for name in names:
        with contextlib.suppress(OSError):
            return fs.read_bytes(os.path.join(home, name), _TEXT)[:_TEXT].decode("utf-8", "replace")
    return None
