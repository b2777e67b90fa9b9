"""Handle PLAN.* and ACTION.*: stored plans, and one plan for many inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from farro.agq import keys, memo_jobs
from farro.agq.handlers.jobs import as_json
from farro.agq.handlers.table import table, text
from farro.agq.replies import CommandError
from farro.documents import Document, parse_json
from farro.errors import BadDocument, InputError
from farro.queue import library

if TYPE_CHECKING:
    from farro.agq.connection import Connection


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
            contract=server.contract,
        )
    except BadDocument as error:
        raise CommandError(f"invalid plan: {memo_jobs.first_problem(error)}") from None


async def plan_get(connection: Connection, args: list[bytes]) -> Any:
    server = connection.server
    try:
        return as_json(await server.call(library.plan, server.library, text(args[1])))
    except InputError:
        return None


async def plan_list(connection: Connection, args: list[bytes]) -> Any:
    server = connection.server
    return [as_json(asdict(line)) for line in await server.call(library.plans, server.library)]


async def plan_delete(connection: Connection, args: list[bytes]) -> Any:
    """PLAN.DELETE id: delete a plan; 0 if there is none. Refused while an action needs it."""
    there = await plan_get(connection, args)
    return await _deleted(connection, args, there, library.remove_plan)


async def action_delete(connection: Connection, args: list[bytes]) -> Any:
    """ACTION.DELETE id: delete an action; its jobs stay. 0 if there is none."""
    there = await action_get(connection, args)
    return await _deleted(connection, args, there, library.remove_action)


async def _deleted(connection: Connection, args: list[bytes], there: Any, remove: Callable[..., None]) -> int:
    if there is None:
        return 0
    await connection.server.call(remove, connection.server.library, text(args[1]))
    return 1


async def action_submit(connection: Connection, args: list[bytes]) -> Any:
    """ACTION.SUBMIT json [queue]: store an action and queue a job for each of its inputs; all of them or none."""
    server = connection.server
    document = _document(args[1], "action")
    role = keys.queue_role(args[2], await server.roles()) if len(args) > 2 else None

    def submit() -> dict[str, Any]:
        action_id = library.save_action(server.library, document, mint=server.mint)
        queued = library.submit_action(
            server.store, server.library, action_id, role=role, gate=server.gate, contract=server.contract
        )
        kept = library.action(server.library, action_id)
        return {"action_id": action_id, "plan_id": kept["plan_id"], "job_ids": queued}

    try:
        answer = await server.call(submit)
    except BadDocument as error:
        raise CommandError(f"invalid action: {memo_jobs.first_problem(error)}") from None
    server.adjust_length(role or keys.READY_ROLE, len(answer["job_ids"]))
    return as_json(answer)


async def action_get(connection: Connection, args: list[bytes]) -> Any:
    """Return an action with its jobs and their statuses."""
    server = connection.server
    try:
        return as_json(await server.call(library.action_told, server.store, server.library, text(args[1])))
    except InputError:
        return None


async def action_list(connection: Connection, args: list[bytes]) -> Any:
    server = connection.server
    return [as_json(asdict(line)) for line in await server.call(library.actions, server.library)]


def _document(word: bytes, kind: str) -> Document:
    try:
        return parse_json(word, source=kind)
    except BadDocument as error:
        raise CommandError(f"invalid {kind}: {memo_jobs.first_problem(error)}") from None


TABLE = table(
    ("PLAN.SUBMIT", plan_submit, 1, 2),
    ("PLAN.GET", plan_get, 1, 1),
    ("PLAN.LIST", plan_list, 0, 0),
    ("PLAN.DELETE", plan_delete, 1, 1),
    ("ACTION.SUBMIT", action_submit, 1, 2),
    ("ACTION.GET", action_get, 1, 1),
    ("ACTION.LIST", action_list, 0, 0),
    ("ACTION.DELETE", action_delete, 1, 1),
)
