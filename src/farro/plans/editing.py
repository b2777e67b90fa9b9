"""Edit the steps of a plan that is being written: append, remove, renumber. Works on the plan as written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farro.errors import InputError
from farro.plans.command_text import Typed
from farro.plans.forms import is_agent_prompt

Raw = Mapping[str, Any]


def steps_of(plan: Raw) -> list[dict[str, Any]]:
    """Return the list of steps. Raise InputError when there is none to edit."""
    if is_agent_prompt(plan):
        raise InputError("this is an agent prompt; a draft is a plan of steps. `farro enqueue --prompt-json` queues it")
    steps = plan.get("steps", [])
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise InputError("`steps` must be a list of steps")
    return [dict(step) for step in steps]


def label(step: Raw, place: int) -> Any:
    """Return the name that other steps use: its number or its id."""
    return step.get("step_number", step.get("id", place))


def named(steps: Sequence[Raw], wanted: str) -> int:
    """Return the index of the step named `wanted`: its number, its id, or `last`."""
    if wanted == "last" and steps:
        return len(steps) - 1
    for place, step in enumerate(steps):
        if str(label(step, place + 1)) == wanted:
            return place
    there = f"known: {', '.join(str(label(step, place + 1)) for place, step in enumerate(steps))}" if steps else ""
    raise InputError(f"no step {wanted!r}; {there or 'the draft has no steps yet'}")


def appended(
    steps: Sequence[Raw],
    typed: Typed,
    *,
    input_from: str | None = None,
    tool: str | None = None,
    timeout_s: float | None = None,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Return the steps with the typed pipeline appended; each command reads the one before it."""
    made = [dict(step) for step in steps]
    source: Any = None
    if input_from is not None:
        source = label(made[place := named(made, input_from)], place + 1)
    elif typed.reads_last:
        if not made:
            raise InputError("it begins with |, and there is no step before it whose output it could read")
        source = label(made[-1], len(made))
    for words in typed.commands:
        command, *args = words
        step: dict[str, Any] = {**_new_label(made), "tool": tool or "unix", "command": command, "args": args}
        if source is not None:
            step["input_from_step"] = source
        if timeout_s is not None:
            step["timeout"] = int(timeout_s) if float(timeout_s).is_integer() else timeout_s
        if cwd is not None:
            step["cwd"] = cwd
        if env:
            step["env"] = dict(env)
        made.append(step)
        source = label(step, len(made))
    return made


def _new_label(steps: Sequence[Raw]) -> dict[str, Any]:
    if all("step_number" in step for step in steps):
        numbers = [step["step_number"] for step in steps if isinstance(step["step_number"], int)]
        return {"step_number": max(numbers, default=0) + 1}
    taken = {step.get("id") for step in steps}
    return {"id": next(name for n in range(len(steps) + 1, len(steps) + 1000) if (name := f"step-{n}") not in taken)}


def without(steps: Sequence[Raw], wanted: str) -> list[dict[str, Any]]:
    """Return the steps without one. Its readers now read its input, as in a pipe; numbers close the gap."""
    place = named(steps, wanted)
    gone = steps[place]
    name, source = label(gone, place + 1), gone.get("input_from_step")
    needs = [need for need in gone.get("needs", ()) if need != name]
    left: list[dict[str, Any]] = []
    for step in (dict(step) for at, step in enumerate(steps) if at != place):
        if step.get("input_from_step") == name:
            step["input_from_step"] = source
            if source is None:
                del step["input_from_step"]
        if isinstance(step.get("needs"), list) and name in step["needs"]:
            step["needs"] = list(dict.fromkeys([need for need in step["needs"] if need != name] + needs))
        left.append(step)
    return renumbered(left)


def renumbered(steps: Sequence[Raw]) -> list[dict[str, Any]]:
    """Renumber numbered steps from 1 without gaps; other steps stay as they are."""
    if not all(isinstance(step.get("step_number"), int) for step in steps):
        return [dict(step) for step in steps]
    numbers = {step["step_number"]: place for place, step in enumerate(steps, start=1)}
    made = []
    for step in (dict(step) for step in steps):
        step["step_number"] = numbers[step["step_number"]]
        if step.get("input_from_step") in numbers:
            step["input_from_step"] = numbers[step["input_from_step"]]
        if isinstance(step.get("needs"), list):
            step["needs"] = [numbers.get(need, need) for need in step["needs"]]
        made.append(step)
    return made


def as_numbered(steps: Sequence[Raw]) -> list[dict[str, Any]]:
    """Return the steps in the memo's form, numbered by position."""
    places = {label(step, place): place for place, step in enumerate(steps, start=1)}
    made = []
    for place, raw in enumerate(steps, start=1):
        step: dict[str, Any] = {
            "step_number": place,
            **{k: v for k, v in raw.items() if k not in ("id", "step_number")},
        }
        made.append(_translated(step, places))
    return made


def joined(steps: Sequence[Raw], more: Sequence[Raw]) -> list[dict[str, Any]]:
    """Return both lists of steps as one; the second is numbered in the style of the first."""
    made = [dict(step) for step in steps]
    names: dict[Any, Any] = {place: label(step, place) for place, step in enumerate(made, start=1)}
    for raw in more:
        step = {**_new_label(made), **{k: v for k, v in raw.items() if k not in ("id", "step_number")}}
        step = _translated(step, names)
        made.append(step)
        names[len(made)] = label(step, len(made))
    return made


def _translated(step: dict[str, Any], names: Mapping[Any, Any]) -> dict[str, Any]:
    """Rename the steps that a step refers to. Unknown references stay, so that loading reports them."""
    if _hashable(step.get("input_from_step")):
        step["input_from_step"] = names.get(step["input_from_step"], step["input_from_step"])
    if isinstance(step.get("needs"), list):
        step["needs"] = [names.get(need, need) if _hashable(need) else need for need in step["needs"]]
    return step


def _hashable(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)
