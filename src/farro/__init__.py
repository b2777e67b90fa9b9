"""farro runs agent and command work that you can trust: a job is a folder, a plan is its steps, a role is a queue.

For programs (docs/python.md):

    farro.open(root)          the queue of a root: enqueue, jobs, wait, kill
    @farro.task               a function that jobs may call: send.delay("ann").result()
    farro.add_task(…)         inside a running step: add a step to the same job
    farro.current()           inside a running task: its job, attempt and input
    farro.FarroError          the base of all errors: JobFailed, StillRunning, InputError, Refused, TryAgain, …

Names are imported when they are first used, so that `farro --version` and small commands start fast.
"""

TYPE_CHECKING = False  # not imported from typing, which is slow to import
if TYPE_CHECKING:
    from farro.api.job import Job, Jobs
    from farro.api.queue import (
        Queue,
        open,  # noqa: A004 - as gzip.open
    )
    from farro.api.sources import load_plan
    from farro.api.task import Task, TaskCall, task
    from farro.errors import (
        BadArgument,
        BadDocument,
        CapacityReached,
        FarroError,
        IdConflict,
        IllegalTransition,
        InputError,
        JobFailed,
        NotARoot,
        Refused,
        StillRunning,
        StorageTrouble,
        TryAgain,
        UnknownJob,
        UnknownRole,
    )
    from farro.execution.function_calls import current
    from farro.execution.task_file import add_task
    from farro.plans.model import Plan

__all__ = [
    "BadArgument",
    "BadDocument",
    "CapacityReached",
    "FarroError",
    "IdConflict",
    "IllegalTransition",
    "InputError",
    "Job",
    "JobFailed",
    "Jobs",
    "NotARoot",
    "Plan",
    "Queue",
    "Refused",
    "StillRunning",
    "StorageTrouble",
    "Task",
    "TaskCall",
    "TryAgain",
    "UnknownJob",
    "UnknownRole",
    "__version__",
    "add_task",
    "current",
    "load_plan",
    "open",
    "task",
]

__version__ = "0.1.0"

_HOMES = {
    "Job": "api.job",
    "Jobs": "api.job",
    "Plan": "plans.model",
    "Queue": "api.queue",
    "Task": "api.task",
    "TaskCall": "api.task",
    "add_task": "execution.task_file",
    "current": "execution.function_calls",
    "load_plan": "api.sources",
    "open": "api.queue",
    "task": "api.task",
}


def __getattr__(name: str) -> object:
    if name.startswith("__") or name not in __all__:
        raise AttributeError(f"module 'farro' has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"farro.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = found  # found without __getattr__ the next time
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
