"""`farro run-task`: one task of a job in this terminal. What it does lives in operations.run_task."""

from __future__ import annotations

import os

import click

from farro.cli.options import application, common, open_root
from farro.cli.terminal import answer, flush
from farro.queue import find_job


@click.command("run-task")
@click.option("--job", "name", required=True, metavar="NAME", help="The job: its name, or its id.")
@click.option("--task", required=True, metavar="ID", help="The task: the id of a step, or its number.")
@common
def run_task(name: str, task: str, root: str | None, as_json: bool) -> int:
    """Run one task of a job here, with its output on this terminal and its exit code: to see why it fails.

    Nothing of the job is changed. What it reads from another task is what that one said when the job last ran. With
    --json its output goes to stderr, and stdout is {"job_id", "task", "exit_code"}.
    """
    from farro.air import run_task as running

    store, settings = open_root(root)
    job_id = find_job.by_name(store, store.root, name)
    flush()
    code = running.run_task(
        store,
        store.root,
        job_id,
        task,
        tools=application().tools(settings, store.root),
        env=dict(os.environ),
        timeout_s=settings.runners.task_timeout,
        stdout=2 if as_json else None,
    )
    if as_json:
        answer({"job_id": job_id, "task": task, "exit_code": code})
    return code
