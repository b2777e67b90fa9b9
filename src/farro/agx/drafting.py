"""Edit a draft without a model: begin it, add commands, remove steps, import a text, check it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from farro import documents
from farro.agx.draft_files import Draft, Drafts
from farro.documents import Document, canonical
from farro.errors import BadName, InputError
from farro.jobs import ids
from farro.plans import command_text, editing
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
        steps = editing.appended(
            editing.steps_of(draft.plan),
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
        steps = editing.steps_of(draft.plan)
        for place in sorted({editing.named(steps, one) for one in wanted}, reverse=True):
            steps = editing.without(steps, str(editing.label(steps[place], place + 1)))
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
    editing.steps_of(plan)
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
