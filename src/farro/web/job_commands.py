"""What changes jobs: enqueue, kill, requeue, retry, force-complete, route, a person's answers; one job, or many.

What each of them does lives in operations; looking lives in `looking`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from farro.agents import service as agents
from farro.config.fields import Lasting
from farro.documents import Document
from farro.documents.constraints import Length, Prose, Size
from farro.errors import FarroError, InputError
from farro.jobs.envelope import Lifecycle
from farro.jobs.start_times import parse_start
from farro.jobs.states import Status
from farro.jobs.times import parse_duration
from farro.lazy_dataclass import dataclass, field
from farro.plans.forms import is_agent_prompt
from farro.plans.priority import PRIORITIES
from farro.queue import find_job, jobs, prompts, retry, submit
from farro.queue import plan_check as plans
from farro.queue.admission import enqueue_admitted
from farro.queue.options import SubmitOptions
from farro.web import answers, errors
from farro.web.endpoints import Asked, Endpoint, get, post
from farro.web.errors import Wrong
from farro.web.state import House

MOST = 200  # jobs of one bulk action
MAX_DELAY_S = 3650 * 86_400
MAX_TIMEOUT_S = 365 * 86_400
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TASK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, kw_only=True)
class Noted:
    """Why; kept in the job's history."""

    note: Annotated[str, Length(4000)] | None = None


# --- one job -----------------------------------------------------------------------------------------------------


def _meant(house: House, asked: Asked) -> str:
    return house.meant(asked.path["job"], shortest=find_job.SHORTEST_TO_END)


def kill(house: House, asked: Asked) -> Any:
    return answers.life(jobs.kill(house.store, _meant(house, asked), by=house.person, note=asked.body.note))


def requeue(house: House, asked: Asked) -> Any:
    return answers.life(jobs.requeue(house.store, _meant(house, asked), by=house.person, note=asked.body.note))


def force_complete(house: House, asked: Asked) -> Any:
    return answers.life(jobs.force_complete(house.store, _meant(house, asked), by=house.person, note=asked.body.note))


@dataclass(frozen=True, kw_only=True)
class Again:
    from_step: str | None = None
    from_start: bool = False
    force: bool = False


def run_again(house: House, asked: Asked) -> Any:
    body: Again = asked.body
    if body.from_step is not None and body.from_start:
        raise InputError("from_step names a step, from_start means the first; give one of them")
    made = _retry(house, _meant(house, asked), body)
    return {"job_id": made.job_id, "retry_of": made.retry_of, "kept_steps": list(made.kept)}


def _retry(house: House, job_id: str, how: Again) -> retry.RetriedJob:
    return retry.retry(
        house.store,
        house.root,
        job_id,
        from_step=how.from_step,
        from_start=how.from_start,
        durable=house.settings.durability == "power",
        gate=house.gate(how.force),
    )


@dataclass(frozen=True, kw_only=True)
class Routed(Noted):
    role: str


def route(house: House, asked: Asked) -> Any:
    body: Routed = asked.body
    job_id = _meant(house, asked)
    return answers.life(agents.reroute(house.store, house.root, job_id, body.role, by=house.person, note=body.note))


# --- many ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Bulk(Noted):
    action: Literal["kill", "requeue", "force-complete", "retry"]
    jobs: Annotated[tuple[str, ...], Size(at_least=1, at_most=MOST)]


@dataclass(frozen=True, kw_only=True)
class Done:
    job_id: str
    ok: bool
    status: Status | None
    made: str | None
    error: answers.ErrorTold | None


@dataclass(frozen=True, kw_only=True)
class AllDone:
    results: tuple[Done, ...]


def bulk(house: House, asked: Asked) -> Any:
    """Each for itself: what one of them says does not keep the others from being done."""
    body: Bulk = asked.body
    return {"results": [_one(house, body, job_id) for job_id in dict.fromkeys(body.jobs)]}


def _one(house: House, body: Bulk, job_id: str) -> dict[str, Any]:
    verbs: dict[str, Callable[..., Lifecycle]] = {
        "kill": jobs.kill,
        "requeue": jobs.requeue,
        "force-complete": jobs.force_complete,
    }
    made, status = None, None
    try:
        if body.action == "retry":
            made = _retry(house, job_id, Again()).job_id
        else:
            status = verbs[body.action](house.store, job_id, by=house.person, note=body.note).status
    except FarroError as error:
        told = errors.told(error)
        return {"job_id": job_id, "ok": False, "status": None, "made": None, "error": told}
    if body.action == "kill" and status is not Status.KILLED:
        ended = Wrong(409, "already_ended", f"{job_id} is {status} already; nothing was changed")
        return {"job_id": job_id, "ok": False, "status": status, "made": None, "error": errors.told(ended)}
    return {"job_id": job_id, "ok": True, "status": status, "made": made, "error": None}


# --- new ones ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class New:
    """One of command, plan, plans and prompt, and how it shall run."""

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


def enqueue(house: House, asked: Asked) -> Any:
    body: New = asked.body
    document = asked.document
    assert document is not None
    given = [name for name in ("command", "plan", "plans", "prompt") if getattr(body, name) is not None]
    if len(given) != 1:
        raise InputError("name one of command, plan, plans and prompt: what shall run")
    options = _submit_options(house, body)
    if body.command is not None:
        _no_enclosures(body)
        if not body.command[0].strip():
            raise InputError("command: the first word is the program; it is empty")
        wanted = submit.command(house.store, body.command, role=body.role, job_id=body.id, options=options)
        return {"jobs": enqueue_admitted(house.store, wanted, house.gate(body.force))}
    if body.prompt is not None or (body.plan is not None and is_agent_prompt(body.plan)):
        return {"jobs": [_prompt(house, document.inside(given[0]), body, options)]}
    _no_enclosures(body)
    found = [document.inside("plan")] if body.plans is None else [_item(document, n) for n in range(len(body.plans))]
    made = submit.enqueue(
        house.store,
        found,
        role=body.role,
        job_id=body.id,
        source="body",
        options=options,
        gate=house.gate(body.force),
        contract=house.contract(),
    )
    return {"jobs": made}


def _item(document: Document, number: int) -> Document:
    return Document(document.data["plans"][number], f"plans[{number}]")


def _no_enclosures(body: New) -> None:
    for name in ("narrative", "task"):
        if getattr(body, name) is not None:
            raise InputError(f"{name} comes with a prompt")


def _prompt(house: House, document: Document, body: New, options: SubmitOptions) -> str:
    if body.task is not None and _TASK.fullmatch(body.task) is None:
        raise InputError("task: wants the id of a task in tasks/")
    return prompts.enqueue(
        house.store,
        document,
        role=body.role,
        job_id=body.id,
        options=options,
        gate=house.gate(body.force),
        contract=house.contract(),
        security=house.settings.security,
        root=house.root,
        attach=prompts.AttachmentOptions(task=body.task, narrative=body.narrative),
    )


def _submit_options(house: House, body: New) -> SubmitOptions:
    """As the command line reads them. A command that names no folder runs in the root."""
    where = body.cwd
    if where is None and body.command is not None:
        where = house.root
    if where is not None:
        where = os.path.abspath(os.path.join(house.root, _printable("cwd", where)))
        if not os.path.isdir(where):
            raise InputError(f"cwd: {where} is not a folder here")
    for name, value in body.env.items():
        if _VARIABLE.fullmatch(name) is None or "\0" in value:
            raise InputError(f"env: {name[:60]!r} is no name of a variable, or its value holds a NUL")
    return SubmitOptions(
        tags=body.tags,
        priority=body.priority,
        timeout_s=None if body.timeout is None else _duration("timeout", body.timeout, MAX_TIMEOUT_S),
        cwd=where,
        env=body.env,
        after=tuple(_known(house, "after", body.after)),
        after_any=tuple(_known(house, "after_any", body.after_any)),
        not_before=_start(house, body),
    )


def _printable(name: str, text: str) -> str:
    if "\0" in text:
        raise InputError(f"{name}: holds a NUL")
    return text


def _known(house: House, name: str, told: tuple[str, ...]) -> list[str]:
    try:
        return [house.meant(job) for job in told]
    except InputError as error:
        raise type(error)(f"{name}: {error}") from error


def _start(house: House, body: New) -> datetime | None:
    if body.delay is not None and body.at is not None:
        raise InputError("delay and at both say when it starts; keep one of them")
    now = house.clock.now()
    if body.delay is not None:
        return now + timedelta(seconds=_duration("delay", body.delay, MAX_DELAY_S))
    try:
        return None if body.at is None else parse_start(body.at, now, lambda moment: moment.astimezone())
    except ValueError as error:
        raise InputError(f"at: {error}") from error


def _duration(name: str, text: str, most_s: float) -> float:
    seconds = parse_duration(text)
    if not 0 < seconds <= most_s:
        raise InputError(f"{name}: {text} is not between an instant and {most_s / 86_400:g} days")
    return seconds


# --- checking a plan -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PlanBody:
    plan: Any


@dataclass(frozen=True, kw_only=True)
class PlanChecked:
    ok: bool
    steps: int | None
    longest_chain: int | None
    together: int | None
    parallel: int | None
    timeout_s: float | None
    tools: tuple[str, ...]
    problems: tuple[answers.Trouble, ...]
    warnings: tuple[answers.Trouble, ...]


def check(house: House, asked: Asked) -> Any:
    assert asked.document is not None
    told = plans.check(asked.document.inside("plan"), house.ground())
    nothing = dict.fromkeys(("steps", "longest_chain", "together", "parallel", "timeout_s"))
    return {
        "ok": told.measure is not None,
        **(asdict(told.measure) if told.measure is not None else {**nothing, "tools": ()}),
        "problems": [asdict(problem) for problem in told.problems],
        "warnings": [asdict(problem) for problem in told.warnings],
    }


# --- a person's word -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Waiting:
    job_id: str
    since: str
    question: str
    task: str | None
    title: str | None
    step: int | None
    role: str | None
    result: str
    folder: str


@dataclass(frozen=True, kw_only=True)
class Inbox:
    waiting: tuple[Waiting, ...]


def waiting(house: House, asked: Asked) -> Any:
    return {"waiting": [asdict(one) for one in agents.list_inbox(house.store, house.root)]}


@dataclass(frozen=True, kw_only=True)
class Reason:
    note: Annotated[str, Prose(4000)]


@dataclass(frozen=True, kw_only=True)
class Edited(Noted):
    text: str


def approve(house: House, asked: Asked) -> Any:
    told = agents.approve(house.store, house.root, _meant(house, asked), by=house.person, note=asked.body.note)
    return answers.life(told)


def refuse(house: House, asked: Asked) -> Any:
    told = agents.refuse(house.store, house.root, _meant(house, asked), by=house.person, note=asked.body.note)
    return answers.life(told)


def edit(house: House, asked: Asked) -> Any:
    body: Edited = asked.body
    told = agents.edit(house.store, house.root, _meant(house, asked), body.text, by=house.person, note=body.note)
    return answers.life(told)


ENDPOINTS: tuple[Endpoint, ...] = (
    post("/api/jobs", enqueue, "Queue a command, plans or an agent prompt.", answers.Queued, body=New, status=201),
    post("/api/jobs/actions", bulk, "Do the same with many jobs.", AllDone, body=Bulk),
    post("/api/jobs/{job}/kill", kill, "End a job for good.", answers.Life, body=Noted),
    post("/api/jobs/{job}/requeue", requeue, "Put a job back into its queue.", answers.Life, body=Noted),
    post("/api/jobs/{job}/force-complete", force_complete, "Declare a job succeeded.", answers.Life, body=Noted),
    post("/api/jobs/{job}/retry", run_again, "Run a finished job again.", answers.Retried, body=Again, status=201),
    post("/api/jobs/{job}/route", route, "Send a job to a role.", answers.Life, body=Routed),
    post("/api/plans/check", check, "Check a plan.", PlanChecked, body=PlanBody, harmless=True),
    get("/api/inbox", waiting, "What waits for a person.", Inbox, tag="inbox", keep_s=0.5),
    post("/api/inbox/{job}/approve", approve, "Let it go on.", answers.Life, body=Noted, tag="inbox"),
    post("/api/inbox/{job}/refuse", refuse, "Send it back, with the reason.", answers.Life, body=Reason, tag="inbox"),
    post("/api/inbox/{job}/edit", edit, "Let it go on with a text of yours.", answers.Life, body=Edited, tag="inbox"),
)
