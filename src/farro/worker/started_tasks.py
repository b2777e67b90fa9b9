"""Record which tasks were started: jobs/.tasks/<task> -> <job>. So auto-plan starts none a second time.

The mark is made when a job with that task is queued by `--task`, and again at its first claim, for jobs queued in
another way. It stays when the job is pruned: to run a task again, enqueue it.
"""

from __future__ import annotations

import contextlib

from farro.host import fs

FOLDER = "jobs/.tasks"


def mark(root: str, task_id: str, job_id: str) -> None:
    with contextlib.suppress(FileExistsError):
        fs.mkdir(f"{root}/{FOLDER}")
    with contextlib.suppress(FileExistsError):
        fs.symlink(job_id, f"{root}/{FOLDER}/{task_id}")


def is_started(root: str, task_id: str) -> bool:
    return fs.readlink(f"{root}/{FOLDER}/{task_id}") is not None
