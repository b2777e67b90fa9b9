"""Handle keys: what workers post (SET), what is known of jobs and workers (GET), and keys in general (EXISTS, SCAN)."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from farro.agq import descriptions, keys, memo_jobs
from farro.agq.handlers.table import integer, table, text
from farro.agq.keys import GlobPattern, JobKey
from farro.agq.resp import OK, CommandError, SimpleString
from farro.agq.workers import STATUS_GRACE_S, HeldJob, RemoteWorker
from farro.errors import BadDocument
from farro.store.port import Claim

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
        return commit_result(connection, job.job_id, value)
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


async def commit_result(connection: Connection, job_id: str, value: bytes) -> Any:
    """Commit the result of a job; refuse it with a CommandError."""
    workers = connection.server.workers
    worker = workers.of(connection)
    digest = await _computed(connection, _digest, value)
    if worker.posted.get(job_id) == digest:
        return OK  # repeated after a lost reply
    claim = workers.holding(worker, job_id).claim
    posted, document = await _computed(connection, _read, value, claim)
    await workers.commit(workers.holding(worker, job_id), posted, document, digest)
    return OK


async def _computed(connection: Connection, function: Callable[..., Any], value: bytes, *more: Any) -> Any:
    """Call a function of a result: in a thread if the result is large."""
    if len(value) > SMALL_RESULT:
        return await connection.server.call(function, value, *more)
    return function(value, *more)


async def done(connection: Connection, args: list[bytes]) -> Any:
    """JOB.DONE id result [id result …]: return OK for each, or why its result is refused."""
    if len(args) % 2 == 0:
        raise CommandError("wrong number of arguments for 'job.done' command")
    pairs = zip(args[1::2], args[2::2], strict=True)
    commits = (commit_result(connection, keys.decoded(job_id), value) for job_id, value in pairs)
    answers = await asyncio.gather(*commits, return_exceptions=True)
    return [connection.error_reply(answer) if isinstance(answer, Exception) else answer for answer in answers]


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()


def _read(value: bytes, claim: Claim) -> Any:
    try:
        return memo_jobs.read_posted(value, claim)
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
        raise CommandError("HSET works on worker:<id> only; the fields of a job cannot be set")
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


# --- keys of any kind ---

LISTED = 10_000  # jobs that KEYS and SCAN read


async def type_(connection: Connection, args: list[bytes]) -> Any:
    return SimpleString(await _type(connection, args[1]))


async def _type(connection: Connection, key: bytes) -> str:
    """Return the type of a key; `none` if it does not exist."""
    server = connection.server
    job = keys.job_key(key)
    if job is not None:
        if job.part is None:
            return "none" if await server.call(server.store.find, job.job_id) is None else "hash"
        there = await server.call(descriptions.part, server.store, job.job_id, job.part)
        return "none" if there is None else "string"
    worker = keys.worker_key(key)
    if worker is not None:
        known = server.workers.named.get(worker.worker_id)
        if known is None or (worker.fact not in (None, "alive") and worker.fact not in known.facts):
            return "none"
        return "hash" if worker.fact is None else "string"
    if keys.decoded(key) == keys.PROCESSING:
        return "list" if server.workers.held else "none"
    role = keys.role_of(key, await server.roles())
    return "list" if role is not None and await server.length(role, exactly=True) else "none"


async def exists(connection: Connection, args: list[bytes]) -> Any:
    return sum([await _type(connection, key) != "none" for key in args[1:]])


async def ttl(connection: Connection, args: list[bytes]) -> Any:
    """-2: the key does not exist; -1: it does not expire. Only workers expire."""
    if await _type(connection, args[1]) == "none":
        return -2
    known = _worker(connection, args[1])
    if known is None:
        return -1
    left_s = known.remaining_s(connection.server.now_s())
    return math.ceil(left_s * 1000) if args[0].upper() == b"PTTL" else math.ceil(left_s)


async def expire(connection: Connection, args: list[bytes]) -> Any:
    """Set the time to live of a worker. Jobs do not expire, `farro prune` removes them: return 0 for them."""
    amount = integer(args[2])
    known = _worker(connection, args[1])
    if known is None or known.id is None:
        return 0
    connection.server.workers.touch(known.id, amount / 1000 if args[0].upper() == b"PEXPIRE" else amount)
    return 1


def _worker(connection: Connection, key: bytes) -> RemoteWorker | None:
    named = keys.worker_key(key)
    return None if named is None else connection.server.workers.named.get(named.worker_id)


async def delete(connection: Connection, args: list[bytes]) -> Any:
    """Delete facts of a worker. Jobs and queues cannot be deleted this way."""
    for key in args[1:]:
        if keys.worker_key(key) is None and await _type(connection, key) != "none":
            raise CommandError(
                f"{keys.decoded(key)[:80]} is not a key to delete: JOB.CANCEL ends a job, `farro prune` removes it"
            )
    deleted = 0
    for key in args[1:]:
        named, known = keys.worker_key(key), _worker(connection, key)
        if named is None or known is None:
            continue
        if named.fact in ("tools", "tags"):
            deleted += known.facts.pop(named.fact, None) is not None
        else:
            known.seen_s, known.ttl_s = 0.0, known.ttl_s if known.connections else 0.0
            deleted += 1
    return deleted


async def keys_(connection: Connection, args: list[bytes]) -> Any:
    return await _matching(connection, args[1])


async def scan(connection: Connection, args: list[bytes]) -> Any:
    """Return all keys at once; the cursor is always 0."""
    integer(args[1])
    pattern, kind = b"*", None
    words = args[2:]
    if len(words) % 2:
        raise CommandError("syntax error")
    for option, value in zip(words[::2], words[1::2], strict=True):
        if option.upper() == b"MATCH":
            pattern = value
        elif option.upper() == b"TYPE":
            kind = text(value).lower()
        elif option.upper() != b"COUNT":
            raise CommandError("syntax error")
    found = await _matching(connection, pattern) if args[1] == b"0" else []
    if kind is not None:
        found = [key for key in found if _kind(key) == kind]
    return ["0", found]


def _kind(name: str) -> str:
    """Return the type of a key that exists."""
    if name.startswith("queue:"):
        return "list"
    return "hash" if name.startswith("job:") and name.count(":") == 1 else "string"


async def _matching(connection: Connection, text_of_pattern: bytes) -> list[str]:
    server = connection.server
    pattern = GlobPattern(text_of_pattern)
    names: list[str] = [keys.PROCESSING] if server.workers.held else []
    for role in await server.roles():
        if await server.length(role):
            names.append(keys.queue_name(role))
    for worker in server.workers.named.values():
        facts = ["alive", *(fact for fact in ("tools", "tags") if fact in worker.facts)]
        names += [f"worker:{worker.id}:{fact}" for fact in facts]
    jobs = not text_of_pattern.startswith((b"worker:", b"queue:"))

    def fitting() -> list[str]:
        """Match in a thread: fifty thousand names take seconds, in which no other client would be served."""
        for view in server.store.list(limit=LISTED) if jobs else ():
            names.append(f"job:{view.job_id}")
            names.extend(f"job:{view.job_id}:{part}" for part in _parts(view.lifecycle.attempt))
        return [name for name in names if pattern.fits(name.encode())]

    found: list[str] = await server.query(fitting)
    return found


def _parts(attempt: int) -> tuple[str, ...]:
    return keys.PARTS if attempt else ("status",)


TABLE = table(
    ("SET", set_, 2, None),
    ("SETEX", setex, 3, 3),
    ("GET", get, 1, 1),
    ("HGETALL", hgetall, 1, 1),
    ("HGET", hget, 2, 2),
    ("HSET", hset, 3, None),
    ("JOB.DONE", done, 2, None),
    ("TYPE", type_, 1, 1),
    ("EXISTS", exists, 1, None),
    ("TTL", ttl, 1, 1),
    ("PTTL", ttl, 1, 1),
    ("EXPIRE", expire, 2, 3),
    ("PEXPIRE", expire, 2, 3),
    ("DEL", delete, 1, None),
    ("UNLINK", delete, 1, None),
    ("KEYS", keys_, 1, 1),
    ("SCAN", scan, 1, None),
)
