"""Interpret keys: queues of roles, held jobs, parts of a job, facts of a worker. There are no other keys.

Glob patterns for keys and channels are here as well.
"""

from __future__ import annotations

import re
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
    """Parse `worker:<id>` or `worker:<id>:<fact>`. An id may contain colons; a fact (`alive`, `tools`, `tags`)
    contains none."""
    name = decoded(key)
    if not name.startswith("worker:"):
        return None
    rest = name.removeprefix("worker:")
    worker_id, _, fact = rest.rpartition(":")
    if worker_id and fact in ("alive", "tools", "tags"):
        return WorkerKey(worker_id, fact)
    return WorkerKey(rest, None) if rest else None


# --- glob patterns ---

MAX_LENGTH = 1024


class GlobPattern:
    r"""A glob pattern of Redis: `*`, `?`, `[a-c]`, `[^a]` and `\\x`."""

    def __init__(self, text: bytes) -> None:
        self._pattern = re.compile(_expression(text[:MAX_LENGTH]), re.DOTALL)

    def fits(self, name: bytes) -> bool:
        return self._pattern.fullmatch(name) is not None


def _expression(text: bytes) -> bytes:
    """Translate a glob. What a `*` takes before the next part is never taken back (an atomic group), which is enough
    for globs: plain stars would take exponential time."""
    parts = [b""]  # between two stars
    at = 0
    while at < len(text):
        char = text[at : at + 1]
        at += 1
        if char == b"*":
            parts.append(b"")
        elif char == b"?":
            parts[-1] += b"."
        elif char == b"[":
            end = text.find(b"]", at)
            end = len(text) if end < 0 else end
            parts[-1] += _class(text[at:end])
            at = end + 1
        else:
            if char == b"\\" and at < len(text):
                char, at = text[at : at + 1], at + 1
            parts[-1] += re.escape(char)
    if len(parts) == 1:
        return parts[0]
    first, *middle, last = parts
    return first + b"".join(b"(?>.*?%b)" % part for part in middle if part) + b".*" + last


def _class(inside: bytes) -> bytes:
    """Translate the inside of [ ]."""
    rest = inside.removeprefix(b"^")
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
    if rest != inside:
        members = set(range(256)) - members
    return b"[%b]" % b"".join(b"\\x%02x" % member for member in sorted(members)) if members else b"(?!)"
