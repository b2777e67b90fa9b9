"""How a plan grows while it runs: tasks that a step added, checked as the plan's own steps were, become steps of it.

No files: who added what, and when it is looked at, is execution's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farro.documents import render_path, shapes, show
from farro.plans import graph
from farro.plans.forms import Shaped
from farro.plans.model import Step

MAX_STEPS_GROWN = 1000


def grown(steps: Sequence[Step], tasks: Sequence[Any]) -> tuple[tuple[Step, ...], list[str]]:
    """The steps that these tasks are, in their order, beside the steps that there are; and all that is wrong with them.

    A task refers to any step that there is, or to one that came together with it. It is numbered on from the last.
    """
    if len(steps) + len(tasks) > MAX_STEPS_GROWN:
        whole = f"a plan may grow to {MAX_STEPS_GROWN} steps; with these it would have {len(steps) + len(tasks)}"
        return (), [f"task {_name(tasks[max(0, MAX_STEPS_GROWN - len(steps))])}: {whole}"]
    number = max(step.step_number for step in steps)
    raw = [
        {**task, "step_number": number + place} if isinstance(task, dict) and "step_number" not in task else task
        for place, task in enumerate(tasks, start=1)
    ]
    checked = [shapes.check(Step, task) for task in raw]
    known = [{"id": step.id, "needs": list(step.needs), "input_from_step": step.input_from_step} for step in steps]
    problems = [
        _problem(tasks[place], fault.path, fault.message) for place, one in enumerate(checked) for fault in one.faults
    ]
    for path, message in graph.faults(Shaped(data={"steps": [*known, *raw]}, prefix=("steps",))):
        place = path[1]
        assert isinstance(place, int)
        problems.append(_problem(tasks[place - len(steps)], path[2:], message))
    return tuple(one.value for one in checked if one.value is not None), problems


def _problem(task: Any, path: Any, message: str) -> str:
    where = render_path(path)
    return f"task {_name(task)}: {where}: {message}" if where else f"task {_name(task)}: {message}"


def _name(task: Any) -> str:
    found = task.get("id") if isinstance(task, dict) else None
    return found if isinstance(found, str) else show(task)
