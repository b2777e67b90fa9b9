"""Runs a plan: steps, pipes, timeouts, results.

What a plan is lives in plans; how a process is started lives in system.
"""

from farro.execution.results import PlanResult, StepResult
from farro.execution.run import run_plan
from farro.execution.stop import Interrupted, Stop
from farro.execution.tools import Call, Tools

__all__ = ["Call", "Interrupted", "PlanResult", "StepResult", "Stop", "Tools", "run_plan"]
