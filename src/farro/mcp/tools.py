"""Implement the tools: one function per tool, from its arguments to a document.

The server checks permission before it calls one that changes something; policies and caps apply as for every submitter.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from farro.agents import service as agents
from farro.air.service import job_status
from farro.doctor import report
from farro.documents import Document, parse_json
from farro.errors import BadDocument, Damaged, InputError, JobFailed
from farro.execution.size_limit import SNAPSHOT
from farro.host import fs
from farro.jobs.request import Attachments, JobRequest
from farro.jobs.states import Status
from farro.lazy_dataclass import replace
from farro.mcp import arguments
from farro.mcp.context import ToolContext, ToolSet, cut, inside, quoted, view_data
from farro.plans.forms import is_agent_prompt
from farro.queue import accounts, find_job, history, jobs, library, logs, results, retry, wait
from farro.queue import alerts as alerting
from farro.queue import explain as explaining
from farro.queue import queues as working
from farro.queue import stats as statistics
from farro.queue.jobs import JobQuery
from farro.queue.submit import prepare, submit
from farro.swarm import service as swarms

_FILES = 200  # file names of a job in one answer
_ATTEMPTS = 20
_OF_STEP = ("exit_code", "success", "duration_s", "timed_out", "error")
_WAITING = 50
_COUNTED = ("queued", "delayed", "waiting", "in_progress", "stale", "succeeded", "failed", "killed")
_PLANS = 200
_STARTED = 100
_INNER_BYTES = bytes(range(0x80, 0xC0))  # the longest character in UTF-8
SLICE_S = 1.0  # how often a waiting thread checks whether its call was cancelled

_LATER = "wait_for_jobs waits for its end, read_result tells what came of it"

Answer = dict[str, Any]
tool = ToolSet()


@tool("List jobs", "Jobs, the newest first, by role, status or tag; and how many there are of each status.")
def list_jobs(context: ToolContext, args: arguments.JobsAsked) -> Answer:
    wanted = JobQuery(
        roles=args.roles,
        statuses={Status.parse(name) for name in args.statuses},
        tags=args.tags,
        last=args.limit,
    )
    found = jobs.ls(context.store, wanted)
    told: Answer = {
        "jobs": [view_data(view) for view in found],
        "counts": {str(name): count for name, count in context.store.count(roles=args.roles or None).items()},
    }
    if len(found) == args.limit:
        told["more"] = f"there may be more: raise limit (up to {arguments.MOST_JOBS}), or name roles, statuses or tags"
    return told


@tool(
    "Show a job",
    "One job: status, attempts, how it came there, its steps with their states, its files, and its message "
    "(result.md or error.md).",
)
def show_job(context: ToolContext, args: arguments.Shown) -> Answer:
    job_id = context.job(args.job)
    details = jobs.show(context.store, job_id, cost_of=lambda job: agents.cost_of_job(context.ledger, job))
    line = job_status(context.store, job_id, name=details.name, now=context.clock.now())
    files = [name for name in details.files if f"/{SNAPSHOT}/" not in name]
    told: Answer = {
        **details.view.lifecycle.to_data(),
        "place": details.view.place,
        "name": details.name,
        "damaged": details.view.damaged,
        "waits_for": list(details.view.waits_for),
        "orphaned": details.orphaned,
        "steps": [{key: value for key, value in asdict(task).items() if value} for task in line.tasks[:_FILES]],
        "files": files[:_FILES],
        "cost_usd": None if details.cost is None else float(details.cost.usd),
    }
    if len(files) > _FILES:
        told["files_more"] = f"{len(files) - _FILES} more files lie in {details.view.place}/{job_id}"
    if details.message is not None:
        name = "error.md" if "error.md" in details.files else "result.md"
        more = f'read_file(job="{job_id}", name="{name}") has all of it'
        told["message"] = quoted(details.message.encode(), args.max_bytes, more=more)
    return told


@tool(
    "Wait for jobs",
    "Wait until jobs have ended (succeeded, failed for good, or killed); tells each, and which still run when the "
    "time is over. Better than asking again and again.",
)
def wait_for_jobs(context: ToolContext, args: arguments.WaitAsked) -> Answer:
    raise AssertionError("the server calls wait_slice repeatedly, so that a wait can be cancelled")


def wait_slice(context: ToolContext, job_ids: tuple[str, ...], timeout_s: float) -> list[wait.EndedJob]:
    """Wait for at most one slice and return the jobs that ended. A cancelled wait ends between two slices."""
    within_s = min(SLICE_S, timeout_s)
    return list(wait.ends(context.store, job_ids, clock=context.clock, timeout_s=within_s))


def ended_data(end: wait.EndedJob) -> Answer:
    life = end.lifecycle
    if life is None:
        return {"job_id": end.job_id, "status": None, "error": "it is gone: somebody removed it"}
    told: Answer = {"job_id": end.job_id, "status": str(life.status), "attempt": life.attempt}
    told["finalized_at"] = life.finalized_at
    if life.error is not None:
        told["error"] = {name: cut(str(value), 1000) for name, value in life.error.items()}
    return told


@tool(
    "Read a result",
    "What came of a job: its value (the last step's stdout, a function's value, or an agent's answer), each step's "
    "exit code and output; of a failure its category, message and last words.",
)
def read_result(context: ToolContext, args: arguments.ResultAsked) -> Answer:
    job_id = context.job(args.job)
    told = results.answer(context.store, job_id)
    life = told.view.lifecycle
    answer: Answer = {"job_id": job_id, "status": str(life.status), "attempt": life.attempt, "ended": life.terminal}
    if not life.terminal:
        answer["note"] = "it has not ended; wait_for_jobs waits for it, explain_job says why it does not run"
    elif life.status is not Status.SUCCEEDED:
        answer["error"] = _failure(results.failure(told))
    else:
        with contextlib.suppress(Damaged, JobFailed):
            value = results.value(told)
            more = f'read_log(job="{job_id}") has all of it'
            if isinstance(value, str):
                answer["value"] = quoted(value.encode("utf-8", "replace"), args.max_bytes, more=more)
            else:
                answer["value"] = value
    steps = told.result.get("step_results")
    if isinstance(steps, list) and not is_agent_prompt(told.prompt):
        answer["steps"] = [_step(job_id, item, args.max_bytes) for item in steps if isinstance(item, dict)]
    return answer


def _failure(error: JobFailed) -> Answer:
    found = {
        "category": error.category,
        "message": cut(error.message, 2000),
        "type": error.error_type,
        "step": error.step,
        "last_words": cut(error.last_words, 4000),
    }
    return {name: value for name, value in found.items() if value}


def _step(job_id: str, item: Mapping[str, Any], limit: int) -> Answer:
    name = str(item.get("id") or item.get("step_number"))
    told: Answer = {key: item[key] for key in _OF_STEP if key in item}
    for stream in logs.STREAMS:
        said = str(item.get(stream) or "").encode("utf-8", "replace")
        if not said:
            continue
        more = f'read_log(job="{job_id}", step="{name}", stream="{stream}") has its end, read_file all of it'
        told[stream] = quoted(said, limit, more=more)
        if item.get(f"{stream}_truncated"):
            told[stream].update(truncated=True, more=more)
    return {"id": name, **told}


@tool("Read logs", "What a job's steps said on stdout and stderr, the last lines of it; also while it runs.")
def read_log(context: ToolContext, args: arguments.LogAsked) -> Answer:
    job_id = context.job(args.job)
    streams = logs.STREAMS if args.stream is None else (args.stream,)
    chosen = logs.LogQuery(step=args.step, streams=streams, attempt=args.attempt)
    told = logs.output(context.store, job_id, chosen)
    if args.step is not None:
        logs.check_step(context.store, told, args.step)
    shown = []
    for source, offset in logs.last_lines(told.sources, args.tail):
        size = os.path.getsize(source.path)
        begin = max(offset, size - args.max_bytes)
        data = b"".join(logs.read(source.path, begin, size))
        if not data:
            continue
        if begin > offset:
            data = data.lstrip(_INNER_BYTES)  # the limit split a character
        one: Answer = {"step": source.step, "stream": source.stream, **quoted(data, args.max_bytes)}
        if begin > 0:
            name = source.path[source.path.index("/attempts/") + 1 :]
            more = f'this is its end; read_file(job="{job_id}", name="{name}", offset=0) begins at its start'
            one.update(truncated=True, bytes=size, more=more)
        shown.append(one)
    answer: Answer = {"job_id": job_id, "status": str(told.view.status), "attempt": told.attempt, "output": shown}
    if told.attempt is None:
        answer["note"] = "it has not run yet; explain_job says why"
    elif (agent := logs.away(context.store, told.view)) is not None:
        answer["note"] = f"it runs on another machine ({agent}); what its steps say is seen here when the attempt ends"
    return answer


@tool("Read a job's file", "A piece of one of a job's files (show_job lists them): prompt.json, result.json, a patch.")
def read_file(context: ToolContext, args: arguments.FileAsked) -> Answer:
    job_id = context.job(args.job)
    details = jobs.show(context.store, job_id)
    if args.name not in details.files:
        there = ", ".join(details.files[:20]) + (" …" if len(details.files) > 20 else "")
        raise InputError(f"{job_id} has no file {cut(args.name, 200)!a}; known: {there or 'none'}")
    folder = context.store.folder(details.view)
    try:
        fd = fs.open_read(f"{folder}/{args.name}")
    except OSError as error:
        raise InputError(f"{args.name} of {job_id} cannot be read: {error.strerror or error}; try again") from error
    try:
        if not inside(fd, folder):
            raise InputError(f"{args.name} of {job_id} leads out of the job's folder; it is not read")
        size, data = os.fstat(fd).st_size, fs.read_at(fd, args.max_bytes, args.offset)
    finally:
        os.close(fd)
    told: Answer = {"job_id": job_id, "name": args.name, "bytes": size, "offset": args.offset}
    told.update(quoted(data, args.max_bytes))
    if args.offset + len(data) < size:
        told.update(truncated=True, more=f"go on with offset={args.offset + len(data)}")
    return told


@tool("Explain a job", "Why a job does not run, or what it does just now, and what helps.")
def explain_job(context: ToolContext, args: arguments.OneJob) -> Answer:
    job_id = context.job(args.job)
    facts, found = explaining.explain(context.store, job_id, now=context.clock.now())
    told = {"job_id": job_id, "status": str(facts.status), "reason": found.reason, "message": found.message}
    return {**told, "fix": found.fix}


@tool("A job's history", "The whole life of a job: each attempt with agent, times and steps, each hop with its reason.")
def job_history(context: ToolContext, args: arguments.OneJob) -> Answer:
    job_id = context.job(args.job)
    told = history.history(context.store, job_id)
    hops = told.view.lifecycle.to_data().get("hops") or []
    answer: Answer = {
        "job_id": job_id,
        "status": str(told.view.status),
        "attempts": [asdict(attempt) for attempt in told.attempts[-_ATTEMPTS:]],
        "hops": hops[-100:],
    }
    if len(told.attempts) > _ATTEMPTS:
        answer["more"] = f"the last {_ATTEMPTS} of {len(told.attempts)} attempts"
    return answer


@tool("Statistics", "How each role does: depth of its queue, jobs that ended in the window, latency, failure rate.")
def stats(context: ToolContext, args: arguments.StatsAsked) -> Answer:
    found = statistics.stats(context.store, now=context.clock.now(), window_s=args.window_s, roles=args.roles)
    busy = [line for line in (line.to_data() for line in found) if any(line[name] for name in _COUNTED)]
    return {"roles": busy, "idle": [line.role for line in found if line.role not in {each["role"] for each in busy}]}


@tool(
    "Alerts",
    "What somebody must be woken for: requeue storms, queues near their caps, refused accounts, an unwritable log.",
)
def alerts(context: ToolContext, args: arguments.NoArguments) -> Answer:
    told = alerting.alerts(context.store, context.settings, now=context.clock.now())
    quiet = [f"{one.name} {one.role}" if one.role else one.name for one in told.alerts if not one.firing]
    return {"firing": [asdict(alert) for alert in told.alerts if alert.firing], "quiet": quiet}


@tool("List workers", "Who works here: each slot with its role, machine, tags, tools and the job in its hands.")
def list_workers(context: ToolContext, args: arguments.WorkersAsked) -> Answer:
    found = working.listed(context.store.agents(), everyone=args.everyone)
    return {"workers": [asdict(line) for line in found]}


@tool(
    "What waits for a person",
    "Jobs that wait for a person, with the question and what the last role found; and accounts of providers that "
    "only a person can put in order.",
)
def inbox(context: ToolContext, args: arguments.NoArguments) -> Answer:
    found = agents.list_inbox(context.store)
    shown = [
        {
            "job_id": one.job_id,
            "since": one.since,
            "question": cut(one.question, 4000),
            "task": one.task,
            "title": one.title,
            "role": one.role,
            "result": cut(one.result, 4000),
        }
        for one in found[:_WAITING]
    ]
    more = {"more": f"{len(found) - _WAITING} more wait"} if len(found) > _WAITING else {}
    paused = accounts.accounts_for_person(context.store, context.clock.now())
    return {"waiting": shown, "accounts": [one.to_json() for one in paused], **more}


@tool("List kept plans", "The plans that are kept and can be queued by their id (enqueue_plan).")
def list_plans(context: ToolContext, args: arguments.NoArguments) -> Answer:
    found = library.plans(context.library)
    more = {"more": f"{len(found) - _PLANS} more are kept: `farro plan list` in a shell"} if len(found) > _PLANS else {}
    return {"plans": [asdict(line) for line in found[:_PLANS]], **more}


@tool("Show a kept plan", "One kept plan with all its steps.")
def show_plan(context: ToolContext, args: arguments.PlanNamed) -> Answer:
    return {"plan": dict(library.plan(context.library, args.plan_id))}


@tool("Check a plan", "All that is wrong with a plan, each with its place; nothing is queued.")
def check_plan(context: ToolContext, args: arguments.PlanArguments) -> Answer:
    document = Document(args.plan, "plan")
    try:
        wanted = prepare(context.store, [JobRequest(document=document)], context.policy)
    except BadDocument as bad:
        return {"good": False, "problems": [problem.render("plan") for problem in bad.problems]}
    return {"good": True, "role": wanted[0].role}


@tool("List swarms", "Swarms with their state, health, components, queues and last errors.")
def list_swarms(context: ToolContext, args: arguments.NoArguments) -> Answer:
    found = swarms.swarms(swarms.folder(context.root), clock=context.clock)
    return {"swarms": [asdict(view) for view in found]}


@tool("Check the root", "Check the root and its machine: what is wrong, why, and the command that repairs it.")
def doctor(context: ToolContext, args: arguments.NoArguments) -> Answer:
    told = report.examine(context.checks(), root=context.root, strict=False)
    return {
        "root": context.root,
        "passed": told.passed,
        "ok": told.count("ok"),
        "troubles": [result.to_json() for result in told.troubles()],
    }


# --- tools that change something ---


@tool(
    "Queue a command",
    "Queue a command as a job; a worker runs it. Answers the job's id at once. With an `id` of yours, asking again "
    "is safe.",
    needs="write",
)
def enqueue_command(context: ToolContext, args: arguments.CommandWanted) -> Answer:
    asked = _request(args, timeout=args.timeout_s, folder=context.folder, cwd=args.cwd, env=args.env)
    return _queued(context, replace(asked, command=args.command))


@tool(
    "Queue a plan",
    "Queue a plan of several steps as one job: they run in order, or by their `needs`. Answers its id.",
    needs="write",
)
def enqueue_plan(context: ToolContext, args: arguments.PlanWanted) -> Answer:
    if (args.plan is None) == (args.plan_id is None):
        raise InputError("give `plan`, or `plan_id` of a kept one (list_plans); one of them")
    if args.plan_id is not None:
        document = library.plan_document(context.library, args.plan_id)
    else:
        document = _document(args.plan, "plan")
        if is_agent_prompt(document.data):
            raise InputError("plan: this is an agent prompt; enqueue_agent_task queues one")
    return _queued(context, replace(_request(args), document=document))


@tool(
    "Queue work for an agent",
    "Queue work for an agent of a role (a provider answers it), with what to do, when it is done, and what it may "
    "write. It costs money where the provider does.",
    needs="write",
)
def enqueue_agent_task(context: ToolContext, args: arguments.AgentWanted) -> Answer:
    routing = {"mode": "manager"} if args.next_role is None else {"mode": "role", "next": args.next_role}
    prompt: dict[str, Any] = {
        "role": args.role,
        "rubric": args.rubric,
        "success": args.success,
        "allowed_paths": list(args.allowed_paths),
        "routing": routing,
    }
    if args.inputs:
        prompt["inputs"] = args.inputs
    asked = _request(args, document=_document(prompt, "task"), agent=True, attachments=Attachments(task=args.task))
    return _queued(context, asked)


@tool(
    "Run a job again",
    "A finished job again, as a new job that starts where the old one failed. Answers the new id.",
    needs="write",
)
def retry_job(context: ToolContext, args: arguments.RetryWanted) -> Answer:
    if args.from_step is not None and args.from_start:
        raise InputError("from_step names a step, from_start means the first; give one of them")
    made = retry.retry(
        context.store,
        context.job(args.job),
        from_step=args.from_step,
        from_start=args.from_start,
        durable=context.settings.durability == "power",
        gate=context.policy.gate,
    )
    return {**asdict(made), "next": _LATER}


@tool("Requeue a job", "Put a stale job, or a failed one that is not final, back into its queue.", needs="write")
def requeue_job(context: ToolContext, args: arguments.JobSteered) -> Answer:
    return jobs.requeue(context.store, context.job(args.job), by=context.by, note=args.note).to_data()


@tool(
    "Kill a job",
    "End a job for good, with its processes. What it was doing is lost.",
    needs="write",
    destructive=True,
    idempotent=True,
)
def kill_job(context: ToolContext, args: arguments.JobSteered) -> Answer:
    job_id = context.job(args.job, shortest=find_job.SHORTEST_TO_END)
    life = jobs.kill(context.store, job_id, by=context.by, note=args.note)
    told = life.to_data()
    if life.status is not Status.KILLED:
        told["note"] = f"it was {life.status} already; nothing was changed"
    return told


@tool(
    "Resume an account",
    "Call a paused account of a provider again, and start the jobs that wait for it. Of a refused one, a person "
    "must have corrected the key or the credit first: else the next call is refused, too.",
    needs="write",
    idempotent=True,
)
def resume_account(context: ToolContext, args: arguments.AccountNamed) -> Answer:
    account = accounts.named_account(context.store, context.settings, args.account)
    done = accounts.resume(context.store, account, by=context.by, clock=context.clock)
    told: Answer = {"account": account, "was_paused": done.was_paused, "jobs": done.jobs[:_STARTED]}
    if len(done.jobs) > _STARTED:
        told["more"] = f"{len(done.jobs) - _STARTED} more jobs start"
    return told


@tool(
    "Approve, for a person",
    "Let a job that waits for a person go on. Only where a person said so: it answers in their name.",
    needs="approve",
)
def approve_job(context: ToolContext, args: arguments.JobSteered) -> Answer:
    return agents.approve(context.store, context.job(args.job), by=context.by, note=args.note).to_data()


@tool(
    "Refuse, for a person",
    "Send a job that waits for a person back, with the reason. Only where a person has said so.",
    needs="approve",
)
def refuse_job(context: ToolContext, args: arguments.Refusal) -> Answer:
    return agents.refuse(context.store, context.job(args.job), by=context.by, note=args.note).to_data()


def _request(args: arguments.QueueArguments, **more: Any) -> JobRequest:
    return JobRequest(
        id=args.id,
        role=args.role,
        tags=args.tags,
        priority=args.priority,
        delay=args.delay_s,
        after=args.after,
        after_any=args.after_any,
        **more,
    )


def _queued(context: ToolContext, request: JobRequest) -> Answer:
    (job,) = submit(context.store, [request], context.policy)
    return {"job_id": job.id, "next": _LATER}


def _document(data: Any, source: str) -> Document:
    """Check data against the limits of documents: size, depth, number of values. Problems have no line numbers."""
    parse_json(json.dumps(data).encode(), source=source)
    return Document(data, source)
