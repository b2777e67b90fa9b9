"""A task, tasks/<id>.json or .md: the roles that a piece of work goes through, in order, each with its rubric.

A Markdown file carries the task as YAML between two lines `---` at its head; the text after them is the description.
Without such a header the file is a text for every role, without a workflow.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from farro.documents import Document, parse_json, parse_yaml, shapes, without_schema
from farro.documents.constraints import Bounds, Prose, Size
from farro.documents.model import refuse
from farro.documents.shapes import Fault
from farro.lazy_dataclass import dataclass, field, replace
from farro.plans.model import Id, Metadata
from farro.roles import names, paths
from farro.roles.prompt import MAX_RUBRIC, MAX_SUCCESS, AllowedPaths

MAX_HOPS = 20
REVIEW_ROUNDS = 3  # DESIGN §6: at most
HUMAN = "human"  # a step that a person decides; no role has this name
_RULE = "---"


@dataclass(frozen=True, eq=False)
class RoleOrHumanRule(names.RoleNameRule):
    """Check the name of a role, or `human`."""

    def fault(self, value: str, /) -> str | None:
        return None if value == HUMAN else super().fault(value)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [{"const": HUMAN}, *super().schema()["anyOf"]]}


RoleOrHuman = Annotated[str, RoleOrHumanRule()]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowStep:
    """One role's turn, or a person's: then the rubric is the question. Missing fields are taken from the task, else
    from the prompt."""

    role: RoleOrHuman
    rubric: Annotated[str, Prose(MAX_RUBRIC)] = ""  # not given: the task's title
    allowed_paths: AllowedPaths | None = None
    success: Annotated[str, Prose(MAX_SUCCESS)] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowTask:
    """A task with a workflow. Only title and workflow are required."""

    id: Id = ""  # the file's name without its ending; not given: that name
    title: Annotated[str, Prose(200)]
    description: str = ""
    workflow: Annotated[tuple[WorkflowStep, ...], Size(at_least=1, at_most=MAX_HOPS)]
    allowed_paths: AllowedPaths | None = None
    success: Annotated[str, Prose(MAX_SUCCESS)] | None = None
    review_rounds: Annotated[int, Bounds(at_least=0, at_most=REVIEW_ROUNDS)] = REVIEW_ROUNDS
    inputs: dict[str, Any] = field(default_factory=dict)
    metadata: Metadata = field(default_factory=Metadata)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskText:
    """A task without a workflow: a text that every role is given."""

    text: str


def read(
    text: bytes,
    source: str,
    *,
    name: str | None = None,
    roles: Collection[str] | None = None,
    allow_absolute: bool = True,
) -> WorkflowTask | TaskText:
    """Read the task in a file, by the ending of its name. Raises BadDocument with every problem and its position."""
    if not source.lower().endswith(".md"):
        return load(parse_json(text, source=source), name=name, roles=roles, allow_absolute=allow_absolute)
    words = text.decode("utf-8", "replace").removeprefix("\ufeff")
    lines = words.splitlines()
    if not lines or lines[0].rstrip() != _RULE:
        return TaskText(text=words)
    end = next((number for number, line in enumerate(lines[1:], start=1) if line.rstrip() == _RULE), None)
    if end is None:
        raise refuse(source, "the header that begins here has no end; write --- on a line of its own after it", (1, 1))
    head = "\n" + "\n".join(lines[1:end]) + "\n"  # the empty line keeps positions as in the file
    document = parse_yaml(head.encode(), source=source)
    if not isinstance(document.data, dict):
        raise refuse(source, "the header must name the task's fields: id, title, workflow", (1, 1))
    body = "\n".join(lines[end + 1 :]).strip()
    if body and "description" not in document.data:
        document.data["description"] = body
    return load(document, name=name, roles=roles, allow_absolute=allow_absolute)


def load(
    document: Document, *, name: str | None = None, roles: Collection[str] | None = None, allow_absolute: bool = True
) -> WorkflowTask:
    """Load a task. Raises BadDocument with every problem and its position. `name` is the name of its file."""
    data = without_schema(document.data)
    if name is not None and isinstance(data, dict):
        data = {"id": name, **data}
    checked = shapes.check(WorkflowTask, data)
    faults: list[Fault] = []
    if (task := checked.value) is not None:
        if name is not None and task.id != name:
            faults.append(Fault(("id",), f"is {task.id}, but the file is called {name}; make them the same"))
        faults += _path_faults(("allowed_paths",), task.allowed_paths, allow_absolute)
        for index, hop in enumerate(task.workflow):
            at = ("workflow", index)
            faults += _path_faults((*at, "allowed_paths"), hop.allowed_paths, allow_absolute)
            if hop.role == HUMAN:
                continue
            if roles is not None and (message := names.fault_of(hop.role, roles)) is not None:
                faults.append(Fault((*at, "role"), message))
            if hop.role == "Manager":
                faults.append(Fault((*at, "role"), "follows the workflow itself; name a role that works, or human"))
    task = checked.accepted(document, faults)
    return replace(task, workflow=tuple(replace(hop, rubric=hop.rubric or task.title) for hop in task.workflow))


def _path_faults(at: tuple[str | int, ...], allowed: tuple[str, ...] | None, allow_absolute: bool) -> list[Fault]:
    return [
        Fault((*at, index), message)
        for index, path in enumerate(allowed or ())
        if (message := paths.fault(path, allow_absolute=allow_absolute)) is not None
    ]
