"""Edit a draft without a model: begin it, add commands, remove and renumber steps, import a text, check it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from farro import documents
from farro.agx import command_text
from farro.agx.command_text import Typed
from farro.agx.draft_files import Draft, Drafts
from farro.documents import Document, canonical
from farro.errors import BadName, InputError
from farro.jobs import ids
from farro.plans.forms import is_agent_prompt
from farro.plans.model import MAX_STEPS
from farro.queue import plan_check
from farro.queue.plan_check import PlanContext, PlanReport

SOURCE = "draft"  # its name in messages


def begin(drafts: Drafts, name: str | None) -> Draft:
    """Begin an empty draft; the one before it is kept for `undo`."""
    plan: dict[str, Any] = {"steps": []}
    if name is not None:
        plan = {"plan_id": check_name(name), "steps": []}
    return drafts.restart(plan)


def check_name(name: str) -> str:
    try:
        return ids.check_job_id(name)
    except BadName as error:
        raise BadName(str(error).replace("a job id", "a plan's name")) from None


def add(
    drafts: Drafts,
    typed: Sequence[str],
    *,
    literal: bool = False,
    input_from: str | None = None,
    tool: str | None = None,
    timeout_s: float | None = None,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
) -> tuple[Draft, int]:
    """Append the typed commands as steps; return the draft and how many steps were added."""
    read = command_text.typed(typed, literal=literal)
    _check_text(word for command in read.commands for word in command)
    _check_text((cwd or "", *(env or {}).values()))

    def longer(draft: Draft) -> Mapping[str, Any]:
        steps = appended(
            steps_of(draft.plan),
            read,
            input_from=input_from,
            tool=tool,
            timeout_s=timeout_s,
            cwd=cwd,
            env=env,
        )
        if len(steps) > MAX_STEPS:
            raise InputError(f"a plan has at most {MAX_STEPS} steps; this would be {len(steps)}")
        return {**draft.plan, "steps": steps}

    return drafts.change(longer), len(read.commands)


def _check_text(typed: Any) -> None:
    for word in typed:
        if any("\ud800" <= char <= "\udfff" for char in word):
            raise InputError(f"{ascii(word)[:80]} is not UTF-8 text, and a plan is kept as such; put it into a script")
        if "\0" in word:
            raise InputError(f"{ascii(word)[:80]} has a NUL in it, which no argument may have")


def remove(drafts: Drafts, wanted: Sequence[str]) -> Draft:
    """Remove steps, each named by its present number or id."""

    def shorter(draft: Draft) -> Mapping[str, Any]:
        steps = steps_of(draft.plan)
        for place in sorted({named(steps, one) for one in wanted}, reverse=True):
            steps = without(steps, str(label(steps[place], place + 1)))
        return {**draft.plan, "steps": steps}

    return drafts.change(shorter)


def taken_over(text: bytes, source: str) -> dict[str, Any]:
    """Parse a plan from JSON, or from YAML where the file name says so. Raise BadDocument with every problem."""
    document = documents.parse(text, source)
    if isinstance(document.data, list):
        return {"steps": document.data}
    if not isinstance(document.data, dict):
        raise InputError(f"{source}: must be a plan: an object with steps")
    plan = dict(document.data)
    if "tasks" in plan and "steps" not in plan:
        return plan
    plan.setdefault("steps", [])
    steps_of(plan)
    return plan


def check(plan: Mapping[str, Any], context: PlanContext, source: str = SOURCE) -> PlanReport:
    """Collect the problems of a plan and its warnings on this machine."""
    if not plan.get("steps") and not plan.get("tasks") and not plan.get("rubric"):
        raise InputError(f"the {source} has no steps yet; `agx add -- COMMAND`, or `agx add 'what shall happen'`")
    return plan_check.check(Document(dict(plan), source), context)


def finished(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Add a plan_id where there is none: SPEC-4 requires one of every job."""
    made = dict(plan)
    if not made.get("plan_id") and "steps" in made:
        digest = sha256(canonical(made["steps"])).hexdigest()[:12]
        made = {"plan_id": f"plan-{digest}", **made}
    return made


def check_steps(plan: Mapping[str, Any], source: str) -> None:
    """Raise InputError where there is nothing to submit."""
    if source == SOURCE and not plan.get("steps"):
        raise InputError("the draft has no steps yet; `agx add -- COMMAND`, or name a plan: `agx list` shows them")


def placed(plan: Mapping[str, Any], folder: str, *, root: str) -> dict[str, Any]:
    """Set the folder of every step that names none: a command runs in the folder in which it was typed. Nothing is set
    for the root, where steps run anyway."""
    if folder == root or not isinstance(plan.get("steps"), list):
        return dict(plan)
    steps = [step if not isinstance(step, dict) or "cwd" in step else {**step, "cwd": folder} for step in plan["steps"]]
    return {**plan, "steps": steps}


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
        made.append(_translated(step, numbers))
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
