"""Handle commands on keys of any kind: EXISTS, TTL, TYPE, EXPIRE, DEL, KEYS, SCAN."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from farro.agq import descriptions, keys
from farro.agq.handlers.table import integer, table, text
from farro.agq.keys import GlobPattern
from farro.agq.replies import CommandError, SimpleString

if TYPE_CHECKING:
    from farro.agq.connection import Connection
    from farro.agq.roster import RemoteWorker

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
