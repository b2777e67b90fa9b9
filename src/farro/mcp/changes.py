"""Implement the tools that change something: queue, requeue, retry, kill, answer for a person.

`tools` checks permission before calling them; policies and caps apply as for every submitter.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from farro.agents import service as agents
from farro.documents import Document, parse_json
from farro.errors import InputError
from farro.jobs.request import Attachments, JobRequest
from farro.jobs.states import Status
from farro.mcp import arguments
from farro.mcp.context import ToolContext, ToolSet
from farro.plans.forms import is_agent_prompt
from farro.queue import find_job, jobs, library, retry
from farro.queue.submit import submit

Answer = dict[str, Any]
tool = ToolSet()
_LATER = "wait_for_jobs waits for its end, read_result tells what came of it"


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
