"""Looking at the Redis store: indexes and their sizes, single jobs, the common audit log. Nothing here changes a job.

How a job is read from its hash lives in records.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from farro.errors import InputError
from farro.jobs import ids, transitions
from farro.jobs.states import Status
from farro.jobs.times import timestamp
from farro.plans import after
from farro.store.port import JobView
from farro.store.redis.context import CHUNK, Ground
from farro.store.redis.records import Seen, material, moment, pairs, record

_PAGE = 1000


def find(ground: Ground, job_id: str) -> JobView | None:
    (seen,) = ground.look([ids.check_job_id(job_id)], prompts=True)
    return None if seen is None else seen.view()


def folder(ground: Ground, view: JobView) -> str:
    """A copy on this machine, made anew when the job has changed, or is looked at as it was at another time."""
    keys = ground.keys
    prompt, version, stored = ground.server.calls(
        [
            ("HGET", keys.job(view.job_id), "prompt"),
            ("HGET", keys.job(view.job_id), "v"),
            ("HGETALL", keys.files(view.job_id)),
        ]
    )
    if prompt is None:
        raise InputError(f"{view.job_id} is gone: it was removed while it was looked at")
    whole = material(view.lifecycle, prompt, pairs(stored))
    return ground.workspace.look(view.job_id, f"{version.decode()} {whole.lifecycle.decode()}", whole)


def prompts(ground: Ground, job_ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for start in range(0, len(job_ids), CHUNK):
        some = job_ids[start : start + CHUNK]
        texts = ground.server.calls([("HGET", ground.keys.job(ids.check_job_id(job_id)), "prompt") for job_id in some])
        found.update({job_id: record(text) for job_id, text in zip(some, texts, strict=True) if text is not None})
    return found


# --- lists ---


def listing(
    ground: Ground, roles: Collection[str] | None, statuses: Collection[Status] | None, limit: int | None
) -> list[JobView]:
    """By id. Only the indexes of what is asked for are read, page by page, as far as `limit` needs."""
    found: list[JobView] = []
    if limit is not None and limit <= 0:
        return found
    walk = _ids(ground, roles, statuses)
    while some := list(islice(walk, CHUNK if limit is None else min(CHUNK, max(limit - len(found), 20)))):
        for seen in ground.look(some, prompts=True):
            view = None if seen is None else seen.view()
            if view is None or (statuses is not None and view.status not in statuses):
                continue
            if roles is None or view.lifecycle.role in roles:
                found.append(view)
        if limit is not None and len(found) >= limit:
            break
    return found[:limit]


def _ids(ground: Ground, roles: Collection[str] | None, statuses: Collection[Status] | None) -> Iterator[str]:
    """In their order, each once."""
    wanted = set(Status if statuses is None else statuses)
    if Status.STALE in wanted:
        wanted.add(Status.IN_PROGRESS)  # some are marked in their agents' hands
    names = [role for role in ground.roles if roles is None or role in roles]
    walks = [_walk(ground, ground.keys.index(role, status)) for role in names for status in wanted]
    last = ""
    for job_id in heapq.merge(*walks):
        if job_id != last:  # it moved from one index to another while we walked
            yield job_id
        last = job_id


def _walk(ground: Ground, key: str) -> Iterator[str]:
    start = "-"
    while True:
        page = [job.decode() for job in ground.server.call("ZRANGEBYLEX", key, start, "+", "LIMIT", 0, _PAGE)]
        yield from page
        if len(page) < _PAGE:
            return
        start = f"({page[-1]}"


def stale(ground: Ground) -> list[str]:
    return sorted(job.decode() for job in ground.server.call("SMEMBERS", ground.keys.stale))


def open_failures(ground: Ground) -> list[str]:
    return sorted(job.decode() for job in ground.server.call("SMEMBERS", ground.keys.open))


def named(ground: Ground, name: str) -> str | None:
    found = ground.server.call("HGET", ground.keys.names, ids.check_job_name(name))
    return None if found is None else found.decode()


def names(ground: Ground) -> Mapping[str, str]:
    found = pairs(ground.server.call("HGETALL", ground.keys.names))
    return {name.decode(): job.decode() for name, job in sorted(found.items())}


# --- counts ---


def count(ground: Ground, roles: Collection[str] | None) -> dict[Status, int]:
    """By place: a job that was marked stale under its agent is in progress until it is collected."""
    names = [role for role in ground.roles if roles is None or role in roles]
    pairs_ = [(role, status) for role in names for status in Status]
    sizes = ground.server.calls([("ZCARD", ground.keys.index(role, status)) for role, status in pairs_])
    answer = dict.fromkeys(Status, 0)
    for (_, status), size in zip(pairs_, sizes, strict=True):
        answer[status] += size
    return answer


def load(ground: Ground, role: str | None) -> int:
    names = ground.roles if role is None else (ground.check_role(role),)
    open_ = (Status.QUEUED, Status.IN_PROGRESS)
    return sum(ground.server.calls([("ZCARD", ground.keys.index(name, status)) for name in names for status in open_]))


def pending(ground: Ground, role: str) -> int:
    """What is counted, without those that wait for somebody's hand. No others are looked at."""
    keys = ground.keys
    queued, running, waiting, marked = ground.server.calls(
        [
            ("ZCARD", keys.index(ground.check_role(role), Status.QUEUED)),
            ("ZCARD", keys.index(role, Status.IN_PROGRESS)),
            ("SMEMBERS", keys.waits(role)),
            ("SMEMBERS", keys.marked),
        ]
    )
    stuck = 0
    if marked:
        seen = ground.look([job.decode() for job in marked])
        stuck += sum(1 for job in seen if job is not None and job.wh == "marked" and job.role == role)
    known: dict[str, Seen | None] = {}
    stuck += sum(1 for job in waiting if _stuck(ground, job.decode(), known))
    return int(queued) + int(running) - stuck


def _stuck(ground: Ground, job_id: str, known: dict[str, Seen | None]) -> bool:
    """Whether what it waits for, directly or not, needs somebody's hand before it can go on."""
    todo, met = [job_id], {job_id}
    while todo:
        new = [each for each in todo if each not in known]
        known.update(zip(new, ground.look(new, prompts=True), strict=True))
        next_: list[str] = []
        for each in todo:
            job = known[each]
            if job is None:
                continue
            if job.wh in ("stale", "marked", "open"):
                return True
            if job.wh == "waits":
                if not job.readable or transitions.waits_for_person(job.lifecycle):
                    return True
                next_ += [name for name in after.dependencies(job.prompt).all if name not in met]
                met.update(next_)
        todo = next_
    return False


# --- the common audit log ---


def audit_lines(ground: Ground, since_ms: int, job_id: str | None = None) -> Iterator[dict[str, Any]]:
    """Lines of the common audit log, oldest first, as the file has them: `ts`, `event`, `actor` and codes. Those of one
    job only with `job_id`. How far back it goes is a setting (redis.keep_audit)."""
    start = f"{max(since_ms, 0)}"
    while True:
        page = ground.server.call("XRANGE", ground.keys.log, start, "+", "COUNT", _PAGE)
        for entry, (_, text, *_) in page:
            told = json.loads(text)
            if job_id is None or told.get("job_id") == job_id:
                yield {"ts": timestamp(moment(int(entry.split(b"-")[0]))), **told}
        if len(page) < _PAGE:
            return
        start = f"({page[-1][0].decode()}"
