"""Answer queries about jobs: lists, one job with its files, plan and history, and why it does not run."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Annotated, Any, Literal

from starlette.responses import Response

from farro.agents.service import cost_of_job
from farro.documents.constraints import Bounds, Length, Size
from farro.errors import UnknownJob
from farro.execution import progress
from farro.execution.progress import read_prompt
from farro.host import fs
from farro.jobs.moves import waits_for_person
from farro.jobs.states import Status
from farro.jobs.times import timestamp
from farro.lazy_dataclass import dataclass
from farro.queue import explain as explaining
from farro.queue import history as histories
from farro.queue import jobs, plan_check
from farro.queue.catalog import rows as job_rows
from farro.queue.catalog.index import PageQuery
from farro.queue.catalog.rows import JobRow, spelled
from farro.sandbox import paths as physical
from farro.store.ledger import Spent
from farro.store.port import JobView
from farro.web import responses
from farro.web.errors import HttpError
from farro.web.request_handling import ApiRequest, ChunkedResponse, Routes, WebState

routes = Routes("jobs")

FILES = 2000  # in one response
FILE_BYTES = 64 << 20
_NARRATIVE = 1 << 20
_STATUSES = Literal["queued", "in_progress", "succeeded", "failed", "stale", "killed"]


@dataclass(frozen=True, kw_only=True)
class JobListQuery:
    role: tuple[str, ...] = ()
    status: tuple[_STATUSES, ...] = ()
    tag: Annotated[tuple[str, ...], Size(at_most=20)] = ()
    text: Annotated[str, Length(200)] | None = None  # a job matches if its row contains every word
    task: str | None = None
    person: bool = False
    limit: Annotated[int, Bounds(at_least=1, at_most=500)] = 50
    cursor: str | None = None
    order: Literal["newest", "oldest", "changed"] = "newest"


@routes.get("/api/jobs", "List jobs: filters, search, pages.", responses.JobListResponse, query=JobListQuery)
def list_jobs(state: WebState, request: ApiRequest) -> Any:
    query: JobListQuery = request.query
    require_loaded(state)
    known = state.store.roles()
    for role in query.role:
        if role not in known:
            raise HttpError(422, "unknown_role", f"no role {role[:60]!r} here; known: {', '.join(sorted(known))}")
    page = state.catalog.page(
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
    names = state.catalog.names()
    now = timestamp(state.clock.now())
    return {
        "jobs": [row_data(row, names.get(row.job_id)) for row in page.rows],
        "next": page.next,
        "total": page.total,
        "at": now,
    }


def require_loaded(state: WebState) -> None:
    """Refuse the request while the catalog is still loading."""
    if not state.catalog.ready:
        message = f"the jobs are still being counted ({len(state.catalog)} so far); ask again in a moment"
        raise HttpError(503, "loading", message)


def row_data(row: JobRow, name: str | None) -> dict[str, Any]:
    about, standing = row.summary or job_rows.NO_SUMMARY, row.standing
    created = job_rows.created_ms(row) if standing is None else standing.created_ms
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


def find_view(state: WebState, text: str) -> JobView:
    """Find a job by its id, its name or the beginning of its id."""
    job_id = state.resolve_job(text)
    view = state.store.find(job_id)
    if view is None:
        raise UnknownJob(f"no job {job_id} in {state.root}; `farro ls` lists what there is")
    return view


@routes.get("/api/jobs/{job}", "One job with everything that is known about it.", responses.JobResponse)
def show_job(state: WebState, request: ApiRequest) -> Any:
    job_id = state.resolve_job(request.path["job"])
    details = jobs.show(state.store, job_id, cost_of=lambda job_id: cost_of_job(state.ledger, job_id))
    view, life = details.view, details.view.lifecycle
    folder = state.store.folder(view)
    prompt = read_prompt(folder)
    about = job_rows.summarize(prompt)
    return {
        **responses.lifecycle_data(life),
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
        "files": [file for name in details.files[:FILES] if (file := _file_data(folder, name)) is not None],
        "files_more": max(0, len(details.files) - FILES),
    }


def spent_data(spent: Spent) -> dict[str, Any]:
    """Encode costs. `usd` is null, not 0, where no call has a known cost."""
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


def _file_data(folder: str, name: str) -> dict[str, Any] | None:
    try:
        return {"path": name, "bytes": fs.lstat(f"{folder}/{name}").st_size}
    except OSError:
        return None


# --- files -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FileQuery:
    download: bool = False


@routes.get(
    "/api/jobs/{job}/files/{path:path}",
    "A file of a job, as text or to be saved.",
    query=FileQuery,
    media_type="application/octet-stream",
)
def read_file(state: WebState, request: ApiRequest) -> Response:
    """Return a file of a job as plain text or as a download, never as a page, image or script of this origin."""
    name = request.path["path"]
    view = find_view(state, request.path["job"])
    folder = state.store.folder(view)
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in name:
        raise HttpError(404, "not_found", "no such file in this job")
    try:
        fd = physical.open_file(folder, name)
    except OSError:
        raise HttpError(404, "not_found", "no such file in this job") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise HttpError(404, "not_found", "no such file in this job")
        if status.st_size > FILE_BYTES:
            raise HttpError(413, "too_large", f"the file has more than {FILE_BYTES} bytes; read it where it lies")
        data = fs.read_at(fd, status.st_size, 0)  # no more than the checked size: a step may be writing to the file
    finally:
        os.close(fd)
    text = not request.query.download and b"\0" not in data[:8192] and _is_text(data)
    disposition = "inline" if text else "attachment"
    return ChunkedResponse(
        data,
        media_type="text/plain; charset=utf-8" if text else "application/octet-stream",
        headers={
            "Content-Disposition": f'{disposition}; filename="{safe_file_name(parts[-1])}"',
            "Content-Security-Policy": "sandbox",
        },
    )


def safe_file_name(name: str) -> str:
    """Replace the characters that a Content-Disposition header would have to escape."""
    return "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in name)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- history and plan ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class HistoryResponse(responses.LifecycleResponse):
    place: str
    damaged: str | None
    attempts: tuple[histories.AttemptRecord, ...]
    audit: tuple[dict[str, Any], ...]
    audit_whole: bool


@dataclass(frozen=True, kw_only=True)
class PlanStepData:
    id: str
    level: int
    tool: str
    command: str
    args: tuple[str, ...]
    needs: tuple[str, ...]
    input_from_step: str | None
    state: Literal["waiting", "running", "succeeded", "failed", "skipped"] | None


@dataclass(frozen=True, kw_only=True)
class PlanGraphResponse:
    name: str | None
    plan_id: str | None
    steps: tuple[PlanStepData, ...]
    added: int


@routes.get("/api/jobs/{job}/history", "The whole life of a job.", HistoryResponse)
def show_history(state: WebState, request: ApiRequest) -> Any:
    job_history = histories.history(state.store, state.resolve_job(request.path["job"]))
    return {
        **responses.lifecycle_data(job_history.view.lifecycle),
        "place": job_history.view.place,
        "damaged": job_history.view.damaged,
        "attempts": job_history.attempts,
        "audit": list(job_history.audit.lines),
        "audit_whole": job_history.audit.whole,
    }


@routes.get("/api/jobs/{job}/explain", "Why a job is not running, and what helps.", responses.ExplainResponse)
def explain_job(state: WebState, request: ApiRequest) -> Any:
    job_id = state.resolve_job(request.path["job"])
    facts, finding = explaining.explain(state.store, job_id, now=state.clock.now())
    return {
        "job_id": job_id,
        "status": facts.status,
        "reason": finding.reason,
        "message": finding.message,
        "fix": finding.fix,
    }


@routes.get("/api/jobs/{job}/plan", "The graph of a job's plan, with the state of each step.", PlanGraphResponse)
def show_plan(state: WebState, request: ApiRequest) -> Any:
    return plan_check.graph(plan_check.of_job(state.store, find_view(state, request.path["job"])))


@routes.get("/api/jobs/{job}/plan.svg", "The same as a picture.", media_type="image/svg+xml")
def draw_plan(state: WebState, request: ApiRequest) -> Response:
    from farro.plans.drawing import svg

    drawn = plan_check.of_job(state.store, find_view(state, request.path["job"]))
    own = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
    return Response(svg.draw(drawn.plan, drawn.states), media_type="image/svg+xml", headers=own)
