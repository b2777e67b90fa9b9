"""What keys mean: queues of roles, the jobs in work, parts of a job, facts of a worker. There are no others.

What is done with them lives in commands.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from farro.agq.replies import CommandError
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
    """The role whose queue that is; None: it is none."""
    name = decoded(key)
    if name == READY:
        return READY_ROLE
    if not name.startswith("queue:"):
        return None
    role = name.removeprefix("queue:")
    return role if role in roles else None


def queue_role(key: bytes, roles: list[str]) -> str:
    """The same of a key that must be a queue."""
    role = role_of(key, roles)
    if role is None:
        there = ", ".join([READY, *(f"queue:{role}" for role in roles)])
        raise CommandError(f"{decoded(key)[:80]!a} is no queue here; there is {there}")
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
    """`worker:<id>` or `worker:<id>:<fact>`; an id may have colons, a fact has none."""
    name = decoded(key)
    if not name.startswith("worker:"):
        return None
    rest = name.removeprefix("worker:")
    worker_id, _, fact = rest.rpartition(":")
    if worker_id and fact in ("alive", "tools", "tags"):
        return WorkerKey(worker_id, fact)
    return WorkerKey(rest, None) if rest else None
