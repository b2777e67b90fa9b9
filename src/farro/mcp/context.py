"""Describe tools, and hold what those of one server share: the root, the acting user, and how answers are shortened."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Sequence
from typing import Any, get_type_hints

from farro.config.settings import Allowed, Settings
from farro.doctor.checks import Check
from farro.documents import json_schema, render_path, shapes
from farro.errors import InputError
from farro.host import machine
from farro.host.clock import Clock
from farro.lazy_dataclass import dataclass
from farro.queue import find_job
from farro.queue.submit import SubmitPolicy
from farro.store.ledger import Ledger
from farro.store.library import Library
from farro.store.port import JobView, Store

ToolCall = Callable[..., dict[str, Any]]  # takes the ToolContext and the arguments


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolContext:
    store: Store
    settings: Settings
    library: Library
    ledger: Ledger
    policy: SubmitPolicy
    clock: Clock
    by: str  # the acting user, as an agent name
    folder: str  # default working folder of commands
    checks: Callable[[], Sequence[Check]]

    @property
    def root(self) -> str:
        return self.store.root

    def job(self, named: str, *, shortest: int = 1) -> str:
        return find_job.resolve(self.store, named, shortest=shortest)


@dataclass(frozen=True, kw_only=True, slots=True)
class McpTool:
    name: str
    title: str
    description: str
    shape: type
    call: ToolCall
    needs: Allowed | None = None  # None: it only reads
    destructive: bool = False
    idempotent: bool = False

    def schema(self) -> dict[str, Any]:
        return json_schema.schema(self.shape)

    def arguments(self, given: Any) -> Any:
        """Parse the arguments; InputError reports all faults at once."""
        checked: shapes.Checked[Any] = shapes.check(self.shape, {} if given is None else given)
        if checked.value is None or checked.faults:
            wrong = [f"{render_path(fault.path) or 'arguments'}: {fault.message}" for fault in checked.faults]
            raise InputError("\n".join(wrong))
        return checked.value


class ToolSet:
    """The tools of one module. The instance is a decorator of their functions: a tool has its function's name, and the
    annotation of `args` is the class of its arguments."""

    def __init__(self) -> None:
        self.tools: list[McpTool] = []

    def __call__(self, title: str, description: str, **more: Any) -> Callable[[ToolCall], ToolCall]:
        def add(call: ToolCall) -> ToolCall:
            shape = get_type_hints(call)["args"]
            name = call.__name__
            self.tools.append(McpTool(name=name, title=title, description=description, shape=shape, call=call, **more))
            return call

        return add


def view_data(view: JobView) -> dict[str, Any]:
    """Return a job for a list: only the fields that a decision needs."""
    life = view.lifecycle
    fields: dict[str, Any] = {
        "job_id": life.job_id,
        "role": life.role,
        "status": str(life.status),
        "attempt": life.attempt,
        "created_at": life.created_at,
        "updated_at": life.updated_at,
        "finalized_at": life.finalized_at,
        "agent": life.agent,
        "error": None if life.error is None else cut(str(life.error.get("message")), 300),
        "not_before": life.not_before,
        "retry_of": life.retry_of,
        "waits_for": list(view.waits_for),
        "damaged": view.damaged,
    }
    return {name: value for name, value in fields.items() if value not in (None, [])}


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def quoted(data: bytes, limit: int, *, more: str = "") -> dict[str, Any]:
    """Return the first `limit` bytes as text or base64; when cut, add the total size and how to read the rest."""
    shown: dict[str, Any] = _text(data[:limit])
    if len(data) > limit:
        shown.update(truncated=True, bytes=len(data), more=more)
    return shown


def _text(data: bytes) -> dict[str, str]:
    if b"\0" not in data:
        try:
            return {"text": data.decode()}
        except UnicodeDecodeError as error:
            if error.start >= len(data) - 3:  # the limit split a character
                return {"text": data[: error.start].decode()}
    return {"base64": base64.b64encode(data).decode()}


def inside(fd: int, folder: str) -> bool:
    """Return whether an open file is inside a folder, after resolving links. False when the kernel cannot tell."""
    path = machine.path_of_descriptor(fd)
    return path is not None and path.startswith(os.path.realpath(folder) + os.sep)
