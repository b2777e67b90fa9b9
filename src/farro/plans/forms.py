"""Convert every input form of a plan into one shape, and map error places back to the text.

Values are not judged here: a wrong value passes unchanged, so that loading can report its place.

    the memo's        {"id", "plan_id", "steps": [{"step_number": 1, …, "input_from_step": 1}]}
    its later form    {"job_id", "plan_id", "tasks": [{"task_number": 1, …, "input_from_task": 1, "timeout_secs": 9}]}
    farro's own       {"steps": [{"id": "build", …, "needs": ["fetch"]}]}
    Air-Executor's    [{"id", "job_name", "command", "args", "dependencies", "status", …}], or {"tasks": [ … ]}: a plan
                      that keeps going, because there each task depends on nothing but its dependencies
    an agent prompt   {"role", "rubric", "allowed_paths", "success", "routing", …}: one step, `tool: agent`. Submission
                      also checks it against roles.prompt
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from farro.documents import Path, show, without_schema
from farro.lazy_dataclass import dataclass, field

TASK_STATE = ("status", "created_at", "started_at", "completed_at", "error")  # of an earlier run; not part of a plan
NO_NUMBER = "0"  # placeholder for an invalid number, which is reported as a fault; steps count from 1

LATER_PLAN = {"job_id": "id", "plan_description": "name", "tasks": "steps"}  # name in the later form → the memo's
LATER_STEP = {"task_number": "step_number", "input_from_task": "input_from_step", "timeout_secs": "timeout"}

SINGLE_STEP = (
    "this is the old single-step job; a job holds its whole plan: "
    '{"id": …, "plan_id": …, "steps": [{"step_number": 1, "tool": …, "command": …, "args": […]}]}'
)

_AGENT_FIELDS = ("rubric", "success", "routing")  # fields that no plan has
AGENT_STEP = "1"  # id of the single step of an agent prompt
_NAME_LIMIT = 80

Fault = tuple[Path, str]  # a path in the normal shape, and a message


@dataclass(kw_only=True, slots=True)
class Shaped:
    """A plan in the normal shape, not yet validated, with the faults found while reshaping."""

    data: Any
    prefix: Path  # path of the list of steps in the text: ("steps",), ("tasks",) or ()
    numbered: bool = False  # the memo's form: references are numbers of earlier steps
    tasks: bool = False  # Air-Executor's form
    agent: bool = False  # an agent prompt
    aliases: dict[Path, str] = field(default_factory=dict)  # normal path → the name used in the text
    named_at: Path | None = None  # path of the plan's name, when a task gives it
    faults: list[Fault] = field(default_factory=list)

    def original(self, path: Path) -> Path:
        """Return the path in the text for `path` in the normal shape."""
        if path == ("name",) and self.named_at is not None:
            return self.named_at
        if path[:1] != ("steps",):
            name = self.aliases.get(path[:1])
            return path if name is None else (name, *path[1:])
        if self.agent:
            return ("role",)  # the only part of the text that its step has
        name = self.aliases.get(path[:3])
        return self.prefix + path[1:] if name is None else (*self.prefix, path[1], name, *path[3:])

    def value(self, path: Path) -> Any:
        """Return the value at that path of the normal shape, or None."""
        value = self.data
        for part in path:
            try:
                value = value[part]
            except (LookupError, TypeError):
                return None
        return value


def shape(data: Any) -> Shaped:
    """Recognise the form by its own fields, and convert it to the normal shape."""
    if isinstance(data, list):
        return _with_steps({}, data, (), tasks=True)
    if not isinstance(data, dict):
        return Shaped(data=data, prefix=("steps",))
    data = without_schema(data)
    if is_later_form(data):
        return _shape_later_form(data)
    rest = {name: value for name, value in data.items() if name not in ("steps", "tasks")}
    if "steps" in data:
        shaped = _with_steps(rest, data["steps"], ("steps",), tasks=False)
        if "tasks" in data:
            shaped.faults.append((("tasks",), "steps and tasks mean the same; keep one"))
        return shaped
    if "tasks" in data:
        return _with_steps(rest, data["tasks"], ("tasks",), tasks=True)
    if is_agent_prompt(data):
        return _agent_prompt(data)
    if "command" in data or "step_number" in data:
        return Shaped(data=None, prefix=(), faults=[((), SINGLE_STEP)])
    return Shaped(data=rest, prefix=("steps",))


def is_later_form(data: Any) -> bool:
    """Recognise AGEniX's later form of the memo's plan by its numbered tasks."""
    tasks = data.get("tasks") if isinstance(data, dict) and "steps" not in data else None
    return isinstance(tasks, list) and any(isinstance(task, dict) and "task_number" in task for task in tasks)


def memo_form(data: dict[str, Any]) -> dict[str, Any]:
    """Return a plan of AGEniX's later form in the memo's; any other as it is."""
    if not is_later_form(data):
        return data
    plan = _renamed(data, LATER_PLAN)
    if not plan.get("name"):
        plan.pop("name", None)
    plan["steps"] = [_renamed(task, LATER_STEP) if isinstance(task, dict) else task for task in plan["steps"]]
    return plan


def _renamed(data: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Rename fields, except to a name that is there: loading reports that."""
    return {name if names.get(name) in data else names.get(name, name): value for name, value in data.items()}


def _shape_later_form(data: dict[str, Any]) -> Shaped:
    shaped = shape(memo_form(data))
    shaped.prefix = ("tasks",)
    shaped.aliases.update({(new,): old for old, new in LATER_PLAN.items() if old in data and new != "steps"})
    for index, task in enumerate(data["tasks"]):
        for old, new in LATER_STEP.items():
            if isinstance(task, dict) and old in task:
                shaped.aliases["steps", index, new] = old
    return shaped


def is_agent_prompt(data: Any) -> bool:
    """Recognise an agent prompt by fields that no plan has."""
    if not isinstance(data, dict) or "steps" in data or "tasks" in data:
        return False
    return any(name in data for name in _AGENT_FIELDS)


def _agent_prompt(data: dict[str, Any]) -> Shaped:
    plan: dict[str, Any] = {name: data[name] for name in ("role", "allowed_paths", "metadata") if name in data}
    rubric = data.get("rubric")
    if isinstance(rubric, str) and (words := rubric.split("\0", 1)[0].split("\n", 1)[0].strip()):
        plan["name"] = words if len(words) <= _NAME_LIMIT else words[: _NAME_LIMIT - 1] + "…"
    step = {"id": AGENT_STEP, "step_number": 1, "tool": "agent", "command": data.get("role")}
    return Shaped(data={**plan, "steps": [step]}, prefix=(), agent=True)


def _with_steps(plan: dict[str, Any], steps: Any, prefix: Path, *, tasks: bool) -> Shaped:
    shaped = Shaped(data=plan, prefix=prefix, tasks=tasks)
    plan["steps"] = steps
    if not isinstance(steps, list):
        return shaped
    shaped.numbered = any(isinstance(step, dict) and "step_number" in step for step in steps)
    plan["steps"] = [
        _step(shaped, index, step, tasks=tasks) if isinstance(step, dict) else step for index, step in enumerate(steps)
    ]
    if tasks:
        if not shaped.numbered:
            plan.setdefault("keep_going", True)
        shaped.faults.extend(_take_job_name(shaped, plan, steps))
    return shaped


def _step(shaped: Shaped, index: int, raw: dict[str, Any], *, tasks: bool) -> dict[str, Any]:
    at: Path = ("steps", index)
    step = {name: value for name, value in raw.items() if not (tasks and name in (*TASK_STATE, "job_name"))}
    if "dependencies" in step:
        if "needs" in step:
            shaped.faults.append(((*at, "dependencies"), "needs and dependencies mean the same; keep one"))
            del step["dependencies"]
        else:
            step["needs"] = step.pop("dependencies")
            shaped.aliases[*at, "needs"] = "dependencies"
    if shaped.numbered:
        _number(shaped, at, step)
    else:
        step["step_number"] = index + 1
        if "id" not in step:
            shaped.faults.append(((*at, "id"), "is required (or step_number, in every step)"))
    return step


def _number(shaped: Shaped, at: Path, step: dict[str, Any]) -> None:
    """Turn numbers into ids, in the step and in its references. Anything that is not a number is a fault."""
    if "id" in step:
        shaped.faults.append(((*at, "id"), "a step has either id or step_number, and all steps of a plan the same"))
    number = step.get("step_number")
    step["id"] = _as_id(number)
    if "step_number" not in step:
        shaped.faults.append(((*at, "step_number"), "is required: other steps of this plan are numbered"))
    for path, value in references(at, step):
        if _is_number(value):
            continue
        shaped.faults.append((path, f"must be the number of an earlier step, not {show(value)}"))
    if isinstance(step.get("needs"), list):
        step["needs"] = [_as_id(need) for need in step["needs"]]
    if step.get("input_from_step") is not None:
        step["input_from_step"] = _as_id(step["input_from_step"])


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10**9


def _as_id(value: object) -> str:
    return str(value) if _is_number(value) else NO_NUMBER


def references(at: Path, step: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Yield each reference of a raw step to another step, with its path."""
    needs = step.get("needs")
    for position, need in enumerate(needs if isinstance(needs, list) else ()):
        yield (*at, "needs", position), need
    if step.get("input_from_step") is not None:
        yield (*at, "input_from_step"), step["input_from_step"]


def _take_job_name(shaped: Shaped, plan: dict[str, Any], tasks: list[Any]) -> Iterator[Fault]:
    """Take the job's name from the tasks: a task list repeats it in every task."""
    first: str | None = None
    for index, task in enumerate(tasks):
        if not isinstance(task, dict) or "job_name" not in task:
            continue
        name = task["job_name"]
        if not isinstance(name, str):
            yield ("steps", index, "job_name"), "must be text: the name of the job that all tasks of the list belong to"
        elif first is None:
            first = name
            if "name" not in plan:
                plan["name"], shaped.named_at = name, (*shaped.prefix, index, "job_name")
        elif name != first:
            yield ("steps", index, "job_name"), f"{show(name)} is another job than {show(first)}; one list is one job"
