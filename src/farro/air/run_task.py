"""Run one task of a job in the foreground, with its output on the terminal, to see why it fails. No state changes."""

from __future__ import annotations

import os
from collections.abc import Mapping

from farro.errors import BadDocument, Damaged, InputError
from farro.execution import find_program, progress, task_file
from farro.execution.find_program import Executable, InWorker, Missing
from farro.execution.tools import Tools
from farro.host import fs, programs
from farro.lazy_dataclass import replace
from farro.plans.loading import load_data
from farro.plans.model import Step
from farro.queue import find_job
from farro.queue.history import known_attempts
from farro.store.port import Store

_OURS = "FARRO_RUN_TASK"  # job/task of each run-task that this one runs in


def run_task(
    store: Store,
    root: str,
    job_id: str,
    task: str,
    *,
    tools: Tools,
    env: Mapping[str, str],
    timeout_s: float,
    stdout: int | None = None,
) -> int:
    """Run a task; return its exit code, 0 if that code counts as success.

    Input from another step is what that step wrote in the job's last attempt. Added steps are refused, because there is
    no plan that they could join.
    """
    view = find_job.find_view(store, job_id)
    folder = store.folder(view)
    step = _step(folder, job_id, task)
    own = {
        "FARRO_ROOT": root,
        "FARRO_JOB": job_id,
        task_file.STEP: task,
        _OURS: f"{env.get(_OURS, '')}:{job_id}/{task}:",
    }
    inherited = {name: value for name, value in env.items() if name != task_file.FOLDER}
    cwd = root if step.cwd is None else os.path.join(root, step.cwd)
    full = {**inherited, **step.env, **own}
    found = _executable(step, job_id, tools=tools, env=full, cwd=cwd, timeout_s=timeout_s)
    try:
        code = programs.run_here(
            found.argv,
            executable=found.file,
            stdin=_input(folder, job_id, step),
            stdout=stdout,
            cwd=cwd,
            env=full,
            timeout_s=step.timeout_s(timeout_s),
        )
    except OSError as error:
        raise InputError(f"{job_id}, task {task}: {error.filename or found.argv[0]}: {error.strerror}") from error
    return 0 if code in step.ok_exit_codes else code


def _executable(
    step: Step, job_id: str, *, tools: Tools, env: Mapping[str, str], cwd: str, timeout_s: float
) -> Executable:
    # With its own timeout a Python tool runs in a process that can be ended.
    """Find the command of a step."""
    timed = replace(step, timeout=step.timeout_s(timeout_s))
    found = find_program.find(timed, tools=tools, env=env, cwd=cwd, attempt_dir=cwd, may_appear=False)
    if isinstance(found, Missing):
        raise InputError(f"{job_id}, task {step.id}: {found.message}")
    if isinstance(found, InWorker):
        raise InputError(
            f"{job_id}, task {step.id}: its tool {step.tool} is a function of the worker's own; run the job"
        )
    return found


def _step(folder: str, job_id: str, task: str) -> Step:
    try:
        known = {step.id: step for step in load_data(progress.read_prompt(folder), "prompt.json").steps}
    except BadDocument as error:
        raise Damaged(f"{job_id}: its tasks cannot be read: {error}") from error
    if task not in known:
        raise InputError(f"{job_id} has no task {task}; known: {', '.join(known)}")
    return known[task]


def is_inside(job_id: str, task: str, env: Mapping[str, str]) -> bool:
    """Return whether this process belongs to the task that it would run.

    Air-Executor writes task lists in which the command of a task is `run-task` of that task.
    """
    inside = env.get("FARRO_JOB") == job_id and env.get(task_file.STEP) == task
    return inside or f":{job_id}/{task}:" in env.get(_OURS, "")


def _input(folder: str, job_id: str, step: Step) -> str | None:
    source = step.input_from_step
    if source is None:
        return None
    for number in reversed(known_attempts(folder)):
        path = f"{folder}/attempts/{number:04d}/steps/{source}/stdout"
        if fs.exists(path):
            return path
    raise InputError(
        f"{job_id}, task {step.id} reads what task {source} says, and that one has not run yet; run the job first "
        f"(`farro worker --drain`), or leave input_from_step out"
    )
