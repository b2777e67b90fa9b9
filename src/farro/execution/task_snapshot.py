"""Read the task that a job follows from its snapshot: .snapshot/task.json or task.md, as it was at the first claim."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from farro.errors import BadDocument
from farro.host import fs
from farro.jobs.envelope import Lifecycle
from farro.lazy_dataclass import replace
from farro.roles import task as tasks
from farro.roles.task import TaskText, WorkflowTask

_LIMIT = 4 << 20
NAMES = ("task.json", "task.md")


def kept(job_folder: str) -> WorkflowTask | TaskText | None:
    """Return the task. None: the job follows none. BadDocument: the snapshot is invalid."""
    for name in NAMES:
        try:
            text = fs.read_bytes(f"{job_folder}/.snapshot/{name}", _LIMIT)
        except FileNotFoundError:
            continue
        found = tasks.read(text, name)
        if isinstance(found, WorkflowTask) and not found.id:  # its file gave it the name; the copy has another
            found = replace(found, id=_task_id(job_folder) or found.title)
        return found
    return None


def _task_id(job_folder: str) -> str | None:
    """Return the task that the job's prompt names."""
    try:
        return task_id(json.loads(fs.read_bytes(f"{job_folder}/prompt.json", _LIMIT)))
    except (OSError, ValueError):
        return None


def task_id(prompt: Any) -> str | None:
    """Return the task that a prompt names."""
    inputs = prompt.get("inputs") if isinstance(prompt, Mapping) else None
    named = inputs.get("task_id") if isinstance(inputs, Mapping) else None
    return named if isinstance(named, str) else None


def question(folder: str, life: Lifecycle) -> str:
    """Return what a person is asked about a job that waits for one."""
    task, step = readable_task(folder), (life.hops[-1].route or {}).get("step")
    if task is not None and isinstance(step, int) and 0 <= step < len(task.workflow):
        return task.workflow[step].rubric
    return life.hops[-1].note or ""


def readable_task(folder: str) -> WorkflowTask | None:
    """Return the task that a job follows; None if it follows none, or it cannot be read."""
    try:
        found = kept(folder)
    except (BadDocument, OSError):
        return None
    return found if isinstance(found, WorkflowTask) else None
