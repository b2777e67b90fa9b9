"""Describe jobs, queues and workers as data: flat fields, JSON documents, streams."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from farro.agq import memo_jobs
from farro.execution.progress import read_prompt, read_result
from farro.host import fs
from farro.jobs import ids
from farro.plans.forms import shape
from farro.queue import logs
from farro.queue.logs import LogQuery
from farro.store.port import JobView, Store

STREAM_BYTES = 16 << 20
_LOOKS = 4
T = TypeVar("T")


def part(store: Store, job_id: str, name: str) -> bytes | str | None:
    """Return `status`, `result`, `stdout` or `stderr` of a job; None: the job does not exist, or has none yet."""
    if name == "status":
        view = store.find(job_id)
        return None if view is None else str(view.status)
    if name == "result":
        return _looked(store, job_id, lambda view: memo_jobs.result_text(store, view))
    return _looked(store, job_id, lambda view: _stream(store, view, name))


def _looked(store: Store, job_id: str, look: Callable[[JobView], T | None]) -> T | None:
    for _ in range(_LOOKS):
        view = store.find(job_id)
        if view is None:
            return None
        with contextlib.suppress(FileNotFoundError):  # the job moved meanwhile
            return look(view)
    return None


def _stream(store: Store, view: JobView, stream: str) -> bytes | None:
    """Return the output of all steps of the latest attempt, in order, up to a limit."""
    output = logs.output(store, view.job_id, LogQuery(streams=(stream,)))
    if output.attempt is None:
        return None
    output_bytes = bytearray()
    for source in output.sources:
        for block in logs.read(source.path, 0, STREAM_BYTES - len(output_bytes)):
            output_bytes += block
        if len(output_bytes) >= STREAM_BYTES:
            break
    return bytes(output_bytes)


def input_of(store: Store, job_id: str) -> bytes | None:
    """Return what came with a job for its first step; None: nothing, or the job does not exist."""
    return _looked(store, job_id, lambda view: _input(store, view))


def _input(store: Store, view: JobView) -> bytes | None:
    folder = store.folder(view)
    name = read_prompt(folder).get("input")
    return fs.read_bytes(f"{folder}/payload/{ids.check_payload_name(name)}") if isinstance(name, str) else None


def fields(store: Store, job_id: str) -> dict[str, str] | None:
    """Return a job as flat text fields; None: it does not exist."""
    return _looked(store, job_id, lambda view: _fields(store, view))


def _fields(store: Store, view: JobView) -> dict[str, str]:
    flat = {name: value for name, value in summary(store, view).items() if value is not None}
    return {name: value if isinstance(value, str) else _flat(value) for name, value in flat.items()}


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{value.get('category')}: {value.get('message')}"
    return str(value)


def summary(store: Store, view: JobView) -> dict[str, Any]:
    """Summarise a job."""
    life = view.lifecycle
    prompt = read_prompt(store.folder(view))
    steps = shape(dict(prompt)).data
    listed = steps.get("steps") if isinstance(steps, dict) else None
    return {
        "job_id": view.job_id,
        "plan_id": prompt.get("plan_id"),
        "name": prompt.get("name"),
        "role": life.role,
        "status": str(view.status),
        "steps": len(listed) if isinstance(listed, list) else 0,
        "attempt": life.attempt,
        "created_at": life.created_at,
        "enqueued_at": life.enqueued_at,
        "updated_at": life.updated_at,
        "first_claimed_at": life.first_claimed_at,
        "finalized_at": life.finalized_at,
        "not_before": life.not_before,
        "agent": life.agent,
        "retry_of": life.retry_of,
        "error": life.error,
    }


def whole(store: Store, job_id: str) -> dict[str, Any] | None:
    """Return a job with its prompt and the result of its latest attempt."""
    return _looked(store, job_id, lambda view: _whole(store, view))


def _whole(store: Store, view: JobView) -> dict[str, Any]:
    folder, attempt = store.folder(view), view.lifecycle.attempt
    return {
        **summary(store, view),
        "prompt": read_prompt(folder),
        "result": (read_result(folder, attempt) or None) if attempt else None,
    }


def summaries(store: Store, views: Iterable[JobView]) -> list[dict[str, Any]]:
    found = []
    for view in views:
        with contextlib.suppress(FileNotFoundError):
            found.append(summary(store, view))
    return found


def queues(store: Store, roles: Collection[str]) -> dict[str, dict[str, int]]:
    """Count the jobs of each role by status."""
    return {role: {str(status): count for status, count in store.count(roles=[role]).items()} for role in roles}


def workers(store: Store, *, without: Collection[str]) -> list[dict[str, Any]]:
    """Return the store's own live workers, except those in `without`."""
    return [
        {
            "worker_id": agent.id,
            "role": agent.role,
            "alive": True,
            "jobs": list(agent.jobs),
            "tags": list(agent.identity.get("tags") or ()),
            "host": agent.identity.get("host"),
            "pid": agent.identity.get("pid"),
        }
        for agent in store.agents()
        if agent.alive and agent.role is not None and agent.id not in without
    ]
