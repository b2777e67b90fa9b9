"""Jobs as one looks at them: lists, one job, its files, its plan, its history, why it does not run.

What changes them lives in `acting`; what they said, in `output`, and as it comes, in `streams`. What is read is read
by operations.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import asdict
from typing import Annotated, Any, Literal

from farro.agents.service import cost_of_job
from farro.documents.constraints import Bounds, Length, Size
from farro.errors import UnknownJob
from farro.execution import progress
from farro.execution.progress import read_prompt
from farro.host import fs
from farro.jobs.states import Status
from farro.jobs.times import timestamp
from farro.jobs.transitions import waits_for_person
from farro.lazy_dataclass import dataclass
from farro.queue import explain as explaining
from farro.queue import history as histories
from farro.queue import jobs, plan_check
from farro.queue.catalog import rows as making
from farro.queue.catalog.index import PageQuery
from farro.queue.catalog.rows import JobRow, spelled
from farro.sandbox import paths as physical
from farro.store.budgets import Spent
from farro.store.port import JobView
from farro.web import answers
from farro.web.endpoints import Asked, Bytes, Endpoint, get
from farro.web.errors import Wrong
from farro.web.state import House

FILES = 2000  # names in one answer
FILE_BYTES = 64 << 20
_NARRATIVE = 1 << 20
_STATUSES = Literal["queued", "in_progress", "succeeded", "failed", "stale", "killed"]


@dataclass(frozen=True, kw_only=True)
class ListQuery:
    role: tuple[str, ...] = ()
    status: tuple[_STATUSES, ...] = ()
    tag: Annotated[tuple[str, ...], Size(at_most=20)] = ()
    text: Annotated[str, Length(200)] | None = None  # each word is looked for in every row
    task: str | None = None
    person: bool = False
    limit: Annotated[int, Bounds(at_least=1, at_most=500)] = 50
    cursor: str | None = None
    order: Literal["newest", "oldest", "changed"] = "newest"


def listed(house: House, asked: Asked) -> Any:
    query: ListQuery = asked.query
    loaded(house)
    known = house.store.roles()
    for role in query.role:
        if role not in known:
            raise Wrong(422, "unknown_role", f"no role {role[:60]!r} here; there is {', '.join(sorted(known))}")
    page = house.catalog.page(
        PageQuery(
            roles=query.role,
            statuses=tuple(Status(status) for status in query.status),
            tags=query.tag,
            words=tuple(dict.fromkeys((query.text or "").casefold().split())),
            task=query.task,
            person=query.person,
            order=query.order,
            limit=query.limit,
            cursor=query.cursor,
        )
    )
    names = house.catalog.names()
    now = timestamp(house.clock.now())
    return {
        "jobs": [row_data(row, names.get(row.job_id)) for row in page.rows],
        "next": page.next,
        "total": page.total,
        "at": now,
    }


def loaded(house: House) -> None:
    if not house.catalog.ready:
        message = f"the jobs are still being counted ({len(house.catalog)} so far); ask again in a moment"
        raise Wrong(503, "loading", message)


def row_data(row: JobRow, name: str | None) -> dict[str, Any]:
    about, standing = row.summary or making.NO_SUMMARY, row.standing
    created = making.created_ms(row) if standing is None else standing.created_ms
    return {
        "job_id": row.job_id,
        "role": row.role,
        "status": row.status,
        "attempt": 0 if standing is None else standing.attempt,
        "created_at": spelled(created),
        "enqueued_at": None if standing is None else spelled(standing.enqueued_ms),
        "updated_at": spelled(row.changed_ms if standing is None else standing.updated_ms),
        "first_claimed_at": None if standing is None else spelled(standing.first_claimed_ms),
        "finalized_at": None if standing is None else spelled(standing.finalized_ms),
        "not_before": None if standing is None else spelled(standing.not_before_ms),
        "agent": None if standing is None else standing.agent,
        "retry_of": None if standing is None else standing.retry_of,
        "error": None if standing is None else standing.error,
        "place": row.place,
        "title": about.title,
        "name": name,
        "plan_id": about.plan_id,
        "task": about.task,
        "tags": about.tags,
        "priority": about.priority,
        "steps": about.steps,
        "waits_for": () if standing is None else standing.waits_for,
        "person": standing is not None and standing.person,
        "terminal": row.status in (Status.SUCCEEDED, Status.KILLED) if standing is None else standing.terminal,
    }


def found(house: House, text: str) -> JobView:
    """The job that is meant, by its id, its name or the beginning of its id."""
    job_id = house.meant(text)
    view = house.store.find(job_id)
    if view is None:
        raise UnknownJob(f"no job {job_id} in {house.root}; `farro ls` lists what there is")
    return view


def shown(house: House, asked: Asked) -> Any:
    job_id = house.meant(asked.path["job"])
    details = jobs.show(house.store, house.root, job_id, cost_of=lambda job_id: cost_of_job(house.ledger, job_id))
    view, life = details.view, details.view.lifecycle
    folder = house.store.folder(view)
    prompt = read_prompt(folder)
    about = making.summarize(prompt)
    return {
        **answers.life(life),
        "place": view.place,
        "damaged": view.damaged,
        "waits_for": view.waits_for,
        "message": details.message,
        "orphaned": details.orphaned,
        "name": details.name,
        "cost": None if details.cost is None else spent_data(details.cost),
        "prompt": prompt,
        "narrative": _narrative(folder),
        "result": (progress.read_result(folder, life.attempt) or None) if life.attempt else None,
        "task": about.task,
        "title": about.title,
        "tags": about.tags,
        "priority": about.priority,
        "terminal": life.terminal,
        "person": life.status is Status.QUEUED and waits_for_person(life),
        "files": [file for name in details.files[:FILES] if (file := _file(folder, name)) is not None],
        "files_more": max(0, len(details.files) - FILES),
    }


def spent_data(spent: Spent) -> dict[str, Any]:
    """`usd` is null where no cost is known: never nothing."""
    unknown = spent.calls > 0 and spent.unknown == spent.calls
    return {
        "calls": spent.calls,
        "usd": None if unknown else round(float(spent.usd), 12),
        "estimated_calls": spent.estimated,
        "estimated_usd": round(float(spent.estimated_usd), 12),
        "unknown_calls": spent.unknown,
    }


def _narrative(folder: str) -> str | None:
    with contextlib.suppress(OSError):
        return fs.read_bytes(f"{folder}/prompt.md", _NARRATIVE)[:_NARRATIVE].decode("utf-8", "replace")
    return None


def _file(folder: str, name: str) -> dict[str, Any] | None:
    try:
        return {"path": name, "bytes": fs.lstat(f"{folder}/{name}").st_size}
    except OSError:
        return None


# --- files -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FileQuery:
    download: bool = False


def file(house: House, asked: Asked) -> Bytes:
    """As text, or as something to be saved: never as a page, an image or a script of this origin."""
    name = asked.path["path"]
    view = found(house, asked.path["job"])
    folder = house.store.folder(view)
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in name:
        raise Wrong(404, "not_found", "no such file in this job")
    try:
        fd = physical.open_file(folder, name)
    except OSError:
        raise Wrong(404, "not_found", "no such file in this job") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise Wrong(404, "not_found", "no such file in this job")
        if status.st_size > FILE_BYTES:
            raise Wrong(413, "too_large", f"the file has more than {FILE_BYTES} bytes; read it where it lies")
        data = fs.read_at(fd, status.st_size, 0)  # no more than was judged: a step may be writing it
    finally:
        os.close(fd)
    text = not asked.query.download and b"\0" not in data[:8192] and _is_text(data)
    plain = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in parts[-1])
    kept = "inline" if text else "attachment"
    return Bytes(
        data=data,
        kind="text/plain; charset=utf-8" if text else "application/octet-stream",
        headers={"Content-Disposition": f'{kept}; filename="{plain}"', "Content-Security-Policy": "sandbox"},
    )


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- its way, its plan -------------------------------------------------------------------------------------------


def history(house: House, asked: Asked) -> Any:
    told = histories.history(house.store, house.root, house.meant(asked.path["job"]))
    return {
        **answers.life(told.view.lifecycle),
        "place": told.view.place,
        "damaged": told.view.damaged,
        "attempts": [asdict(attempt) for attempt in told.attempts],
        "audit": list(told.audit.lines),
        "audit_whole": told.audit.whole,
    }


def explain(house: House, asked: Asked) -> Any:
    job_id = house.meant(asked.path["job"])
    facts, finding = explaining.explain(house.store, house.root, job_id, now=house.clock.now())
    return {
        "job_id": job_id,
        "status": facts.status,
        "reason": finding.reason,
        "message": finding.message,
        "fix": finding.fix,
    }


def plan(house: House, asked: Asked) -> Any:
    return plan_check.graph(plan_check.of_job(house.store, found(house, asked.path["job"])))


def drawing(house: House, asked: Asked) -> Bytes:
    from farro.plans.drawing import svg

    drawn = plan_check.of_job(house.store, found(house, asked.path["job"]))
    own = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
    return Bytes(data=svg.draw(drawn.plan, drawn.states).encode(), kind="image/svg+xml", headers=own)


@dataclass(frozen=True, kw_only=True)
class StepTold:
    id: str
    exit_code: int | None
    duration_s: float | None
    tries: int
    error: str | None
    earlier: bool


@dataclass(frozen=True, kw_only=True)
class AttemptTold:
    number: int
    agent: str | None
    started_at: str | None
    ended_at: str | None
    duration_s: float | None
    outcome: str | None
    steps: tuple[StepTold, ...]
    steps_total: int | None
    output: bool


@dataclass(frozen=True, kw_only=True)
class HistoryTold(answers.Life):
    place: str
    damaged: str | None
    attempts: tuple[AttemptTold, ...]
    audit: tuple[dict[str, Any], ...]
    audit_whole: bool


@dataclass(frozen=True, kw_only=True)
class PlanStep:
    id: str
    level: int
    tool: str
    command: str
    args: tuple[str, ...]
    needs: tuple[str, ...]
    input_from_step: str | None
    state: Literal["waiting", "running", "succeeded", "failed", "skipped"] | None


@dataclass(frozen=True, kw_only=True)
class PlanTold:
    name: str | None
    plan_id: str | None
    steps: tuple[PlanStep, ...]
    added: int


ENDPOINTS: tuple[Endpoint, ...] = (
    get("/api/jobs", listed, "List jobs: filters, search, pages.", answers.Rows, query=ListQuery),
    get("/api/jobs/{job}", shown, "One job with all that is known of it.", answers.Whole),
    get(
        "/api/jobs/{job}/files/{path:path}",
        file,
        "A file of a job, as text or to be saved.",
        query=FileQuery,
        kind="application/octet-stream",
    ),
    get("/api/jobs/{job}/history", history, "The whole life of a job.", HistoryTold),
    get("/api/jobs/{job}/explain", explain, "Why a job is not running, and what helps.", answers.Explained),
    get("/api/jobs/{job}/plan", plan, "The graph of a job's plan, with how far each step is.", PlanTold),
    get("/api/jobs/{job}/plan.svg", drawing, "The same as a picture.", kind="image/svg+xml"),
)
