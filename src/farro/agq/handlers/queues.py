"""Handle queues: push jobs, pop them singly or in batches, move them to queue:processing, acknowledge them there.

A queue has one order, the store's (priority, then entry), whichever end is named: reading a queue of jobs from its
young end would starve the old ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from farro.agq import keys, memo_jobs
from farro.agq.blocking_pops import RoleQueue, Waiter
from farro.agq.handlers.table import integer, seconds, table, text
from farro.agq.memo_jobs import PushRequest
from farro.agq.resp import NO_ARRAY, CommandError
from farro.agq.workers import HeldJob
from farro.errors import BadDocument, IdConflict
from farro.jobs.states import Status

if TYPE_CHECKING:
    from farro.agq.connection import Connection

MANAGER = "Manager"
SHOWN = 1000  # jobs that one LRANGE returns
SHOWN_BYTES = 16 << 20
MOST_TAKEN = 16  # jobs of one batch: 16 MiB, as one LPOP


# --- pushing ---


async def push(connection: Connection, args: list[bytes]) -> Any:
    return await _push(connection, args[1], args[2:])


async def push_with_input(connection: Connection, args: list[bytes]) -> Any:
    """JOB.PUSH queue job input [input …]: push one job and what its first step reads, in as many pieces as it needs."""
    data = b"".join(args[3:])
    most = connection.server.options.max_job_bytes
    if len(data) > most:
        raise CommandError(f"the input has {len(data)} bytes, more than a job may bring: {most}")
    return await _push(connection, args[1], args[2:3], data)


async def _push(connection: Connection, key: bytes, texts: list[bytes], data: bytes | None = None) -> int:
    server = connection.server
    role = keys.queue_role(key, await server.roles())
    try:
        await server.push(PushRequest(texts=texts, role=role, input=data))
    except BadDocument as error:
        raise CommandError(f"invalid job: {memo_jobs.first_problem(error)}") from None
    except IdConflict as error:
        raise CommandError(f"invalid job: id: {error}") from None
    return await server.length(role)


# --- popping ---


async def pop(connection: Connection, args: list[bytes]) -> Any:
    role = workable_role(args[1], await connection.server.roles())
    if len(args) == 2:
        held = await _claim(connection, role)
        return None if held is None else held.text
    count = integer(args[2])
    if not 0 <= count <= SHOWN:
        raise CommandError(f"value is out of range, must be between 0 and {SHOWN}")
    texts: list[bytes] = []
    size = 0
    while len(texts) < count and size <= SHOWN_BYTES and (held := await _claim(connection, role)) is not None:
        texts.append(held.text)
        size += len(held.text)
    return texts or (NO_ARRAY if count else [])


async def blocking_pop(connection: Connection, args: list[bytes]) -> Any:
    timeout_s = seconds(args[-1])
    roles = await connection.server.roles()
    wanted = [(key, workable_role(key, roles)) for key in args[1:-1]]
    found = await wait(connection, [role for _, role in wanted], timeout_s)
    if not found:
        return NO_ARRAY
    key = next(key for key, role in wanted if role == found[0].role)
    return [key, found[0].text]


async def move(connection: Connection, args: list[bytes]) -> Any:
    """RPOPLPUSH source destination, LMOVE source destination LEFT|RIGHT LEFT|RIGHT."""
    held = await _claim(connection, await _source(connection, args))
    return None if held is None else held.text


async def blocking_move(connection: Connection, args: list[bytes]) -> Any:
    timeout_s = seconds(args[-1])
    found = await wait(connection, [await _source(connection, args)], timeout_s)
    return found[0].text if found else None


async def _source(connection: Connection, args: list[bytes]) -> str:
    role = workable_role(args[1], await connection.server.roles())
    if keys.decoded(args[2]) != keys.PROCESSING:
        raise CommandError(f"jobs can be moved only to {keys.PROCESSING}; their routing decides on other queues")
    ends = args[3:5] if args[0].upper() in (b"LMOVE", b"BLMOVE") else []
    if any(end.upper() not in (b"LEFT", b"RIGHT") for end in ends):
        raise CommandError("syntax error")
    return role


def workable_role(key: bytes, roles: list[str]) -> str:
    """Return the role of a queue that workers may claim from."""
    role = keys.queue_role(key, roles)
    if role == MANAGER:
        raise CommandError("the manager's queue is worked by `farro manager`")
    return role


async def _claim(connection: Connection, role: str) -> HeldJob | None:
    workers = connection.server.workers
    found = deliver(connection, await workers.claim(workers.of(connection), role))
    return found[0] if found else None


def deliver(connection: Connection, found: list[HeldJob]) -> list[HeldJob]:
    """Prepare jobs for the reply that is being made; hand them back if the client is gone."""
    if not found:
        return []
    server = connection.server
    server.adjust_length(found[0].role, -len(found))
    for held in found:
        held.connection = connection
    connection.undelivered += found
    if connection.closed or server.stopping:
        # At once, even if its worker may come back: it never learned of these jobs.
        for held in found:
            server.spawn(server.workers.hand_back(held, "its client went away before it got the job"))
        return []
    return found


async def wait(
    connection: Connection, roles: list[str], timeout_s: float, *, limit: int = 1, batch: bool = False
) -> list[HeldJob]:
    """Return up to `limit` jobs of one of these roles, as soon as there is one; 0 s: wait without end."""
    server = connection.server
    workers = server.workers
    queues = [server.queue(role) for role in dict.fromkeys(roles)]
    news_before: dict[RoleQueue, int] = {}  # the `news` count of each queue that was empty
    for queue in queues:  # except those in which other clients already wait
        if queue.waiters:
            continue
        news_before[queue] = queue.news
        if found := await workers.claim(workers.of(connection), queue.role, limit, batch=batch):
            return deliver(connection, found)
    if connection.executing or connection.closed or server.stopping:
        return []
    waiter = connection.waiter = Waiter(connection, workers, queues, limit=limit, batch=batch)
    timer = asyncio.get_running_loop().call_later(timeout_s, waiter.expire) if timeout_s else None
    waiter.enter(news_before)
    try:
        return deliver(connection, await waiter.found)
    finally:
        connection.waiter = None
        if timer is not None:
            timer.cancel()


# --- batches ---


async def take(connection: Connection, args: list[bytes]) -> Any:
    """JOB.TAKE queue count [seconds]: return attempt and text of up to `count` jobs; with seconds, wait for one. A
    worker that takes more has received the answers to its earlier results."""
    count = integer(args[2])
    if not 1 <= count <= MOST_TAKEN:
        raise CommandError(f"value is out of range, must be between 1 and {MOST_TAKEN}")
    timeout_s = seconds(args[3]) if len(args) > 3 else None
    server = connection.server
    worker = server.workers.of(connection)
    worker.posted.clear()
    role = workable_role(args[1], await server.roles())
    if timeout_s is not None:
        found = await wait(connection, [role], timeout_s, limit=count, batch=True)
    else:
        found = deliver(connection, await server.workers.claim(worker, role, count, batch=True))
    reply: list[Any] = []
    for held in found:
        reply += (held.claim.attempt, held.text)
    return reply or NO_ARRAY


async def return_jobs(connection: Connection, args: list[bytes]) -> Any:
    """JOB.RETURN id …: put jobs that were not begun back to their positions in the queue; return how many. Jobs that
    this worker does not hold are skipped."""
    server = connection.server
    worker = server.workers.of(connection)
    known = (worker.held.get(text(job_id)) for job_id in dict.fromkeys(args[1:]))
    mine = [held for held in known if held is not None and not held.busy and held.success is None]
    if mine:
        await server.workers.return_unbegun(mine)
        for held in mine:
            server.adjust_length(held.role, 1)
    return len(mine)


# --- queries ---


async def length(connection: Connection, args: list[bytes]) -> Any:
    server = connection.server
    if keys.decoded(args[1]) == keys.PROCESSING:
        return len(server.workers.held)
    role = keys.role_of(args[1], await server.roles())
    return 0 if role is None else await server.length(role, exactly=True)


async def range_(connection: Connection, args: list[bytes]) -> Any:
    server = connection.server
    first, last = integer(args[2]), integer(args[3])
    if keys.decoded(args[1]) == keys.PROCESSING:
        return _bounded(held.text for held in _sliced(list(server.workers.held.values()), first, last))
    role = keys.role_of(args[1], await server.roles())
    if role is None:
        return []
    return await server.query(_queued, server.store, role, first, last)


def _queued(store: Any, role: str, first: int, last: int) -> list[bytes]:
    views = store.list(roles=[role], statuses=[Status.QUEUED])
    views.sort(key=lambda view: (view.lifecycle.enqueued_at, view.job_id))

    def texts() -> Iterator[bytes]:
        for view in _sliced(views, first, last):
            with contextlib.suppress(FileNotFoundError):
                yield memo_jobs.queued_text(store, view)

    return _bounded(texts())


def _bounded(texts: Iterable[bytes]) -> list[bytes]:
    """Return as many texts as fit into one reply."""
    shown: list[bytes] = []
    size = 0
    for found in texts:
        shown.append(found)
        size += len(found)
        if size > SHOWN_BYTES:
            break
    return shown


def _sliced(items: list[Any], first: int, last: int) -> list[Any]:
    """Slice like LRANGE: inclusive, negative indexes from the end."""
    count = len(items)
    begin = max(0, first + count) if first < 0 else first
    end = last + count if last < 0 else last
    return items[begin : end + 1][:SHOWN] if end >= begin else []


# --- acknowledgement ---


async def remove(connection: Connection, args: list[bytes]) -> Any:
    """LREM queue:processing count value: acknowledge a job whose result the worker has posted."""
    integer(args[2])
    if keys.decoded(args[1]) != keys.PROCESSING:
        raise CommandError(f"only {keys.PROCESSING} has LREM; JOB.CANCEL takes a job out of its queue")
    workers = connection.server.workers
    worker = workers.of(connection)
    job_id = _job_id(args[3])
    held = worker.held.get(job_id)
    if held is not None:
        if held.success is None:
            raise CommandError(f"no result of {job_id} was posted: SET job:{job_id}:result first; it is still yours")
        await workers.commit_status(workers.holding(worker, job_id))
    return 1 if worker.posted.pop(job_id, None) is not None else 0


def _job_id(value: bytes) -> str:
    """Return the id of a job as it was popped, or the id itself."""
    if not value.startswith(b"{"):
        return keys.decoded(value)
    try:
        data = json.loads(value)
    except (ValueError, RecursionError):
        data = {}
    found = data.get("id") if isinstance(data, dict) else None
    if not isinstance(found, str):
        raise CommandError("the value is not a job: it has no id")
    return found


TABLE = table(
    ("LPUSH", push, 2, None),
    ("RPUSH", push, 2, None),
    ("LPOP", pop, 1, 2),
    ("RPOP", pop, 1, 2),
    ("BLPOP", blocking_pop, 2, None),
    ("BRPOP", blocking_pop, 2, None),
    ("RPOPLPUSH", move, 2, 2),
    ("LMOVE", move, 4, 4),
    ("BRPOPLPUSH", blocking_move, 3, 3),
    ("BLMOVE", blocking_move, 5, 5),
    ("LLEN", length, 1, 1),
    ("LRANGE", range_, 3, 3),
    ("LREM", remove, 3, 3),
    ("JOB.PUSH", push_with_input, 3, None),
    ("JOB.TAKE", take, 2, 3),
    ("JOB.RETURN", return_jobs, 1, MOST_TAKEN),
)
