"""Read the Redis store: indexes and their sizes, single jobs, the common audit log. Nothing here changes a job."""

from __future__ import annotations

import heapq
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from farro.errors import InputError
from farro.jobs import ids, moves, places
from farro.jobs.states import Status
from farro.jobs.times import timestamp
from farro.plans import after
from farro.store.port import JobEntry, JobView
from farro.store.redis.context import CHUNK, RedisContext
from farro.store.redis.records import JobRecord, from_ms, json_object, material_of, pairs

_PAGE = 1000


def find(context: RedisContext, job_id: str) -> JobView | None:
    (record,) = context.read_jobs([ids.check_job_id(job_id)], prompts=True)
    return None if record is None else record.view()


def folder(context: RedisContext, view: JobView) -> str:
    """Return a local copy of the job's folder; it is made again when the job has changed."""
    keys = context.keys
    prompt, version, stored = context.client.calls(
        [
            ("HGET", keys.job(view.job_id), "prompt"),
            ("HGET", keys.job(view.job_id), "v"),
            ("HGETALL", keys.files(view.job_id)),
        ]
    )
    if prompt is None:
        raise InputError(f"{view.job_id} is gone: it was removed while it was looked at")
    whole = material_of(view.lifecycle, prompt, pairs(stored))
    return context.workspace.look(view.job_id, f"{version.decode()} {whole.lifecycle.decode()}", whole)


def prompts(context: RedisContext, job_ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for start in range(0, len(job_ids), CHUNK):
        some = job_ids[start : start + CHUNK]
        texts = context.client.calls(
            [("HGET", context.keys.job(ids.check_job_id(job_id)), "prompt") for job_id in some]
        )
        found.update({job_id: json_object(text) for job_id, text in zip(some, texts, strict=True) if text is not None})
    return found


# --- lists ---


def listing(
    context: RedisContext, roles: Collection[str] | None, statuses: Collection[Status] | None, limit: int | None
) -> list[JobView]:
    """List jobs by id. Only the indexes that are needed are read, page by page, as far as `limit` needs."""
    found: list[JobView] = []
    if limit is not None and limit <= 0:
        return found
    walk = _ids(context, roles, statuses)
    while some := list(islice(walk, CHUNK if limit is None else min(CHUNK, max(limit - len(found), 20)))):
        for record in context.read_jobs(some, prompts=True):
            view = None if record is None else record.view()
            if view is None or (statuses is not None and view.status not in statuses):
                continue
            if roles is None or view.lifecycle.role in roles:
                found.append(view)
        if limit is not None and len(found) >= limit:
            break
    return found[:limit]


def _ids(context: RedisContext, roles: Collection[str] | None, statuses: Collection[Status] | None) -> Iterator[str]:
    """Yield ids in order, each once."""
    wanted = set(Status if statuses is None else statuses)
    if Status.STALE in wanted:
        wanted.add(Status.IN_PROGRESS)  # some stale jobs are still in progress in the index
    names = [role for role in context.roles if roles is None or role in roles]
    walks = [_walk(context, context.keys.index(role, status)) for role in names for status in wanted]
    last = ""
    for job_id in heapq.merge(*walks):
        if job_id != last:  # it moved to another index during the walk
            yield job_id
        last = job_id


def _walk(context: RedisContext, key: str) -> Iterator[str]:
    start = "-"
    while True:
        page = [job.decode() for job in context.client.call("ZRANGEBYLEX", key, start, "+", "LIMIT", 0, _PAGE)]
        yield from page
        if len(page) < _PAGE:
            return
        start = f"({page[-1]}"


def waiting(context: RedisContext) -> list[JobEntry]:
    """Return the jobs that wait outside their queue. Only the `waits` sets of the roles are read."""
    sets = context.client.calls([("SMEMBERS", context.keys.waits(role)) for role in context.roles])
    found = sorted(job.decode() for members in sets for job in members)
    records = context.read_jobs(found, prompts=True) if found else []
    views = [record.view() for record in records if record is not None]
    return [
        JobEntry(job_id=view.job_id, place=view.place, role=None, status=view.status, view=view)
        for view in views
        if view.place == places.WAITING
    ]


def stale(context: RedisContext) -> list[str]:
    return sorted(job.decode() for job in context.client.call("SMEMBERS", context.keys.stale))


def open_failures(context: RedisContext) -> list[str]:
    return sorted(job.decode() for job in context.client.call("SMEMBERS", context.keys.open))


def named(context: RedisContext, name: str) -> str | None:
    found = context.client.call("HGET", context.keys.names, ids.check_job_name(name))
    return None if found is None else found.decode()


def names(context: RedisContext) -> Mapping[str, str]:
    found = pairs(context.client.call("HGETALL", context.keys.names))
    return {name.decode(): job.decode() for name, job in sorted(found.items())}


# --- counts ---


def count(context: RedisContext, roles: Collection[str] | None) -> dict[Status, int]:
    """Count jobs by place: a job marked stale counts as in progress until a watchdog collects it."""
    names = [role for role in context.roles if roles is None or role in roles]
    pairs_ = [(role, status) for role in names for status in Status]
    sizes = context.client.calls([("ZCARD", context.keys.index(role, status)) for role, status in pairs_])
    answer = dict.fromkeys(Status, 0)
    for (_, status), size in zip(pairs_, sizes, strict=True):
        answer[status] += size
    return answer


def load(context: RedisContext, role: str | None) -> int:
    names = context.roles if role is None else (context.check_role(role),)
    open_ = (Status.QUEUED, Status.IN_PROGRESS)
    return sum(
        context.client.calls([("ZCARD", context.keys.index(name, status)) for name in names for status in open_])
    )


def pending(context: RedisContext, role: str) -> int:
    """Return how many jobs can still run without a person's action. Only waiting and marked jobs are read."""
    keys = context.keys
    queued, running, waiting, marked = context.client.calls(
        [
            ("ZCARD", keys.index(context.check_role(role), Status.QUEUED)),
            ("ZCARD", keys.index(role, Status.IN_PROGRESS)),
            ("SMEMBERS", keys.waits(role)),
            ("SMEMBERS", keys.marked),
        ]
    )
    stuck = 0
    if marked:
        record = context.read_jobs([job.decode() for job in marked])
        stuck += sum(1 for job in record if job is not None and job.place == "marked" and job.role == role)
    known: dict[str, JobRecord | None] = {}
    stuck += sum(1 for job in waiting if _stuck(context, job.decode(), known))
    return int(queued) + int(running) - stuck


def _stuck(context: RedisContext, job_id: str, known: dict[str, JobRecord | None]) -> bool:
    """Return whether a job that it depends on, directly or not, needs a person's action first."""
    todo, met = [job_id], {job_id}
    while todo:
        new = [each for each in todo if each not in known]
        known.update(zip(new, context.read_jobs(new, prompts=True), strict=True))
        next_: list[str] = []
        for each in todo:
            job = known[each]
            if job is None:
                continue
            if job.place in ("stale", "marked", "open"):
                return True
            if job.place == "waits":
                if not job.readable or moves.waits_for_person(job.lifecycle):
                    return True
                next_ += [name for name in after.dependencies(job.prompt).all if name not in met]
                met.update(next_)
        todo = next_
    return False


# --- the common audit log ---


def audit_lines(context: RedisContext, since_ms: int, job_id: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield lines of the common audit log, oldest first, as the file has them: `ts`, `event`, `actor` and codes; with
    `job_id` only that job's. redis.keep_audit sets how far back the log goes."""
    start = f"{max(since_ms, 0)}"
    while True:
        page = context.client.call("XRANGE", context.keys.log, start, "+", "COUNT", _PAGE)
        for entry, (_, text, *_) in page:
            event = json.loads(text)
            if job_id is None or event.get("job_id") == job_id:
                yield {"ts": timestamp(from_ms(int(entry.split(b"-")[0]))), **event}
        if len(page) < _PAGE:
            return
        start = f"({page[-1][0].decode()}"
