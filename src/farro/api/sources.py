"""Read what a program may queue: a plan as data, as a file or as a `Plan`, or a command."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from farro import documents
from farro.documents import Document
from farro.errors import InputError
from farro.host import fs
from farro.plans.loading import load
from farro.plans.model import Plan, Step

PlanSource = Plan | Mapping[str, Any] | Sequence[Mapping[str, Any]] | str | os.PathLike[str]


def load_plan(plan: PlanSource) -> Plan:
    """Check a plan, from a file or as data, without queueing it. Raise `BadDocument` with every problem."""
    return plan if isinstance(plan, Plan) else load(document(plan, "plan"))


def as_command(plan: object) -> list[str] | None:
    """Return the words of a command such as `["make", "test"]`; None for anything else."""
    if not isinstance(plan, list | tuple) or any(isinstance(item, Mapping) for item in plan):
        return None
    if not plan:
        raise InputError('the command is empty; give its words: ["make", "test"]')
    for number, word in enumerate(plan):
        if not isinstance(word, str | os.PathLike):
            raise InputError(f"word {number} of the command is {word!r}, which is not text; write str({word!r})")
    return [os.fspath(word) for word in plan]


def document(plan: Any, source: str) -> Document:
    if isinstance(plan, Plan):
        return Document(plan_data(plan), source)
    if isinstance(plan, str | os.PathLike):
        return _file(os.fspath(plan))
    if not isinstance(plan, Mapping | list | tuple):
        raise InputError(
            f"{source}: {plan!r} cannot be queued; give a plan (a dict, a Plan, or a file's path), a command "
            '(["make", "test"]), or the call of a task (send.call("ann"))'
        )
    try:
        # Encode and parse: tuples become lists, and a value that is not JSON is found here, not by the worker.
        return Document(json.loads(json.dumps(plan, allow_nan=False, default=_mapping)), source)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{source}: is not JSON: {error}") from error


def plan_data(plan: Plan) -> dict[str, Any]:
    """Return a plan as data, without the fields that have their default."""
    numbered = all(step.id == str(step.step_number) for step in plan.steps)
    data = {name: value for name, value in _given_fields(plan).items() if name not in ("steps", "metadata")}
    if plan.metadata.tags:
        data["metadata"] = {"tags": list(plan.metadata.tags)}
    data["steps"] = [_step(step, numbered) for step in plan.steps]
    return data


def _step(step: Step, numbered: bool) -> dict[str, Any]:
    data = _given_fields(step)
    del data["id" if numbered else "step_number"]
    if numbered:
        data["needs"] = [int(need) for need in step.needs]
        data["input_from_step"] = None if step.input_from_step is None else int(step.input_from_step)
    return {name: value for name, value in data.items() if value not in (None, [])}


def _given_fields(shape: Any) -> dict[str, Any]:
    present = {item.name: getattr(shape, item.name) for item in fields(shape)}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in present.items()
        if value is not None and value != () and value != {}
    }


def _mapping(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{value!r} has the type {type(value).__name__}")


def _file(path: str) -> Document:
    try:
        data = fs.read_regular(path, documents.DEFAULT.size)
    except FileNotFoundError:
        hint = f'; for a command give its words: ["{path.split()[0]}", …]' if path.split() else ""
        raise InputError(f"{path}: no such plan file{hint}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > documents.DEFAULT.size:
        raise InputError(f"{path}: is larger than {documents.DEFAULT.size} bytes, and no more than that is read")
    return documents.parse(data, path)
