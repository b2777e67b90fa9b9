"""Edit a draft without a model, and keep it between two commands: one file for each root or queue that plans are
submitted to.

The file is private to the user (0600) and replaced whole. Every change is made under a lock and counted: two terminals
that add a step at once both keep theirs, and a change based on an old version (an editor, a slow model) is refused
instead of overwriting a newer one. The file also keeps the drafts before it for `undo`, and undone ones for `redo`.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from hashlib import sha256
from typing import Any

from farro import documents
from farro.agx import command_text
from farro.agx.command_text import Typed
from farro.documents import Document, canonical
from farro.errors import BadName, Damaged, InputError, Refused
from farro.host import fs, leases, trees
from farro.jobs import ids
from farro.lazy_dataclass import dataclass, field, replace
from farro.plans.forms import is_agent_prompt, memo_form
from farro.plans.model import MAX_STEPS
from farro.queue import plan_check
from farro.queue.plan_check import PlanContext, PlanReport

SOURCE = "draft"  # its name in messages
LIMIT = 4 << 20  # bytes of a draft's file
_KEPT = 20  # drafts before this one


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    plan: Mapping[str, Any] = field(default_factory=lambda: {"steps": []})
    version: int = 0  # counts changes; 0: there is none yet
    before: tuple[Mapping[str, Any], ...] = ()  # the newest last
    undone: tuple[Mapping[str, Any], ...] = ()  # the newest first; dropped by the next change

    @property
    def steps(self) -> list[dict[str, Any]]:
        steps = self.plan.get("steps")
        return [dict(step) for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []

    @property
    def name(self) -> str | None:
        named = self.plan.get("plan_id")
        return named if isinstance(named, str) else None


class Drafts:
    def __init__(self, folder: str, place: str, *, path: str | None = None) -> None:
        """`place`: the root, or the address of the queue, that the draft belongs to. `path`: its file; else one in
        `folder`."""
        self._folder = folder
        self._place = place
        digest = sha256(place.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self._path = path or f"{folder}/draft-{digest}.json"

    def read(self) -> Draft:
        """Read the draft, an empty one where there is no file. Raise Damaged where the file holds no draft."""
        try:
            text = fs.read_bytes(self._path, LIMIT)
        except FileNotFoundError:
            return Draft()
        try:
            data = json.loads(text)
            if "plan" not in data and ("steps" in data or "tasks" in data):  # a plan that the user put there
                return Draft(plan=memo_form(data))
            plan, version, before, undone = data["plan"], data["version"], data["before"], data.get("undone", [])
            if not (isinstance(plan, dict) and isinstance(version, int)):
                raise ValueError
            if not (isinstance(before, list) and isinstance(undone, list)):
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Damaged(f"{self._path} is not a draft; look at it, then begin anew with: agx new") from error
        plans = [tuple(one for one in some if isinstance(one, dict)) for some in (before, undone)]
        return Draft(plan=plan, version=version, before=plans[0], undone=plans[1])

    def change(self, edit: Callable[[Draft], Mapping[str, Any]]) -> Draft:
        """Replace the plan by what `edit` makes of it, under the lock. Where `edit` raises, nothing is changed."""
        with self._locked():
            before = self.read()
            return self._write(before, edit(before))

    def replace(self, read: Draft, plan: Mapping[str, Any]) -> Draft:
        """Replace a draft that was read before. Raise Refused where it was changed since."""

        def unchanged(now: Draft) -> Mapping[str, Any]:
            if now.version != read.version:
                raise Refused(
                    "the draft was changed elsewhere meanwhile (another terminal?), and is left as it is; "
                    "`agx preview` shows it"
                )
            return plan

        return self.change(unchanged)

    def undo(self) -> Draft:
        """Bring back the draft before the last change."""
        with self._locked():
            now = self.read()
            if not now.before:
                raise InputError("there is nothing to undo")
            undone = (now.plan, *now.undone)[:_KEPT]
            made = Draft(plan=now.before[-1], version=now.version + 1, before=now.before[:-1], undone=undone)
            return self._put(made)

    def redo(self) -> Draft:
        """Take back the last `undo`, unless something else was changed since."""
        with self._locked():
            now = self.read()
            if not now.undone:
                raise InputError("there is nothing to redo: what was undone is kept until the next change")
            before = (*now.before, now.plan)[-_KEPT:]
            made = Draft(plan=now.undone[0], version=now.version + 1, before=before, undone=now.undone[1:])
            return self._put(made)

    def restart(self, plan: Mapping[str, Any]) -> Draft:
        """Begin a new draft, also where the file is damaged."""
        with self._locked():
            try:
                before = self.read()
            except Damaged:
                before = Draft(version=1)
            return self._write(before, plan)

    def _locked(self) -> AbstractContextManager[None]:
        make_folder(self._folder)
        return leases.exclusively(f"{self._folder}/.lock", listening=True)

    def _write(self, before: Draft, plan: Mapping[str, Any]) -> Draft:
        # An empty draft is kept too: undoing the first step of a new draft gives the empty one, not the one before.
        kept = before.before if plan == before.plan else (*before.before, before.plan)[-_KEPT:]
        return self._put(Draft(plan=plan, version=before.version + 1, before=kept))

    def _put(self, draft: Draft) -> Draft:
        while True:
            kept = {"before": list(draft.before), "undone": list(draft.undone)}
            data = {"place": self._place, "version": draft.version, "plan": draft.plan, **kept}
            text = json.dumps(data, ensure_ascii=True).encode()
            if len(text) <= LIMIT:
                break
            if not draft.before and not draft.undone:
                raise InputError(f"the draft is larger than {LIMIT} bytes; put what is long into a file")
            draft = replace(draft, before=draft.before[1:], undone=draft.undone[:-1])
        write_private(self._path, text)
        return draft


def make_folder(path: str) -> None:
    """Make the folder and its parents; only this user can enter it."""
    trees.make_folders(os.path.dirname(path))
    with contextlib.suppress(FileExistsError):
        fs.mkdir_private(path)


def write_private(path: str, data: bytes) -> None:
    """Write a file whole or not at all, readable by its owner alone from the start."""
    name = fs.temporary(os.path.dirname(path))
    try:
        fs.create_private(name, data)
        fs.replace(name, path)
    except OSError:
        with contextlib.suppress(OSError):
            fs.unlink(name)
        raise


# --- editing ---


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
    fields: Mapping[str, Any] | None = None,
) -> tuple[Draft, int]:
    """Append the typed commands as steps, each with these fields; return the draft and how many steps were added."""
    read = command_text.typed(typed, literal=literal)
    fields = fields or {}
    _check_text(word for command in read.commands for word in command)
    _check_text((fields.get("cwd", ""), *fields.get("env", {}).values()))

    def longer(draft: Draft) -> Mapping[str, Any]:
        steps = appended(steps_of(draft.plan), read, input_from=input_from, fields=fields)
        if len(steps) > MAX_STEPS:
            raise InputError(f"a plan has at most {MAX_STEPS} steps; this would be {len(steps)}")
        return {**draft.plan, "steps": steps}

    return drafts.change(longer), len(read.commands)


def _check_text(typed: Iterable[str]) -> None:
    for word in typed:
        if any("\ud800" <= char <= "\udfff" for char in word):
            raise InputError(f"{ascii(word)[:80]} is not valid UTF-8, as a plan must be; put the command into a script")
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
    plan = dict(memo_form(document.data))
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


# --- steps ---

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
    steps: Sequence[Raw], typed: Typed, *, input_from: str | None = None, fields: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the steps with the typed pipeline appended; each command reads the one before it. `fields`: of each new
    step."""
    made = [dict(step) for step in steps]
    source: Any = None
    if input_from is not None:
        source = label(made[place := named(made, input_from)], place + 1)
    elif typed.reads_last:
        if not made:
            raise InputError("it begins with |, and there is no step before it whose output it could read")
        source = label(made[-1], len(made))
    for command, *args in typed.commands:
        step: dict[str, Any] = {**_new_label(made), "tool": "unix", "command": command, "args": args, **(fields or {})}
        if source is not None:
            step["input_from_step"] = source
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
