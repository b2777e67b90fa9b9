"""Hold the options of a submission and write them into the prompt.

Options end up in prompt.json, so that a job alone says how it is to be run.
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
from farro.plans.metadata import PRIORITIES
from farro.plans.model import MAX_TIMEOUT_S

_NAME_LIMIT = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmitOptions:
    """The submitter's options beside the plan. None or empty: the plan's own value applies."""

    tags: tuple[str, ...] = ()
    priority: str | None = None
    timeout_s: float | None = None
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    after_any: tuple[str, ...] = ()
    not_before: datetime | None = None


NO_OPTIONS = SubmitOptions()


def command_plan(argv: Sequence[str], options: SubmitOptions) -> Document:
    """Return the plan of one command. Without a timeout option it may run as long as it likes: a user who types a
    command does not expect it to be ended."""
    step: dict[str, Any] = {"step_number": 1, "tool": "unix", "command": argv[0], "args": list(argv[1:])}
    step["timeout"] = MAX_TIMEOUT_S if options.timeout_s is None else options.timeout_s
    if options.cwd is not None:
        step["cwd"] = options.cwd
    if options.env:
        step["env"] = dict(options.env)
    name = shlex.join(argv)
    return Document(
        {"name": name if len(name) <= _NAME_LIMIT else name[: _NAME_LIMIT - 1] + "…", "steps": [step]}, "--"
    )


def contradictions(document: Document, options: SubmitOptions) -> list[Problem]:
    """Return where the plan contradicts the options, and invalid metadata."""
    found = []
    metadata = document.data.get("metadata") if isinstance(document.data, dict) else None
    metadata = metadata if isinstance(metadata, dict) else {}
    if (urgency := metadata.get("priority")) is not None:
        at = ("metadata", "priority")
        if urgency not in PRIORITIES:
            found.append(document.problem(at, f"is {show(urgency)}; it must be {', '.join(PRIORITIES)}"))
        elif options.priority not in (None, urgency):
            found.append(
                document.problem(at, f"is {urgency}, but --priority says {options.priority}; keep one of them")
            )
    for name in ("after", "after_any"):
        found += _no_ids(document, name, metadata.get(name))
    if options.timeout_s is not None and isinstance(document.data, dict):
        own = document.data.get("timeout")
        if own is not None and own != options.timeout_s:
            message = f"is {own:g}, but --timeout says {options.timeout_s:g}; keep one of them"
            found.append(document.problem(("timeout",), message))
    prefix, steps = _steps(document.data)
    for index, step in enumerate(steps):
        found += _in_step(document, (*prefix, index), step, options)
    return found


def _no_ids(document: Document, name: str, named: Any) -> list[Problem]:
    """Return the entries that are not job ids."""
    if named is None:
        return []
    if not isinstance(named, list):
        return [document.problem(("metadata", name), "must be a list of job ids")]
    return [
        document.problem(("metadata", name, index), f"{show(item)} is not a job id")
        for index, item in enumerate(named)
        if not (isinstance(item, str) and ids.is_job_id(item))
    ]


def _in_step(document: Document, at: tuple[Any, ...], step: Any, options: SubmitOptions) -> list[Problem]:
    if not isinstance(step, dict):
        return []
    found = []
    if options.cwd is not None and step.get("cwd") not in (None, options.cwd):
        found.append(document.problem((*at, "cwd"), f"is {show(step['cwd'])}, but --cwd was given; keep one of them"))
    own = step.get("env")
    for name, value in options.env.items():
        if isinstance(own, dict) and own.get(name, value) != value:
            message = f"is {show(own[name])}, but --env says {show(value)}; keep one of them"
            found.append(document.problem((*at, "env", name), message))
    return found


def apply_options(prompt: Mapping[str, Any], options: SubmitOptions) -> dict[str, Any]:
    """Return the prompt with the options in it."""
    data = dict(prompt)
    metadata = dict(data.get("metadata") or {})
    for name, more in (("tags", options.tags), ("after", options.after), ("after_any", options.after_any)):
        if more:
            metadata[name] = list(dict.fromkeys([*(metadata.get(name) or ()), *more]))
    if options.priority is not None:
        metadata["priority"] = options.priority
    if metadata:
        data["metadata"] = metadata
    if options.timeout_s is not None:
        data["timeout"] = options.timeout_s
    if options.cwd is not None or options.env:
        (name,), steps = _steps(data)
        data[name] = [_apply_to_step(step, options) for step in steps]
    return data


def _apply_to_step(step: Mapping[str, Any], options: SubmitOptions) -> dict[str, Any]:
    placed = dict(step)
    if options.cwd is not None:
        placed["cwd"] = options.cwd
    if options.env:
        placed["env"] = {**(placed.get("env") or {}), **options.env}
    return placed


def _steps(data: Any) -> tuple[tuple[str, ...], list[Any]]:
    """Return the path of the steps inside a plan of any form, and the steps."""
    if isinstance(data, list):
        return (), data
    if is_agent_prompt(data):
        return (), []
    name = "steps" if "steps" in data else "tasks"
    return (name,), data[name]
