"""Run a plan: steps, pipes, timeouts, results.

Nothing is imported here before it is used: a tool in a child process, and every module of tasks, needs one or two of
these modules and would have to import all.
"""

TYPE_CHECKING = False  # like typing's, which is slow to import
if TYPE_CHECKING:
    from farro.execution.executor import PlanRun, run_plan
    from farro.execution.results import PlanResult, StepResult
    from farro.execution.stop import Interrupted, Stop
    from farro.execution.tools import Call, Tools

__all__ = ["Call", "Interrupted", "PlanResult", "PlanRun", "StepResult", "Stop", "Tools", "run_plan"]

_HOMES = {
    "Call": "tools",
    "Interrupted": "stop",
    "PlanResult": "results",
    "PlanRun": "executor",
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
