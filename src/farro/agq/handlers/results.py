"""Handle results and facts: SET and GET of what workers post, and of any job, whichever worker ran it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from farro.agq import descriptions, keys, memo_jobs
from farro.agq.handlers.table import integer, table, text
from farro.agq.keys import JobKey
from farro.agq.replies import OK, CommandError, DeferredReply
from farro.agq.roster import HeldJob, RemoteWorker
from farro.agq.workers import STATUS_GRACE_S
from farro.errors import BadDocument

if TYPE_CHECKING:
    from farro.agq.connection import Connection

GOOD = frozenset({"completed", "succeeded", "success", "done"})
BAD = frozenset({"failed", "failure", "error"})
UNDER_WAY = frozenset({"running", "processing", "in_progress", "in-progress", "pending", "started"})
FACTS, FACTS_SIZE = 32, 16384  # limits of what a worker announces
SMALL_RESULT = 64 << 10  # bytes; larger results are parsed in a thread
STREAM_BYTES = 8 << 20  # of one stream that a worker posts beside its result


# --- writes ---


def set_(connection: Connection, args: list[bytes]) -> Any:
    expiry_s = _expiry(args[3:])
    job = _job_of(connection, args[1])
    if job is not None and job.part is not None:
        return _post(connection, job, args[2])
    worker = keys.worker_key(args[1])
    if worker is not None and worker.fact is not None:
        known = connection.server.workers.touch(worker.worker_id, expiry_s if worker.fact == "alive" else None)
        if worker.fact != "alive":
            _set_facts(known, {worker.fact: text(args[2])[:4096]})
        return OK
    raise CommandError(
        f"{keys.decoded(args[1])[:80]!a} is not a key here: only job:<id>:result, :status, :stdout, :stderr and "
        "worker:<id>:alive, :tools, :tags can be set"
    )


def _job_of(connection: Connection, key: bytes) -> JobKey | None:
    """Parse the key of a job. If its holder names the job, the holder knows of it."""
    job = keys.job_key(key)
    if job is not None:
        connection.server.workers.confirm(connection, job.job_id)
    return job


def _expiry(words: list[bytes]) -> float | None:
    """Parse EX and PX. Keys of jobs do not expire, keys of workers do."""
    if not words:
        return None
    if len(words) == 2 and words[0].upper() in (b"EX", b"PX"):
        amount = integer(words[1])
        if amount <= 0:
            raise CommandError("invalid expire time in 'set' command")
        return amount if words[0].upper() == b"EX" else amount / 1000
    raise CommandError("syntax error: only EX and PX are understood")


def setex(connection: Connection, args: list[bytes]) -> Any:
    return set_(connection, [b"SET", args[1], args[3], b"EX", args[2]])


def _post(connection: Connection, job: JobKey, value: bytes) -> Any:
    workers = connection.server.workers
    worker = workers.of(connection)
    if job.part == "result":
        return _post_result(connection, job.job_id, value)
    if job.part == "status" and job.job_id in worker.posted:
        return OK  # the result said it already
    held = workers.holding(worker, job.job_id)
    if job.part == "status":
        _post_status(connection, held, text(value).strip().lower())
        return OK
    if len(value) > STREAM_BYTES:
        raise CommandError(f"{job.part} has {len(value)} bytes; at most {STREAM_BYTES} are taken")
    setattr(held, str(job.part), value.decode("utf-8", "replace"))
    return OK


def _post_result(connection: Connection, job_id: str, value: bytes) -> Any:
    if len(value) > SMALL_RESULT:
        return commit_large_result(connection, job_id, value)
    later = DeferredReply()
    commit_result(connection, job_id, value, later.answer)
    return later


def commit_result(connection: Connection, job_id: str, value: bytes, callback: Callable[[Any], None]) -> None:
    """Commit the result of a job; `callback` gets OK, or why it is refused."""
    workers = connection.server.workers
    worker = workers.of(connection)
    digest = _digest(value)
    if worker.posted.get(job_id) == digest:
        callback(OK)  # repeated after a lost reply
        return
    try:
        held = workers.holding(worker, job_id)
        posted, document = _read(value, job_id)
    except CommandError as error:
        callback(error)
        return
    workers.commit(held, posted, document, digest, lambda error: callback(OK if error is None else error))


async def commit_large_result(connection: Connection, job_id: str, value: bytes) -> Any:
    """Commit a result that takes a while to parse."""
    workers = connection.server.workers
    worker = workers.of(connection)
    digest = await connection.server.call(_digest, value)
    if worker.posted.get(job_id) == digest:
        return OK
    workers.holding(worker, job_id)
    posted, document = await connection.server.call(_read, value, job_id)
    later = DeferredReply()
    workers.commit(workers.holding(worker, job_id), posted, document, digest, later.answer)
    await later.wait()
    return OK


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()


def _read(value: bytes, job_id: str) -> Any:
    try:
        return memo_jobs.read_posted(value, job_id)
    except BadDocument as error:
        raise CommandError(f"invalid result: {memo_jobs.first_problem(error)}") from None


def _post_status(connection: Connection, held: HeldJob, word: str) -> None:
    """Note how the job ended. The result usually comes shortly before or after: wait for it a moment, then commit the
    job with the streams alone."""
    if word in UNDER_WAY:
        return
    if word not in GOOD | BAD:
        raise CommandError(f"{word[:40]!a} is not a status: completed, failed or running")
    held.success = word in GOOD
    if held.timer is None:
        server = connection.server
        held.timer = asyncio.get_running_loop().call_later(
            STATUS_GRACE_S, lambda: server.spawn(_commit_status(server, held))
        )


async def _commit_status(server: Any, held: HeldJob) -> None:
    if held.success is not None:
        await server.workers.hand_back(held, "")  # it commits the status


# --- reads ---


async def get(connection: Connection, args: list[bytes]) -> Any:
    job = _job_of(connection, args[1])
    if job is not None and job.part is not None:
        server = connection.server
        return await server.call(descriptions.part, server.store, job.job_id, job.part)
    worker = keys.worker_key(args[1])
    if worker is not None and worker.fact is not None:
        known = connection.server.workers.named.get(worker.worker_id)
        if known is None:
            return None
        return "1" if worker.fact == "alive" else known.facts.get(worker.fact)
    if job is not None or worker is not None or keys.decoded(args[1]).startswith("queue:"):
        raise CommandError("Operation against a key holding the wrong kind of value", "WRONGTYPE")
    return None


async def hgetall(connection: Connection, args: list[bytes]) -> Any:
    job = _job_of(connection, args[1])
    if job is not None and job.part is None:
        server = connection.server
        return await server.call(descriptions.fields, server.store, job.job_id) or {}
    worker = keys.worker_key(args[1])
    if worker is not None and worker.fact is None:
        known = connection.server.workers.named.get(worker.worker_id)
        return {} if known is None else {"worker_id": worker.worker_id, **known.facts}
    return {}


async def hget(connection: Connection, args: list[bytes]) -> Any:
    job = _job_of(connection, args[1])
    if job is not None and args[2] == b"attempt" and (held := connection.server.workers.held.get(job.job_id)):
        return str(held.claim.attempt)  # every agw reads it after its pop: this avoids a read of the disk
    found = await hgetall(connection, args[:2])
    return found.get(text(args[2]))


async def hset(connection: Connection, args: list[bytes]) -> Any:
    worker = keys.worker_key(args[1])
    if worker is None or worker.fact is not None:
        raise CommandError("only worker:<id> has fields that can be set; a job's are its own")
    if len(args) % 2:
        raise CommandError("wrong number of arguments for 'hset' command")
    known = connection.server.workers.touch(worker.worker_id)
    pairs = {text(name)[:64]: text(value)[:4096] for name, value in zip(args[2::2], args[3::2], strict=True)}
    fresh = len(pairs.keys() - known.facts.keys())
    _set_facts(known, pairs)
    return fresh


def _set_facts(known: RemoteWorker, pairs: dict[str, str]) -> None:
    facts = {**known.facts, **pairs}
    if len(facts) > FACTS or sum(map(len, facts.values())) > FACTS_SIZE:
        raise CommandError(f"a worker has at most {FACTS} fields, of {FACTS_SIZE} characters together")
    known.facts = facts


TABLE = table(
    ("SET", set_, 2, None),
    ("SETEX", setex, 3, 3),
    ("GET", get, 1, 1),
    ("HGETALL", hgetall, 1, 1),
    ("HGET", hget, 2, 2),
    ("HSET", hset, 3, None),
)
