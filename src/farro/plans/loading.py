"""Load a plan from a parsed document in any input form, or the tasks that a running step adds to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farro.documents import Document, Path, refusal, render_path, shapes, show
from farro.documents.shapes import Fault
from farro.plans import graph
from farro.plans.forms import Shaped, references, shape
from farro.plans.model import Plan, Step


def load(document: Document) -> Plan:
    """Load the plan in a document. Raise `BadDocument` with every problem and its place, in text order."""
    return read(document)[0]


def read(document: Document) -> tuple[Plan, Shaped]:
    """Load the plan, with the mapping from its paths to those of the text."""
    shaped = shape(document.data)
    if shaped.data is None and shaped.faults:  # not a plan at all; its fields do not matter
        raise refusal(document.source, [document.problem(path, message) for path, message in shaped.faults])
    checked = shapes.check(Plan, shaped.data)
    faults = [*shaped.faults, *graph.faults(shaped)]
    if checked.value is not None and not checked.faults and not faults:
        return checked.value, shaped
    said = {path for path, _ in faults}  # reported already, in better words
    problems = [document.problem(shaped.original(path), message, key=path[-1] == "tasks") for path, message in faults]
    problems += [
        document.problem(shaped.original(fault.path), _advised(fault, shaped), key=fault.key)
        for fault in checked.faults
        if fault.path not in said
    ]
    raise refusal(document.source, problems)


def _advised(fault: Fault, shaped: Shaped) -> str:
    from farro.plans.advice import advised  # imported late: most plans are valid

    return advised(fault, shaped)


def load_data(data: Any, source: str) -> Plan:
    """Load the plan in parsed data, such as a job's prompt; problems have paths but no lines."""
    return load(Document(data, source))


MAX_STEPS_GROWN = 1000


def grown(steps: Sequence[Step], tasks: Sequence[Any]) -> tuple[tuple[Step, ...], list[str]]:
    """Return the new steps in order, and all faults of the tasks.

    A task may refer to any existing step, or to a task of the same group. Numbers continue after the last step.
    """
    if len(steps) + len(tasks) > MAX_STEPS_GROWN:
        whole = f"a plan may grow to {MAX_STEPS_GROWN} steps; with these it would have {len(steps) + len(tasks)}"
        return (), [f"task {_task_name(tasks[max(0, MAX_STEPS_GROWN - len(steps))])}: {whole}"]
    number = max(step.step_number for step in steps)
    raw = [
        {**task, "step_number": number + place} if isinstance(task, dict) and "step_number" not in task else task
        for place, task in enumerate(tasks, start=1)
    ]
    checked = [shapes.check(Step, task) for task in raw]
    problems = [
        _task_problem(tasks[place], fault.path, fault.message)
        for place, one in enumerate(checked)
        for fault in one.faults
    ]
    for path, message in _between(steps, raw):
        place = path[1]
        assert isinstance(place, int)
        problems.append(_task_problem(tasks[place - len(steps)], path[2:], message))
    return tuple(one.value for one in checked if one.value is not None), problems


def _between(steps: Sequence[Step], raw: Sequence[Any]) -> list[tuple[Path, str]]:
    """Return the faults between the tasks and the existing steps, which are valid and refer to no task.

    Steps that no task names are left out at first: a plan that grows task by task must not be checked as a whole each
    time. A fault is then reported as for the whole plan."""
    named = {name for task in raw if isinstance(task, dict) for name in _task_names(task) if isinstance(name, str)}
    few = [{"id": step.id} for step in steps if step.id in named]
    if not any(True for _ in graph.faults(Shaped(data={"steps": [*few, *raw]}, prefix=("steps",)))):
        return []
    known = [{"id": step.id, "needs": list(step.needs), "input_from_step": step.input_from_step} for step in steps]
    return list(graph.faults(Shaped(data={"steps": [*known, *raw]}, prefix=("steps",))))


def _task_names(task: dict[str, Any]) -> list[Any]:
    return [task.get("id"), *(target for _, target in references((), task))]


def _task_problem(task: Any, path: Any, message: str) -> str:
    where = render_path(path)
    return f"task {_task_name(task)}: {where}: {message}" if where else f"task {_task_name(task)}: {message}"


def _task_name(task: Any) -> str:
    found = task.get("id") if isinstance(task, dict) else None
    return found if isinstance(found, str) else show(task)
