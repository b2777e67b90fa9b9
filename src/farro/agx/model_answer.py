"""Parse what a planning model answered: steps, a refusal, or what is wrong with the answer.

Nothing in it is trusted: size, form, every field and every character are checked first. Whether the steps make a valid
plan is checked by `propose`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from farro.documents import Limits, parse_json, show
from farro.errors import BadDocument
from farro.lazy_dataclass import dataclass, field
from farro.plans.model import MAX_STEPS
from farro.roles.answers import MAX_BYTES, objects

STEP_FIELDS = (
    *("step_number", "tool", "command", "args", "input_from_step", "needs"),
    *("timeout", "cwd", "env", "ok_exit_codes"),
    *("retries", "retry_delay", "retry_backoff"),
)
_LIMITS = Limits(size=MAX_BYTES, nodes=20_000)
_WORDS = 500  # characters of a reason that are shown
_CANDIDATES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanAnswer:
    steps: tuple[Mapping[str, Any], ...] = ()
    cannot: str | None = None  # why the model cannot plan it
    ok: bool | None = None  # of a review
    objections: tuple[str, ...] = ()  # of a review
    problems: tuple[str, ...] = field(default=())  # why the answer is unusable


def read(text: str, *, after: int, review: bool = False) -> PlanAnswer:
    """Parse the first usable JSON object. `after`: how many steps the draft has; new ones follow their numbers."""
    if len(text) > MAX_BYTES:
        return PlanAnswer(problems=(f"the answer has {len(text)} characters; at most {MAX_BYTES} are read",))
    first: PlanAnswer | None = None
    for place, (start, end) in enumerate(objects(text)):
        if place == _CANDIDATES:
            break
        said = _read(text[start:end], after, review)
        if not said.problems:
            return said
        first = first or said
    return first or PlanAnswer(problems=("there is no JSON object in the answer; answer with exactly one",))


def _read(text: str, after: int, review: bool) -> PlanAnswer:
    try:
        data = parse_json(text.encode("utf-8", "surrogatepass"), source="answer", limits=_LIMITS).data
    except BadDocument as bad:
        return PlanAnswer(problems=tuple(problem.render("answer") for problem in bad.problems[:5]))
    if not isinstance(data, dict):
        return PlanAnswer(problems=("must be a JSON object",))
    if not review and isinstance(data.get("cannot"), str) and "steps" not in data:
        return PlanAnswer(cannot=short(data["cannot"]))
    if review:
        if data.get("ok") is True:
            return PlanAnswer(ok=True)
        if data.get("ok") is not False:
            return PlanAnswer(problems=('`ok` must be true or false; with false say "problems" and "steps"',))
    objections = data.get("problems") if review else None
    told = tuple(short(one) for one in objections if isinstance(one, str))[:10] if isinstance(objections, list) else ()
    problems = tuple(_faults(data, after, review))
    if problems:
        return PlanAnswer(ok=False if review else None, objections=told, problems=problems)
    return PlanAnswer(ok=False if review else None, objections=told, steps=tuple(data["steps"]))


def _faults(data: Mapping[str, Any], after: int, review: bool) -> Iterator[str]:
    known = ("steps", "ok", "problems") if review else ("steps",)
    for name in data:
        if name not in known:
            yield f"{show(name)}: is not a field of the answer; only {', '.join(known)}"
    steps = data.get("steps")
    if not isinstance(steps, list) or not steps:
        yield "steps: must be a list of at least one step"
        return
    if after + len(steps) > MAX_STEPS:
        yield f"steps: a plan has at most {MAX_STEPS} steps; with the draft these are {after + len(steps)}"
        return
    for index, step in enumerate(steps):
        at = f"steps[{index}]"
        if not isinstance(step, dict):
            yield f"{at}: must be an object"
            continue
        if step.get("step_number") != after + index + 1:
            yield f"{at}.step_number: must be {after + index + 1}"
        for name in step:
            if name not in STEP_FIELDS:
                yield f"{at}.{show(name)}: is not a field of a step; known: {', '.join(STEP_FIELDS)}"
        yield from _characters(at, step)


def _characters(at: str, value: Any) -> Iterator[str]:
    """Text that a person would not see as it is: control characters, and those that turn or hide what stands by."""
    if isinstance(value, str):
        hidden = next((char for char in value if not char.isprintable() and char not in "\n\t"), None)
        if hidden is not None:
            yield f"{at}: has the character {ascii(hidden)[1:-1]}, which is invisible; write it another way"
    elif isinstance(value, dict):
        for name, member in value.items():
            yield from _characters(at, name)
            yield from _characters(f"{at}.{ascii(name)[1:-1]}", member)
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _characters(f"{at}[{index}]", member)


def short(text: str) -> str:
    """A model's words for a person: one line, not too long."""
    words = " ".join(text.split())
    return words if len(words) <= _WORDS else words[: _WORDS - 1] + "…"
