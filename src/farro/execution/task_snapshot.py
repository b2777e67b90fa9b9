"""Read the task that a job follows from its snapshot: .snapshot/task.json or task.md, as it was at the first claim."""

from __future__ import annotations

from farro.errors import BadDocument
from farro.host import fs
from farro.jobs.envelope import Lifecycle
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
        return tasks.read(text, name)
    return None


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
