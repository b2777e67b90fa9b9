"""Apply one plan to many inputs. `{{input.field}}` in an argument is replaced by the field of each input.

{"action_id": "resize-all", "plan_id": "resize", "inputs": [{"path": "a.png"}, {"path": "b.png"}]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from farro.documents import Document, Path, shapes, without_schema
from farro.documents.constraints import Size
from farro.errors import Problem
from farro.lazy_dataclass import dataclass, field
from farro.plans.model import Id

MAX_INPUTS = 100
PLACEHOLDER = re.compile(r"\{\{\s*input((?:\.[A-Za-z0-9_-]+)*)\s*\}\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """A plan and its inputs; each input becomes one job."""

    action_id: Id | None = None  # minted when absent
    plan_id: Id
    inputs: Annotated[tuple[Any, ...], Size(at_least=1, at_most=MAX_INPUTS)]
    metadata: dict[str, Any] = field(default_factory=dict)


def load(document: Document) -> Action:
    """Load the action in a document, or raise all of its problems at once."""
    return shapes.check(Action, without_schema(document.data)).accepted(document)


def filled(plan: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """Return the plan with the input's values in its arguments. Check `problems` first: missing fields stay."""

    def text(match: re.Match[str]) -> str:
        found, there = _look_up(value, match[1])
        return _as_text(found) if there else match[0]

    steps = plan.get("steps")
    if not isinstance(steps, list):
        return dict(plan)
    return {**plan, "steps": [_with_args(step, text) for step in steps]}


def _with_args(step: Any, text: Any) -> Any:
    if not isinstance(step, dict) or not isinstance(step.get("args"), list):
        return step
    args = [PLACEHOLDER.sub(text, arg) if isinstance(arg, str) else arg for arg in step["args"]]
    return {**step, "args": args}


def problems(plan: Mapping[str, Any], inputs: tuple[Any, ...], name: str) -> list[Problem]:
    """Yield fields that an input lacks, and placeholders in fields that are never filled in."""
    found: list[Problem] = []
    for path, text in _texts(plan):
        for match in PLACEHOLDER.finditer(text):
            if not (len(path) == 4 and path[2] == "args"):
                found.append(_problem(path, f"{match[0]} is filled in only in args of plan {name}'s steps"))
                continue
            for index, value in enumerate(inputs):
                if not _look_up(value, match[1])[1]:
                    what = f"has no {match[1][1:]}" if match[1] else "is nothing"
                    found.append(_problem(("inputs", index), f"{what}, which {_shown(path)} of plan {name} wants"))
    return found


def fields(plan: Mapping[str, Any]) -> list[str]:
    """List the input fields that the plan's arguments name, in order: `path`, `size.width`."""
    wanted = (match[1][1:] for _, text in _texts(plan) for match in PLACEHOLDER.finditer(text))
    return list(dict.fromkeys(wanted))


def _texts(plan: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield every text of the plan's steps with its path."""
    steps = plan.get("steps")
    todo: list[tuple[Path, Any]] = [(("steps",), steps)]
    while todo:
        path, value = todo.pop(0)
        if isinstance(value, str):
            yield path, value
        elif isinstance(value, list):
            todo += [((*path, index), item) for index, item in enumerate(value)]
        elif isinstance(value, dict):
            todo += [((*path, str(key)), item) for key, item in value.items()]


def _look_up(value: Any, dotted: str) -> tuple[Any, bool]:
    """Return the value at `dotted` and whether it exists. An empty `dotted` names the input itself."""
    for part in dotted.split(".")[1:]:
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None, False
    return value, value is not None


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _problem(path: Path, message: str) -> Problem:
    return Problem(path=_shown(path), message=message)


def _shown(path: Path) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")
