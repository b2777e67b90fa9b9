"""Interpret keys: queues of roles, held jobs, parts of a job, facts of a worker. There are no other keys.

Glob patterns for keys and channels are here as well.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from farro.agq.resp import CommandError
from farro.jobs import ids

READY = "queue:ready"
READY_ROLE = "Runner"
PROCESSING = "queue:processing"

Part = Literal["result", "status", "stdout", "stderr"]
PARTS: tuple[Part, ...] = ("result", "status", "stdout", "stderr")


class JobKey(NamedTuple):
    job_id: str
    part: Part | None  # None: the hash of the whole job


class WorkerKey(NamedTuple):
    worker_id: str
    fact: str | None  # alive, tools, tags; None: the hash of all of them


def decoded(key: bytes) -> str:
    return key.decode("utf-8", "replace")


def role_of(key: bytes, roles: list[str]) -> str | None:
    """Return the role of a queue key; None: it is not a queue."""
    name = decoded(key)
    if name == READY:
        return READY_ROLE
    if not name.startswith("queue:"):
        return None
    role = name.removeprefix("queue:")
    return role if role in roles else None


def queue_role(key: bytes, roles: list[str]) -> str:
    """Return the role of a key that must be a queue."""
    role = role_of(key, roles)
    if role is None:
        there = ", ".join([READY, *(f"queue:{role}" for role in roles)])
        raise CommandError(f"{decoded(key)[:80]!a} is not a queue here; known: {there}")
    return role


def queue_name(role: str) -> str:
    return READY if role == READY_ROLE else f"queue:{role}"


def job_key(key: bytes) -> JobKey | None:
    name = decoded(key)
    if not name.startswith("job:"):
        return None
    job_id, _, part = name.removeprefix("job:").partition(":")
    if not ids.is_job_id(job_id):
        return None
    if not part:
        return JobKey(job_id, None) if name == f"job:{job_id}" else None
    return JobKey(job_id, part) if part in PARTS else None


def worker_key(key: bytes) -> WorkerKey | None:
    """Parse `worker:<id>` or `worker:<id>:<fact>`. An id may contain colons, a fact none."""
    name = decoded(key)
    if not name.startswith("worker:"):
        return None
    rest = name.removeprefix("worker:")
    worker_id, _, fact = rest.rpartition(":")
    if worker_id and fact in ("alive", "tools", "tags"):
        return WorkerKey(worker_id, fact)
    return WorkerKey(rest, None) if rest else None


# --- glob patterns ---

_ANY, _ONE = object(), object()
MAX_LENGTH = 1024


class GlobPattern:
    r"""A glob pattern of Redis: `*`, `?`, `[a-c]`, `[^a]` and `\\x`."""

    def __init__(self, text: bytes) -> None:
        self._items = list(_items(text[:MAX_LENGTH]))

    def fits(self, name: bytes) -> bool:
        """Match with one backtrack point, the last `*`: linear in practice, quadratic at worst. A regular expression
        with many stars would be exponential."""
        items, at, place, star, mark = self._items, 0, 0, -1, 0
        while place < len(name):
            if at < len(items) and items[at] is _ANY:
                star, mark, at = at, place, at + 1
            elif at < len(items) and (items[at] is _ONE or _in(items[at], name[place])):
                at, place = at + 1, place + 1
            elif star >= 0:
                mark += 1
                at, place = star + 1, mark
            else:
                return False
        return all(item is _ANY for item in items[at:])


def _in(item: object, byte: int) -> bool:
    return isinstance(item, frozenset) and byte in item


def _items(text: bytes) -> list[object]:
    items: list[object] = []
    at = 0
    while at < len(text):
        char = text[at : at + 1]
        at += 1
        if char == b"*":
            if not items or items[-1] is not _ANY:
                items.append(_ANY)
        elif char == b"?":
            items.append(_ONE)
        elif char == b"[":
            end = text.find(b"]", at)
            end = len(text) if end < 0 else end
            items.append(_set(text[at:end]))
            at = end + 1
        elif char == b"\\" and at < len(text):
            items.append(frozenset({text[at]}))
            at += 1
        else:
            items.append(frozenset({char[0]}))
    return items


def _set(inside: bytes) -> frozenset[int]:
    without = inside.startswith(b"^")
    rest = inside[1:] if without else inside
    members: set[int] = set()
    at = 0
    while at < len(rest):
        if rest[at + 1 : at + 2] == b"-" and at + 2 < len(rest):
            low, high = sorted((rest[at], rest[at + 2]))
            members.update(range(low, high + 1))
            at += 3
        else:
            members.add(rest[at])
            at += 1
    return frozenset(range(256)) - members if without else frozenset(members)
