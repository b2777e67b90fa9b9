"""Handle PLAN.* and ACTION.*: stored plans, and one plan for many inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from farro.agq import keys, memo_jobs
from farro.agq.handlers.jobs import as_json
from farro.agq.handlers.table import table, text
from farro.agq.resp import CommandError
from farro.documents import Document, parse_json
from farro.errors import BadDocument, InputError
from farro.jobs.request import JobRequest
from farro.queue import library

if TYPE_CHECKING:
    from farro.agq.connection import Connection
    from farro.agq.server import AgqServer


async def plan_submit(connection: Connection, args: list[bytes]) -> Any:
    """PLAN.SUBMIT json [REPLACE]: store a plan; return its id."""
    server = connection.server
    replace = len(args) > 2
    if replace and args[2].upper() != b"REPLACE":
        raise CommandError("syntax error: PLAN.SUBMIT json [REPLACE]")
    document = _document(args[1], "plan")
    roles = await server.roles()
    try:
        return await server.call(
            library.save_plan,
            server.library,
            document,
            roles=roles,
            mint=server.mint,
            replace=replace,
            contract=server.policy.contract,
        )
    except BadDocument as error:
        raise CommandError(f"invalid plan: {memo_jobs.first_problem(error)}") from None


async def action_submit(connection: Connection, args: list[bytes]) -> Any:
    """ACTION.SUBMIT json [queue]: store an action and queue a job for each of its inputs; all of them or none."""
    server = connection.server
    document = _document(args[1], "action")
    role = keys.queue_role(args[2], await server.roles()) if len(args) > 2 else None

    def submit() -> dict[str, Any]:
        action_id = library.save_action(server.library, document, mint=server.mint)
        queued = library.submit_action(server.store, server.library, action_id, JobRequest(role=role), server.policy)
        kept = library.action(server.library, action_id)
        return {"action_id": action_id, "plan_id": kept["plan_id"], "job_ids": queued}

    try:
        answer = await server.call(submit)
    except BadDocument as error:
        raise CommandError(f"invalid action: {memo_jobs.first_problem(error)}") from None
    server.adjust_length(role or keys.READY_ROLE, len(answer["job_ids"]))
    return as_json(answer)


Read = Callable[["AgqServer", str], Any]


def _plan(server: AgqServer, plan_id: str) -> Any:
    return library.plan(server.library, plan_id)


def _action(server: AgqServer, action_id: str) -> Any:
    """Return an action with its jobs and their statuses."""
    return library.action_told(server.store, server.library, action_id)


async def get(connection: Connection, args: list[bytes], *, read: Read) -> Any:
    """PLAN.GET id, ACTION.GET id."""
    try:
        return as_json(await connection.server.call(read, connection.server, text(args[1])))
    except InputError:
        return None


async def list_(connection: Connection, args: list[bytes], *, read: Callable[..., Any]) -> Any:
    """PLAN.LIST, ACTION.LIST."""
    server = connection.server
    return [as_json(asdict(line)) for line in await server.call(read, server.library)]


async def delete(connection: Connection, args: list[bytes], *, read: Read, remove: Callable[..., None]) -> Any:
    """PLAN.DELETE id, ACTION.DELETE id: delete it; 0 if there is none. A plan that an action needs is kept with an
    error; the jobs of an action stay."""
    if await get(connection, args, read=read) is None:
        return 0
    await connection.server.call(remove, connection.server.library, text(args[1]))
    return 1


def _document(word: bytes, kind: str) -> Document:
    try:
        return parse_json(word, source=kind)
    except BadDocument as error:
        raise CommandError(f"invalid {kind}: {memo_jobs.first_problem(error)}") from None


TABLE = table(
    ("PLAN.SUBMIT", plan_submit, 1, 2),
    ("PLAN.GET", partial(get, read=_plan), 1, 1),
    ("PLAN.LIST", partial(list_, read=library.plans), 0, 0),
    ("PLAN.DELETE", partial(delete, read=_plan, remove=library.remove_plan), 1, 1),
    ("ACTION.SUBMIT", action_submit, 1, 2),
    ("ACTION.GET", partial(get, read=_action), 1, 1),
    ("ACTION.LIST", partial(list_, read=library.actions), 0, 0),
    ("ACTION.DELETE", partial(delete, read=_action, remove=library.remove_action), 1, 1),
)
