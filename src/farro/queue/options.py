"""What a submitter asks for beside the plan, and how it becomes part of the prompt: one job, whoever said what.

Reading options lives in cli; queueing lives in submit. What is asked for stands in prompt.json, so that a job alone
says how it shall be run.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from farro.documents import Document, show
from farro.errors import Problem
from farro.jobs import ids
from farro.lazy_dataclass import dataclass, field
from farro.plans.forms import is_agent_prompt
from farro.plans.model import MAX_TIMEOUT_S
from farro.plans.priority import PRIORITIES

_NAME_LIMIT = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """None and empty: nothing asked for, and the plan's own word holds."""

    tags: tuple[str, ...] = ()
    priority: str | None = None
    timeout_s: float | None = None
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    after_any: tuple[str, ...] = ()
    not_before: datetime | None = None


NONE = Wishes()


def command_plan(argv: Sequence[str], wishes: Wishes) -> Document:
    """The plan of one command. It may take as long as it likes unless a timeout was asked for: whoever types a command
    at a prompt does not expect it to be ended."""
    step: dict[str, Any] = {"step_number": 1, "tool": "unix", "command": argv[0], "args": list(argv[1:])}
    step["timeout"] = MAX_TIMEOUT_S if wishes.timeout_s is None else wishes.timeout_s
    if wishes.cwd is not None:
        step["cwd"] = wishes.cwd
    if wishes.env:
        step["env"] = dict(wishes.env)
    name = shlex.join(argv)
    return Document(
        {"name": name if len(name) <= _NAME_LIMIT else name[: _NAME_LIMIT - 1] + "…", "steps": [step]}, "--"
    )


def contradictions(document: Document, wishes: Wishes) -> list[Problem]:
    """Where the plan says otherwise than the options, and what its metadata says that cannot be."""
    found = []
    metadata = document.data.get("metadata") if isinstance(document.data, dict) else None
    metadata = metadata if isinstance(metadata, dict) else {}
    if (urgency := metadata.get("priority")) is not None:
        at = ("metadata", "priority")
        if urgency not in PRIORITIES:
            found.append(document.problem(at, f"is {show(urgency)}; it must be {', '.join(PRIORITIES)}"))
        elif wishes.priority not in (None, urgency):
            found.append(document.problem(at, f"is {urgency}, but --priority says {wishes.priority}; keep one of them"))
    for name in ("after", "after_any"):
        found += _no_ids(document, name, metadata.get(name))
    if wishes.timeout_s is not None and isinstance(document.data, dict):
        own = document.data.get("timeout")
        if own is not None and own != wishes.timeout_s:
            message = f"is {own:g}, but --timeout says {wishes.timeout_s:g}; keep one of them"
            found.append(document.problem(("timeout",), message))
    prefix, steps = _steps(document.data)
    for index, step in enumerate(steps):
        found += _in_step(document, (*prefix, index), step, wishes)
    return found


def _no_ids(document: Document, name: str, named: Any) -> list[Problem]:
    if named is None:
        return []
    if not isinstance(named, list):
        return [document.problem(("metadata", name), "must be a list of job ids")]
    return [
        document.problem(("metadata", name, index), f"{show(item)} is not a job id")
        for index, item in enumerate(named)
        if not (isinstance(item, str) and ids.is_job_id(item))
    ]


def _in_step(document: Document, at: tuple[Any, ...], step: Any, wishes: Wishes) -> list[Problem]:
    if not isinstance(step, dict):
        return []
    found = []
    if wishes.cwd is not None and step.get("cwd") not in (None, wishes.cwd):
        found.append(document.problem((*at, "cwd"), f"is {show(step['cwd'])}, but --cwd was given; keep one of them"))
    own = step.get("env")
    for name, value in wishes.env.items():
        if isinstance(own, dict) and own.get(name, value) != value:
            message = f"is {show(own[name])}, but --env says {show(value)}; keep one of them"
            found.append(document.problem((*at, "env", name), message))
    return found


def granted(prompt: Mapping[str, Any], wishes: Wishes) -> dict[str, Any]:
    """The prompt with what was asked for in it."""
    data = dict(prompt)
    metadata = dict(data.get("metadata") or {})
    for name, more in (("tags", wishes.tags), ("after", wishes.after), ("after_any", wishes.after_any)):
        if more:
            metadata[name] = list(dict.fromkeys([*(metadata.get(name) or ()), *more]))
    if wishes.priority is not None:
        metadata["priority"] = wishes.priority
    if metadata:
        data["metadata"] = metadata
    if wishes.timeout_s is not None:
        data["timeout"] = wishes.timeout_s
    if wishes.cwd is not None or wishes.env:
        (name,), steps = _steps(data)
        data[name] = [_placed(step, wishes) for step in steps]
    return data


def _placed(step: Mapping[str, Any], wishes: Wishes) -> dict[str, Any]:
    placed = dict(step)
    if wishes.cwd is not None:
        placed["cwd"] = wishes.cwd
    if wishes.env:
        placed["env"] = {**(placed.get("env") or {}), **wishes.env}
    return placed


def _steps(data: Any) -> tuple[tuple[str, ...], list[Any]]:
    """Where the steps of a plan stand, in whichever form, and what stands there."""
    if isinstance(data, list):
        return (), data
    if is_agent_prompt(data):
        return (), []
    name = "steps" if "steps" in data else "tasks"
    return (name,), data[name]
