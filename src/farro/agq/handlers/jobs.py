"""Handle farro's own commands on jobs, queues and workers, on stored plans and on one plan for many inputs: JOB.*,
JOBS.LIST, WORKERS.LIST, QUEUE.STATS, PLAN.* and ACTION.*. Replies are JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from farro.agq import descriptions, keys, memo_jobs
from farro.agq.handlers.table import integer, table, text
from farro.agq.resp import OK, CommandError
from farro.documents import Document, parse_json
from farro.errors import BadDocument, InputError, UnknownJob
from farro.jobs import ids
from farro.jobs.request import JobRequest
from farro.jobs.states import Status
from farro.lazy_dataclass import replace
from farro.queue import jobs, library
from farro.queue import jobs as verbs
from farro.queue import retry as again
from farro.queue.jobs import JobQuery

if TYPE_CHECKING:
    from farro.agq.connection import Connection
    from farro.agq.server import AgqServer

LISTED = 100  # without LIMIT
MOST = 10_000
BY = "agq"


def as_json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, default=str)


async def get(connection: Connection, args: list[bytes]) -> Any:
    server = connection.server
    found = await server.query(descriptions.whole, server.store, _job_id(args[1]))
    return None if found is None else as_json(found)


async def input_(connection: Connection, args: list[bytes]) -> Any:
    """JOB.INPUT id: return what came with the job for its first step."""
    server = connection.server
    return await server.query(descriptions.input_of, server.store, _job_id(args[1]))


async def list_(connection: Connection, args: list[bytes]) -> Any:
    """[STATUS status] [ROLE role] [LIMIT n]: list the jobs that changed last, newest first."""
    server = connection.server
    words = args[1:]
    if len(words) % 2:
        raise CommandError("syntax error: [STATUS status] [ROLE role] [LIMIT n]")
    query = JobQuery(last=LISTED)
    for option, value in zip(words[::2], words[1::2], strict=True):
        if option.upper() == b"STATUS":
            query = replace(query, statuses=[_status(text(value))])
        elif option.upper() == b"ROLE":
            query = replace(query, roles=[keys.queue_role(b"queue:" + value, await server.roles())])
        elif option.upper() == b"LIMIT":
            query = replace(query, last=min(max(integer(value), 0), MOST))
        else:
            raise CommandError("syntax error: [STATUS status] [ROLE role] [LIMIT n]")
    views = await server.query(jobs.ls, server.store, query)
    return [as_json(each) for each in await server.query(descriptions.summaries, server.store, views)]


def _status(word: str) -> Status:
    try:
        return Status.parse(word.lower())
    except ValueError:
        raise CommandError(f"{word[:40]!a} is not a status: {', '.join(Status)}") from None


async def cancel(connection: Connection, args: list[bytes]) -> Any:
    """JOB.CANCEL id [why]: end a job for good, whether or not a worker holds it; return its status."""
    server = connection.server
    job_id = _job_id(args[1])
    note = text(args[2])[:1000] if len(args) > 2 else "cancelled over RESP"
    life = await server.call(verbs.kill, server.store, job_id, by=BY, note=note)
    return str(life.status)


async def retry(connection: Connection, args: list[bytes]) -> Any:
    """JOB.RETRY id: return the id of the new job."""
    server = connection.server
    job_id = _job_id(args[1])
    made = await server.call(again.retry, server.store, job_id, gate=server.policy.gate)
    return made.job_id


async def release(connection: Connection, args: list[bytes]) -> Any:
    """JOB.RELEASE id [why]: put a held job back into its queue, unfinished; only its holder may."""
    workers = connection.server.workers
    held = workers.holding(workers.of(connection), _job_id(args[1]))
    held.success = None
    await workers.hand_back(held, text(args[2])[:1000] if len(args) > 2 else "released by its worker")
    return OK


def _job_id(word: bytes) -> str:
    job_id = text(word)
    if not ids.is_job_id(job_id):
        raise UnknownJob(f"no job {job_id[:80]!a}")
    return job_id


async def workers(connection: Connection, args: list[bytes]) -> Any:
    """List the workers of this server by their ids, then the store's own."""
    server = connection.server
    now_s = server.now_s()
    lines = [
        {
            "worker_id": worker.id,
            "alive": True,
            "connections": len(worker.connections),
            "jobs": list(worker.held),
            "ttl_s": round(worker.remaining_s(now_s), 3),
            **{name: value for name, value in worker.facts.items() if name not in ("worker_id", "alive", "jobs")},
            "tags": sorted(worker.tags),
            "via": "agq",
        }
        for worker in server.workers.named.values()
    ]
    nameless = [c.worker for c in server.connections.values() if c.worker is not None and c.worker.id is None]
    lines += [
        {"worker_id": None, "alive": True, "connections": 1, "jobs": list(worker.held), "via": "agq"}
        for worker in nameless
        if worker.held
    ]
    own = server.workers.agents()
    others = await server.query(descriptions.workers, server.store, without=own)
    return [as_json(line) for line in (*lines, *others)]


async def stats(connection: Connection, args: list[bytes]) -> Any:
    """QUEUE.STATS [queue]: count the jobs of each role by status, and say whether its queue is paused."""
    server = connection.server
    roles = await server.roles()
    if len(args) > 1:
        roles = [keys.queue_role(args[1], roles)]
    counted = await server.query(descriptions.queues, server.store, roles)
    paused = await server.query(server.store.paused)
    waiting = server.waiting()
    queues = {
        keys.queue_name(role): {
            "role": role,
            **counts,
            "paused": role in paused,
            "waiting_clients": waiting.get(role, 0),
        }
        for role, counts in counted.items()
    }
    return as_json({"queues": queues, "processing": len(server.workers.held), "connections": len(server.connections)})


# --- stored plans and actions ---


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


async def get_stored(connection: Connection, args: list[bytes], *, read: Read) -> Any:
    """PLAN.GET id, ACTION.GET id."""
    try:
        return as_json(await connection.server.call(read, connection.server, text(args[1])))
    except InputError:
        return None


async def list_stored(connection: Connection, args: list[bytes], *, read: Callable[..., Any]) -> Any:
    """PLAN.LIST, ACTION.LIST."""
    server = connection.server
    return [as_json(asdict(line)) for line in await server.call(read, server.library)]


async def delete_stored(connection: Connection, args: list[bytes], *, read: Read, remove: Callable[..., None]) -> Any:
    """PLAN.DELETE id, ACTION.DELETE id: delete it; 0 if there is none. A plan that an action needs is kept with an
    error; the jobs of an action stay."""
    if await get_stored(connection, args, read=read) is None:
        return 0
    await connection.server.call(remove, connection.server.library, text(args[1]))
    return 1


def _document(word: bytes, kind: str) -> Document:
    try:
        return parse_json(word, source=kind)
    except BadDocument as error:
        raise CommandError(f"invalid {kind}: {memo_jobs.first_problem(error)}") from None


TABLE = table(
    ("JOB.GET", get, 1, 1),
    ("JOB.INPUT", input_, 1, 1),
    ("JOB.LIST", list_, 0, None),
    ("JOBS.LIST", list_, 0, None),
    ("JOB.CANCEL", cancel, 1, 2),
    ("JOB.RETRY", retry, 1, 1),
    ("JOB.RELEASE", release, 1, 2),
    ("WORKERS.LIST", workers, 0, 0),
    ("QUEUE.STATS", stats, 0, 1),
    ("PLAN.SUBMIT", plan_submit, 1, 2),
    ("PLAN.GET", partial(get_stored, read=_plan), 1, 1),
    ("PLAN.LIST", partial(list_stored, read=library.plans), 0, 0),
    ("PLAN.DELETE", partial(delete_stored, read=_plan, remove=library.remove_plan), 1, 1),
    ("ACTION.SUBMIT", action_submit, 1, 2),
    ("ACTION.GET", partial(get_stored, read=_action), 1, 1),
    ("ACTION.LIST", partial(list_stored, read=library.actions), 0, 0),
    ("ACTION.DELETE", partial(delete_stored, read=_action, remove=library.remove_action), 1, 1),
)
