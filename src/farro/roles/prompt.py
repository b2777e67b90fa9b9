"""The agent prompt of SPEC-1 §3.1: its shape, and loading one with every problem and its position."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from farro.documents import Document, shapes, without_schema
from farro.documents.constraints import Matching, Prose, Size
from farro.documents.shapes import Fault
from farro.lazy_dataclass import dataclass, field
from farro.plans import loading
from farro.plans.forms import is_agent_prompt
from farro.plans.model import Metadata, Plan
from farro.roles import names, paths
from farro.roles.names import Role
from farro.roles.paths import MAX_PATHS, AllowedPath

__all__ = ["AgentPrompt", "PromptRouting", "is_agent_prompt", "load", "load_any", "path_faults"]

MAX_RUBRIC = 10_000
MAX_SUCCESS = 5_000
CONTEXT = "prompt.md"  # its name in the job's folder, whatever it was called outside

FILE_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"
FileName = Annotated[str, Matching(FILE_NAME, "a plain file name, without folders")]
AllowedPaths = Annotated[tuple[AllowedPath, ...], Size(at_least=1, at_most=MAX_PATHS)]


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptRouting:
    """Where the job goes after its first role. Invariant: `next` is set exactly when the mode is role."""

    schema_more: ClassVar[Mapping[str, Any]] = {
        "if": {"properties": {"mode": {"const": "role"}}},
        "then": {"required": ["next"], "properties": {"next": {"type": "string"}}},
        "else": {"properties": {"next": {"type": "null"}}},
    }

    mode: Literal["manager", "role"]
    next: Role | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentPrompt:
    """What an agent is asked to do."""

    role: Role
    rubric: Annotated[str, Prose(MAX_RUBRIC)]
    allowed_paths: AllowedPaths  # as written; paths.normalise gives their meaning
    success: Annotated[str, Prose(MAX_SUCCESS)]
    routing: PromptRouting
    context_md: FileName | None = None
    inputs: dict[str, Any] = field(default_factory=dict)
    metadata: Metadata = field(default_factory=Metadata)


def load(
    document: Document,
    *,
    roles: Collection[str] | None = None,
    allow_absolute: bool = True,
    root: str | None = None,
) -> AgentPrompt:
    """Load a prompt. Raises BadDocument with every problem and its position, in text order.

    Submitters pass the roles of the root and what its config allows. Without them a prompt is only read: a prompt that
    was accepted stays readable when the config changes.
    """
    checked = shapes.check(AgentPrompt, without_schema(document.data))
    faults = [Fault(fault.path, _advised(fault), fault.key) for fault in checked.faults]
    reported = {fault.path for fault in faults}
    more = [
        *_routing_faults(document.data),
        *path_faults(_member(document.data, "allowed_paths"), allow_absolute=allow_absolute, root=root),
        *_role_faults(document.data, roles),
    ]
    faults += [fault for fault in more if fault.path not in reported]
    plan = [fault for fault in faults if fault.path in _PLANS]
    faults = plan or faults  # a plan is not reported which fields of a prompt it lacks
    return checked._replace(faults=faults).accepted(document)


def load_any(document: Document) -> Plan:
    """Load a plan in any form; an agent prompt is checked by its strict rules."""
    if is_agent_prompt(document.data):
        load(document)
    return loading.load(document)


def path_faults(allowed: Any, *, allow_absolute: bool, root: str | None = None) -> Iterator[Fault]:
    """Yield what is wrong with the `allowed_paths` of a prompt or a plan, whatever the value is."""
    for index, path in enumerate(allowed if isinstance(allowed, list) else ()):
        if isinstance(path, str) and (message := paths.fault(path, allow_absolute=allow_absolute, root=root)):
            yield Fault(("allowed_paths", index), message)


def _role_faults(data: Any, roles: Collection[str] | None) -> Iterator[Fault]:
    if roles is None:
        return
    for path, role in (
        (("role",), _member(data, "role")),
        (("routing", "next"), _member(_member(data, "routing"), "next")),
    ):
        if isinstance(role, str) and (message := names.fault_of(role, roles)) is not None:
            yield Fault(path, message)


def _member(data: Any, name: str) -> Any:
    return data.get(name) if isinstance(data, dict) else None


def _routing_faults(data: Any) -> Iterator[Fault]:
    """Check what the shape cannot express: `next` belongs to the mode role.

    Works on the raw data, so that this is reported together with the other faults.
    """
    routing = _member(data, "routing")
    onward = _member(routing, "next")
    if _member(routing, "mode") == "role" and onward is None:
        yield Fault(("routing", "next"), 'is required where the mode is role, such as "next": "CodeReviewer"')
    if _member(routing, "mode") == "manager" and onward is not None:
        yield Fault(
            ("routing", "next"), 'has no effect where the mode is manager; take it out, or set "mode": "role"', True
        )


_EXAMPLES = {
    "allowed_paths": 'it is a list of paths that may be written, such as ["src/", "tests/"]',
    "routing": 'it is {"mode": "manager"} or {"mode": "role", "next": "CodeReviewer"}',
    "rubric": "it says what to do and how it is judged",
    "success": "it says when the work is done",
    "role": f"it is one of {', '.join(names.AGENTS)}, or one of the config",
    "inputs": "it is an object of your own",
    "metadata": "it is an object of your own",
}
_PLANS = (("steps",), ("tasks",))
_WORDS = {  # other words for the same field
    **dict.fromkeys(("prompt", "instructions", "task", "description", "goal"), "rubric"),
    **dict.fromkeys(("acceptance", "success_criteria", "done", "criteria"), "success"),
    **dict.fromkeys(("paths", "files", "writable"), "allowed_paths"),
    **dict.fromkeys(("context", "narrative"), "context_md, a file's name"),
    **dict.fromkeys(("tags", "priority", "after"), "metadata"),
    "next": "routing",
    "id": "--id, an option of enqueue",
    "task_id": "inputs.task_id",
}


def _advised(fault: Fault) -> str:
    name = fault.path[0] if fault.path else None
    if fault.path in _PLANS:
        return "is not a field of a prompt; this is a plan, which is queued with --plan"
    if fault.unknown and len(fault.path) == 1 and isinstance(name, str) and name.lower() in _WORDS:
        return f"is not a known field; farro calls it {_WORDS[name.lower()]}"
    if len(fault.path) == 1 and not fault.unknown and isinstance(name, str) and name in _EXAMPLES:
        return f"{fault.message}; {_EXAMPLES[name]}"
    return fault.message
