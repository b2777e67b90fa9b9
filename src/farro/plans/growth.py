"""Turn tasks that a running step added into steps of its plan, checked like the plan's own steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farro.documents import render_path, shapes, show
from farro.plans import graph
from farro.plans.forms import Fault, Shaped, references
from farro.plans.model import Step

MAX_STEPS_GROWN = 1000


def grown(steps: Sequence[Step], tasks: Sequence[Any]) -> tuple[tuple[Step, ...], list[str]]:
    """Return the new steps in order, and all faults of the tasks.

    A task may refer to any existing step, or to a task of the same group. Numbers continue after the last step.
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
    """Return the faults between the tasks and the existing steps, which are valid and refer to no task.

    Steps that no task names are left out at first: a plan that grows task by task must not be checked as a whole each
    time. A fault is then reported as for the whole plan."""
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
