"""Change jobs for operators, the manager and people: read the job, decide, compare and swap.

If the job changed in between, read it again: no decision is applied to a job that its author has not record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farro import documents
from farro.errors import TryAgain, UnknownSchema
from farro.jobs import audit_fields, ids, moves
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Report
from farro.store.operator_verbs import Choose, JobToDecide
from farro.store.port import Agent
from farro.store.redis.client import Arg
from farro.store.redis.context import RedisContext, agent_lost
from farro.store.redis.records import JobRecord, attempt_fields, audit_line, due_ms, file_args, place_of
from farro.store.workspace import PostedFiles

_TRIES = 100  # each lost try means that another process changed the job

Decided = tuple[Lifecycle, list[str]]  # with the jobs that waited for it


def decide_and_swap(
    context: RedisContext, agent: Agent, job_id: str, choose: Choose, *, text: str | None = None
) -> Decided | None:
    """Read, decide, compare and swap; try again if the job changed in between. None: the job does not exist, or
    `choose` returned None. `text`: a person's answer, stored as the result of an attempt of its own."""
    ids.check_job_id(job_id)
    for _ in range(_TRIES):
        (record,) = context.read_jobs([job_id], agent=agent)
        if record is None:
            return None
        before = record.lifecycle
        move = choose(JobToDecide(before, record.attempts, held=record.place in ("held", "marked")))
        if move is None:
            return None
        if move.role != before.role:  # one that is gone can be kept, not taken
            context.check_role(move.role)
        attempt, kept = record.attempts, PostedFiles()
        if text is not None:
            attempt += 1
            kept = text_result(Report(result={"success": True, "edited_by": agent.id}, markdown=text))
        after = moves.decided(before, move, by=agent.id, attempt=attempt, now=context.now())
        done = compare_and_swap(context, agent, record, after, attempt, kept)
        if done is not None:
            return after, done
    raise TryAgain(f"{job_id} is changed by others again and again; try again in a moment")


def compare_and_swap(
    context: RedisContext,
    agent: Agent | None,
    record: JobRecord,
    after: Lifecycle,
    attempt: int,
    kept: PostedFiles | None = None,
    *,
    event: Mapping[str, Any] | None = None,
) -> list[str] | None:
    """Replace the job as read by `after` in one step; return the jobs that waited for it. None: the job has changed
    since. `event`: the audit line, if this is not a transition. Without an agent no lease is checked: the comparison is
    fence enough."""
    args: list[Arg] = [
        context.script_time(),
        "" if agent is None else agent.id,
        record.job_id,
        record.version,
        context.token(),
        after.to_line(),
        place_of(after),
        after.role,
        due_ms(after),
        audit_line(event or audit_fields.codes(after)),
        attempt,
        *file_args({} if kept is None else attempt_fields(attempt, kept)),
    ]
    reply: Sequence[Any] = context.client.run(context.scripts.decide, *args)
    if reply[0] == b"lost":
        assert agent is not None
        raise agent_lost(agent)
    if reply[0] != b"ok":
        return None
    if event is None:
        context.audit_transition(after)
    return [job_id.decode() for job_id in reply[1]]


def quarantine(context: RedisContext, by: str, job_id: str, why: Exception) -> None:
    """Set aside a job whose lifecycle cannot be read: it is shown as failed and damaged, and its data is kept. A job of
    another schema version is only logged."""
    if isinstance(why, UnknownSchema):
        context.log_foreign(job_id)
        return
    context.log("critical", "a job that cannot be read was put aside", {"job_id": job_id, "why": str(why)})
    (record,) = context.read_jobs([job_id])
    if record is not None and record.place in ("held", "marked"):
        event = audit_line({"event": "quarantined", "actor": by, "job_id": job_id, "role": record.role})
        args: list[Arg] = [
            context.script_time(),
            "",
            job_id,
            record.version,
            context.token(),
            record.life,
            "failed",
            record.role,
        ]
        context.client.run(context.scripts.decide, *args, 0, event, record.attempts, 0)


def text_result(report: Report) -> PostedFiles:
    """Build a result that was not produced in a folder."""
    body = documents.canonical(report.result) + b"\n"
    return PostedFiles(files={"result.json": body, "result.md": report.markdown.encode("utf-8", "backslashreplace")})


def remove(context: RedisContext, agent: Agent, job_id: str) -> bool:
    """Remove a finished job. False: it is not final, or already gone. A crash leaves it whole or gone."""
    answer = context.client.run(context.scripts.remove, context.script_time(), agent.id, ids.check_job_id(job_id))
    if answer == b"lost":
        raise agent_lost(agent)
    if answer == b"ok":
        context.workspace.forget(job_id)
    return bool(answer == b"ok")
