"""Handle farro's own commands on jobs, queues and workers: JOB.*, JOBS.LIST, WORKERS.LIST, QUEUE.STATS. Replies are
JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from farro.agq import descriptions, keys
from farro.agq.handlers.table import integer, table, text
from farro.agq.resp import OK, CommandError
from farro.errors import UnknownJob
from farro.jobs import ids
from farro.jobs.states import Status
from farro.queue import jobs as verbs
from farro.queue import listing
from farro.queue import retry as again
from farro.queue.listing import JobQuery

if TYPE_CHECKING:
    from farro.agq.connection import Connection

LISTED = 100  # without LIMIT
MOST = 10_000
BY = "agq"


def as_json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, default=str)


async def get(connection: Connection, args: list[bytes]) -> Any:
    server = connection.server
    found = await server.query(descriptions.whole, server.store, _job_id(args[1]))
    return None if found is None else as_json(found)


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
    views = await server.query(listing.ls, server.store, query)
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


TABLE = table(
    ("JOB.GET", get, 1, 1),
    ("JOB.LIST", list_, 0, None),
    ("JOBS.LIST", list_, 0, None),
    ("JOB.CANCEL", cancel, 1, 2),
    ("JOB.RETRY", retry, 1, 1),
    ("JOB.RELEASE", release, 1, 2),
    ("WORKERS.LIST", workers, 0, 0),
    ("QUEUE.STATS", stats, 0, 1),
)
