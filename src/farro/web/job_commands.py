"""Change jobs: enqueue, kill, requeue, retry, force-complete and route them, answer the inbox, reset names, prune."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from farro.agents import service as agents
from farro.air import service as air
from farro.config.settings import Lasting
from farro.documents import Document
from farro.documents.constraints import Bounds, Length, Prose, Size
from farro.errors import FarroError, InputError
from farro.jobs.envelope import Lifecycle
from farro.jobs.request import Attachments, JobRequest
from farro.jobs.states import Status
from farro.jobs.times import parse_duration
from farro.lazy_dataclass import dataclass, field, replace
from farro.plans.metadata import PRIORITIES
from farro.queue import find_job, jobs, prune, retry
from farro.queue.accounts import accounts_for_person
from farro.queue.submit import one_id_for_several, submit
from farro.web import errors, responses
from farro.web.accounts import AccountData
from farro.web.errors import HttpError
from farro.web.request_handling import ApiRequest, Routes, WebState

routes = Routes("jobs")

MAX_BULK_JOBS = 200  # in one bulk action

_VERBS: dict[str, Callable[..., Lifecycle]] = {
    "kill": jobs.kill,
    "requeue": jobs.requeue,
    "force-complete": jobs.force_complete,
}


@dataclass(frozen=True, kw_only=True)
class NoteBody:
    """The reason, which the job's history records."""

    note: Annotated[str, Length(4000)] | None = None


# --- many jobs -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BulkBody(NoteBody):
    action: Literal["kill", "requeue", "force-complete", "retry"]
    jobs: Annotated[tuple[str, ...], Size(at_least=1, at_most=MAX_BULK_JOBS)]


@dataclass(frozen=True, kw_only=True)
class BulkResultData:
    job_id: str
    ok: bool
    status: Status | None
    made: str | None
    error: responses.ErrorData | None


@dataclass(frozen=True, kw_only=True)
class BulkResponse:
    results: tuple[BulkResultData, ...]


@routes.post("/api/jobs/actions", "Apply an action to many jobs.", BulkResponse, body=BulkBody)
def run_bulk(state: WebState, request: ApiRequest) -> Any:
    """Apply the action to each job; an error of one job does not stop the others."""
    body: BulkBody = request.body
    return {"results": [_run_one(state, body, job_id) for job_id in dict.fromkeys(body.jobs)]}


def _run_one(state: WebState, body: BulkBody, job_id: str) -> dict[str, Any]:
    made, status = None, None
    try:
        if body.action == "retry":
            made = _retry(state, job_id, RetryBody()).job_id
        else:
            status = _VERBS[body.action](state.store, job_id, by=state.person, note=body.note).status
    except FarroError as error:
        return {"job_id": job_id, "ok": False, "status": None, "made": None, "error": errors.error_data(error)}
    if body.action == "kill" and status is not Status.KILLED:
        ended = HttpError(409, "already_ended", f"{job_id} is {status} already; nothing was changed")
        return {"job_id": job_id, "ok": False, "status": status, "made": None, "error": errors.error_data(ended)}
    return {"job_id": job_id, "ok": True, "status": status, "made": made, "error": None}


# --- one job ---------------------------------------------------------------------------------------------------------


def _job_id(state: WebState, request: ApiRequest) -> str:
    return state.resolve_job(request.path["job"], shortest=find_job.SHORTEST_TO_END)


def _change_job(verb: Callable[..., Lifecycle], state: WebState, request: ApiRequest) -> Any:
    lifecycle = verb(state.store, _job_id(state, request), by=state.person, note=request.body.note)
    return responses.lifecycle_data(lifecycle)


for _action, _summary in (
    ("kill", "End a job for good."),
    ("requeue", "Put a job back into its queue."),
    ("force-complete", "Declare a job succeeded."),
):
    _post = routes.post(f"/api/jobs/{{job}}/{_action}", _summary, responses.LifecycleResponse, body=NoteBody)
    _post(partial(_change_job, _VERBS[_action]))


@dataclass(frozen=True, kw_only=True)
class RetryBody:
    from_step: str | None = None
    from_start: bool = False
    force: bool = False


@routes.post("/api/jobs/{job}/retry", "Run a finished job again.", responses.RetryResponse, body=RetryBody, status=201)
def retry_job(state: WebState, request: ApiRequest) -> Any:
    body: RetryBody = request.body
    if body.from_step is not None and body.from_start:
        raise InputError("from_step names a step, from_start means the first; give one of them")
    made = _retry(state, _job_id(state, request), body)
    return {"job_id": made.job_id, "retry_of": made.retry_of, "kept_steps": list(made.kept)}


def _retry(state: WebState, job_id: str, how: RetryBody) -> retry.RetriedJob:
    return retry.retry(
        state.store,
        job_id,
        from_step=how.from_step,
        from_start=how.from_start,
        durable=state.settings.durability == "power",
        gate=state.gate(how.force),
    )


@dataclass(frozen=True, kw_only=True)
class RouteBody(NoteBody):
    role: str


@routes.post("/api/jobs/{job}/route", "Send a job to a role.", responses.LifecycleResponse, body=RouteBody)
def route(state: WebState, request: ApiRequest) -> Any:
    body: RouteBody = request.body
    job_id = _job_id(state, request)
    return responses.lifecycle_data(agents.reroute(state.store, job_id, body.role, by=state.person, note=body.note))


# --- new jobs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class EnqueueBody:
    """Exactly one of command, plan, plans and prompt, with its options."""

    command: Annotated[tuple[str, ...], Size(at_least=1, at_most=1000)] | None = None
    plan: Any = None
    plans: Annotated[tuple[Any, ...], Size(at_least=1, at_most=1000)] | None = None
    prompt: dict[str, Any] | None = None
    id: str | None = None
    role: str | None = None
    tags: tuple[str, ...] = ()
    priority: Literal["P0", "P1", "P2", "P3"] | None = None
    timeout: Lasting | None = None
    cwd: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    delay: Lasting | None = None
    at: str | None = None
    after: tuple[str, ...] = ()
    after_any: tuple[str, ...] = ()
    force: bool = False
    narrative: str | None = None
    task: str | None = None


assert PRIORITIES == ("P0", "P1", "P2", "P3")


@routes.post(
    "/api/jobs", "Queue a command, plans or an agent prompt.", responses.EnqueueResponse, body=EnqueueBody, status=201
)
def enqueue(state: WebState, request: ApiRequest) -> Any:
    body: EnqueueBody = request.body
    document = request.document
    assert document is not None
    given = [name for name in ("command", "plan", "plans", "prompt") if getattr(body, name) is not None]
    if len(given) != 1:
        raise InputError("name one of command, plan, plans and prompt: what to run")
    asked = JobRequest(
        command=body.command or (),
        agent=body.prompt is not None,
        id=body.id,
        role=body.role,
        tags=body.tags,
        priority=body.priority,
        timeout=body.timeout,
        folder=state.root,
        cwd=body.cwd,
        env=body.env,
        delay=body.delay,
        at=body.at,
        after=body.after,
        after_any=body.after_any,
        attachments=Attachments(narrative=body.narrative, task=body.task),
        force=body.force,
    )
    if body.plans is not None:
        plans = [Document(plan, f"plans[{number}]") for number, plan in enumerate(document.data["plans"])]
        requests = [replace(asked, document=plan) for plan in plans]
        if asked.id is not None and len(requests) > 1:
            raise one_id_for_several(str)
    else:
        requests = [asked if body.command is not None else replace(asked, document=document.inside(given[0]))]
    return {"jobs": [job.id for job in submit(state.store, requests, state.policy)]}


# --- the inbox: agent jobs that wait for a person --------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class InboxResponse:
    waiting: tuple[agents.InboxItem, ...]
    accounts: tuple[AccountData, ...]


@routes.get("/api/inbox", "The jobs and accounts that wait for a person.", InboxResponse, cache_s=0.5, tag="inbox")
def list_inbox(state: WebState, request: ApiRequest) -> Any:
    accounts = accounts_for_person(state.store, state.clock.now())
    return {"waiting": agents.list_inbox(state.store), "accounts": [one.to_json() for one in accounts]}


@dataclass(frozen=True, kw_only=True)
class RefuseBody:
    note: Annotated[str, Prose(4000)]


@dataclass(frozen=True, kw_only=True)
class EditBody(NoteBody):
    text: str


def _answer(verb: Callable[..., Lifecycle], state: WebState, request: ApiRequest) -> Any:
    text = (request.body.text,) if isinstance(request.body, EditBody) else ()
    job_id = _job_id(state, request)
    lifecycle = verb(state.store, job_id, *text, by=state.person, note=request.body.note)
    return responses.lifecycle_data(lifecycle)


for _word, _verb, _summary, _body in (
    ("approve", agents.approve, "Approve a result, so that the job continues.", NoteBody),
    ("refuse", agents.refuse, "Refuse a result, with the reason.", RefuseBody),
    ("edit", agents.edit, "Replace a result by your text, and continue.", EditBody),
):
    _post = routes.post(f"/api/inbox/{{job}}/{_word}", _summary, responses.LifecycleResponse, body=_body, tag="inbox")
    _post(partial(_answer, _verb))


# --- names and pruning -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NamedJobResponse:
    name: str
    job_id: str


@dataclass(frozen=True, kw_only=True)
class NamesResponse:
    names: tuple[NamedJobResponse, ...]


@routes.get("/api/names", "The jobs that have a name.", NamesResponse, cache_s=0.5, tag="names")
def list_names(state: WebState, request: ApiRequest) -> Any:
    return {"names": [{"name": name, "job_id": job_id} for name, job_id in state.store.names().items()]}


@routes.get("/api/names/{name}", "The job with that name.", NamedJobResponse, tag="names")
def show_name(state: WebState, request: ApiRequest) -> Any:
    name = request.path["name"]
    return {"name": name, "job_id": air.named_job_id(state.store, name)}


@dataclass(frozen=True, kw_only=True)
class ResetBody:
    force: bool = False  # kill it first if it is running


@routes.post("/api/names/{name}/reset", "Reset a named job to its start.", air.ResetResult, body=ResetBody, tag="names")
def reset_name(state: WebState, request: ApiRequest) -> Any:
    force: bool = request.body.force
    return air.reset_named_job(state.store, request.path["name"], by=state.person, force=force, policy=state.policy)


@dataclass(frozen=True, kw_only=True)
class PruneBody:
    """At least one of `older_than` and `keep`, so that an empty request removes nothing."""

    older_than: Lasting | None = None
    keep: Annotated[int, Bounds(at_least=0)] | None = None  # keep this many of the newest that match
    status: tuple[Literal["succeeded", "failed", "killed"], ...] = ()
    role: tuple[str, ...] = ()
    limit: Annotated[int, Bounds(at_least=1, at_most=1000)] = 1000
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class PruneResponse:
    """The removed jobs, oldest first (with `dry_run`: those to remove), and how many more match beyond the limit."""

    jobs: tuple[str, ...]
    left: int
    dry_run: bool


@routes.post("/api/prune", "Remove finished jobs for good.", PruneResponse, body=PruneBody)
def prune_jobs(state: WebState, request: ApiRequest) -> Any:
    body: PruneBody = request.body
    if body.older_than is None and body.keep is None:
        raise InputError("say what to remove: older_than, such as 7d, or keep, or both")
    statuses = [Status.parse(one) for one in body.status] or [Status.SUCCEEDED, Status.FAILED, Status.KILLED]
    age_s = None if body.older_than is None else parse_duration(body.older_than)
    filter_ = prune.PruneFilter(ages_s=dict.fromkeys(statuses, age_s), keep=body.keep, roles=body.role)
    found = prune.candidates(state.store, filter_, now=state.clock.now())
    chosen = found[: body.limit]
    if not body.dry_run:
        prune.check(state.store.remove(chosen, by=state.person))
    return {
        "jobs": [job.job_id for job in chosen],
        "left": len(found) - len(chosen),
        "dry_run": body.dry_run,
    }
