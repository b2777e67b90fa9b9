"""Runs a plan: steps, pipes, timeouts, results.

What a plan is lives in plans; how a process is started lives in system.

Nothing is imported here before it is asked for: a tool in a process of its own, and every module of tasks, needs one or
two of these modules and would wait for all.
"""

TYPE_CHECKING = False  # as typing has it, which is slow to import
if TYPE_CHECKING:
    from farro.execution.executor import run_plan
    from farro.execution.results import PlanResult, StepResult
    from farro.execution.stop import Interrupted, Stop
    from farro.execution.tools import Call, Tools

__all__ = ["Call", "Interrupted", "PlanResult", "StepResult", "Stop", "Tools", "run_plan"]

_HOMES = {
    "Call": "tools",
    "Interrupted": "stop",
    "PlanResult": "results",
    "StepResult": "results",
    "Stop": "stop",
    "Tools": "tools",
    "run_plan": "executor",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'farro.execution' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"farro.execution.{_HOMES[name]}"), name)
