"""The task that a job follows, from its own snapshot: .snapshot/task.json or task.md, as it was at the first claim.

Keeping it there lives in services.snapshot; what it means lives in roles.task and roles.workflow.
"""

from __future__ import annotations

from farro.roles import task as tasks
from farro.roles.task import Task, Words
from farro.system import fs

_LIMIT = 4 << 20
NAMES = ("task.json", "task.md")


def kept(job_folder: str) -> Task | Words | None:
    """None: the job follows none. BadDocument: what is kept is wrong."""
    for name in NAMES:
        try:
            text = fs.read_bytes(f"{job_folder}/.snapshot/{name}", _LIMIT)
        except FileNotFoundError:
            continue
        return tasks.read(text, name)
    return None
