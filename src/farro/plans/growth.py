"""How a plan grows while it runs: tasks that a step added, checked as the plan's own steps were, become steps of it.

No files: who added what, and when it is looked at, is execution's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farro.documents import render_path, shapes, show
from farro.plans import graph
from farro.plans.forms import Fault, Shaped, references
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
    problems = [
        _problem(tasks[place], fault.path, fault.message) for place, one in enumerate(checked) for fault in one.faults
    ]
    for path, message in _between(steps, raw):
        place = path[1]
        assert isinstance(place, int)
        problems.append(_problem(tasks[place - len(steps)], path[2:], message))
    return tuple(one.value for one in checked if one.value is not None), problems


def _between(steps: Sequence[Step], raw: Sequence[Any]) -> list[Fault]:
    """What is wrong between the tasks and the steps that there are, which are right and refer to no task.

    Looked at first without the steps that no task names: a plan that grows task by task must not be checked as a whole
    each time. What is wrong is then told as for the whole."""
    named = {name for task in raw if isinstance(task, dict) for name in _names(task) if isinstance(name, str)}
    few = [{"id": step.id} for step in steps if step.id in named]
    if not any(True for _ in graph.faults(Shaped(data={"steps": [*few, *raw]}, prefix=("steps",)))):
        return []
    known = [{"id": step.id, "needs": list(step.needs), "input_from_step": step.input_from_step} for step in steps]
    return list(graph.faults(Shaped(data={"steps": [*known, *raw]}, prefix=("steps",))))


def _names(task: dict[str, Any]) -> list[Any]:
    return [task.get("id"), *(target for _, target in references((), task))]


def _problem(task: Any, path: Any, message: str) -> str:
    where = render_path(path)
    return f"task {_name(task)}: {where}: {message}" if where else f"task {_name(task)}: {message}"


def _name(task: Any) -> str:
    found = task.get("id") if isinstance(task, dict) else None
    return found if isinstance(found, str) else show(task)
