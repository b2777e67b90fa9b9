"""A task, tasks/<id>.json: the roles that a piece of work goes through, in order, each with its rubric.

Following it is the manager's matter (services); a task may also be words only, tasks/<id>.md, which has no shape.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated, Any

from farro.documents import Document, refusal, shapes, without_schema
from farro.documents.constraints import Bounds, Said, Size
from farro.documents.shapes import Fault
from farro.plans.model import Id, Metadata
from farro.roles import names, paths
from farro.roles.names import Role
from farro.roles.prompt import MAX_RUBRIC, MAX_SUCCESS, AllowedPaths

MAX_HOPS = 20
REVIEW_ROUNDS = 3  # DESIGN §6: at most


@dataclass(frozen=True, kw_only=True, slots=True)
class Hop:
    """One role's turn. What it does not say is as the task says."""

    role: Role
    rubric: Annotated[str, Said(MAX_RUBRIC)]
    allowed_paths: AllowedPaths | None = None
    success: Annotated[str, Said(MAX_SUCCESS)] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    id: Id  # as the file is called
    title: Annotated[str, Said(200)]
    description: str = ""
    workflow: Annotated[tuple[Hop, ...], Size(at_least=1, at_most=MAX_HOPS)]
    allowed_paths: AllowedPaths | None = None
    success: Annotated[str, Said(MAX_SUCCESS)] | None = None
    review_rounds: Annotated[int, Bounds(at_least=0, at_most=REVIEW_ROUNDS)] = REVIEW_ROUNDS
    inputs: dict[str, Any] = field(default_factory=dict)
    metadata: Metadata = field(default_factory=Metadata)


def load(
    document: Document, *, name: str | None = None, roles: Collection[str] | None = None, allow_absolute: bool = True
) -> Task:
    """The task in a document; BadDocument with every problem and its place. `name`: what its file is called."""
    checked = shapes.check(Task, without_schema(document.data))
    faults = list(checked.faults)
    if (task := checked.value) is not None:
        if name is not None and task.id != name:
            faults.append(Fault(("id",), f"is {task.id}, but the file is called {name}; make them the same"))
        faults += _path_faults(("allowed_paths",), task.allowed_paths, allow_absolute)
        for index, hop in enumerate(task.workflow):
            at = ("workflow", index)
            faults += _path_faults((*at, "allowed_paths"), hop.allowed_paths, allow_absolute)
            if roles is not None and (message := names.fault_of(hop.role, roles)) is not None:
                faults.append(Fault((*at, "role"), message))
            for missing in ("allowed_paths", "success"):
                if getattr(hop, missing) is None and getattr(task, missing) is None:
                    faults.append(Fault((*at, missing), "is required, here or for the whole task"))
    if task is None or faults:
        problems = [document.problem(fault.path, fault.message, key=fault.key) for fault in faults]
        raise refusal(document.source, problems)
    return task


def _path_faults(at: tuple[str | int, ...], allowed: tuple[str, ...] | None, allow_absolute: bool) -> list[Fault]:
    return [
        Fault((*at, index), message)
        for index, path in enumerate(allowed or ())
        if (message := paths.fault(path, allow_absolute=allow_absolute)) is not None
    ]
