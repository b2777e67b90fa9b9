"""What operators, the manager and a person say about a job: look, decide by kernel.moves, compare and swap.

Whoever changed the job in between makes this look again: nobody decides about what he has not seen. Working on a job
lives in claim and commit, a dead agent's jobs in recover.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from farro import documents
from farro.errors import IllegalTransition, TryAgain, UnknownJob, UnknownSchema
from farro.jobs import audit_fields, ids, states, transitions
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import ErrorInfo, Report
from farro.jobs.states import Reason, Status
from farro.jobs.transitions import Move
from farro.store.port import Agent, PersonAnswer
from farro.store.redis.context import Ground, agent_lost
from farro.store.redis.records import Seen, due_ms, files, line, posted, where
from farro.store.redis.server import Arg
from farro.store.workspace import PostedFiles

_TRIES = 100  # each lost one is a change that somebody else made

Decided = tuple[Lifecycle, list[str]]  # and the jobs that waited for it
Decide = Callable[[Seen, Lifecycle], Move | None]


def requeue(ground: Ground, agent: Agent, job_id: str, note: str | None, delay_s: float | None) -> Decided:
    move = Move(reason=Reason.REQUEUED, status=Status.QUEUED, role="", delay_s=delay_s, note=note)
    return _must(ground, agent, job_id, move)


def kill(ground: Ground, agent: Agent, job_id: str, note: str | None, reason: Reason) -> Decided:
    error = ErrorInfo(category="killed", message=note or "killed by an operator")
    move = Move(reason=reason, status=Status.KILLED, role="", error=error, note=note)
    try:
        return _must(ground, agent, job_id, move)
    except IllegalTransition:
        (seen,) = ground.look([job_id])
        if seen is None or not seen.lifecycle.terminal:
            raise
        return seen.lifecycle, []


def force_complete(ground: Ground, agent: Agent, job_id: str, note: str | None) -> Decided:
    move = Move(reason=Reason.FORCE_COMPLETED, status=Status.SUCCEEDED, role="", note=note)
    return _must(ground, agent, job_id, move)


def resolve_stale(ground: Ground, agent: Agent, job_id: str) -> Decided | None:
    def decide(seen: Seen, now: Lifecycle) -> Move | None:
        if seen.wh != "stale":
            return None
        return transitions.resolve_stale(now, ground.policy.retry, ground.uniform, highest=seen.attempts)

    return swap(ground, agent, job_id, decide)


def reroute(
    ground: Ground, agent: Agent, job_id: str, role: str, note: str | None, route: Mapping[str, Any] | None
) -> Decided:
    ground.check_role(role)

    def decide(seen: Seen, now: Lifecycle) -> Move:
        states.check(job_id, now.status, Status.QUEUED, Reason.REROUTED, finalized=now.finalized_at is not None)
        if seen.wh == "waits" and not transitions.waits_for_person(now):
            raise IllegalTransition(f"{job_id} runs after other jobs, and they have not ended; nothing was changed")
        return Move(reason=Reason.REROUTED, status=Status.QUEUED, role=role, note=note, route=route)

    return _found(job_id, swap(ground, agent, job_id, decide))


def finalize(
    ground: Ground, agent: Agent, job_id: str, note: str | None, route: Mapping[str, Any] | None
) -> Decided | None:
    def decide(seen: Seen, now: Lifecycle) -> Move | None:
        if seen.wh != "open":
            return None
        return Move(reason=Reason.FINALIZED, status=Status.FAILED, role=now.role, note=note, route=route)

    return swap(ground, agent, job_id, decide)


def answer(ground: Ground, agent: Agent, job_id: str, answered: PersonAnswer) -> Decided:
    def decide(seen: Seen, now: Lifecycle) -> Move:
        if now.status is not Status.QUEUED or not transitions.waits_for_person(now):
            raise IllegalTransition(
                f"{job_id} does not wait for a person, it is {now.status} ({now.role}); nothing was changed. "
                "`farro inbox` lists what waits"
            )
        move = Move(reason=Reason.ANSWERED, status=Status.QUEUED, role="Manager", note=answered.note)
        return replace(move, route=answered.route)

    return _found(job_id, swap(ground, agent, job_id, decide, text=answered.text))


def _must(ground: Ground, agent: Agent, job_id: str, move: Move) -> Decided:
    def decide(seen: Seen, now: Lifecycle) -> Move:
        states.check(job_id, now.status, move.status, move.reason, finalized=now.finalized_at is not None)
        return replace(move, role=now.role)

    return _found(job_id, swap(ground, agent, job_id, decide))


def _found(job_id: str, done: Decided | None) -> Decided:
    if done is None:
        raise UnknownJob(f"no job {job_id}; `farro ls` lists what there is")
    return done


def swap(ground: Ground, agent: Agent, job_id: str, decide: Decide, *, text: str | None = None) -> Decided | None:
    """Look, decide, compare and swap; again when somebody was quicker. None: there is no such job, or `decide` says
    that there is nothing to do. `text`: a person's own words become the result of an attempt of their own."""
    ids.check_job_id(job_id)
    for _ in range(_TRIES):
        (seen,) = ground.look([job_id], agent=agent)
        if seen is None:
            return None
        before = seen.lifecycle
        move = decide(seen, before)
        if move is None:
            return None
        attempt, kept = seen.attempts, PostedFiles()
        if text is not None:
            attempt += 1
            kept = written(Report(result={"success": True, "edited_by": agent.id}, markdown=text))
        after = transitions.decided(before, move, by=agent.id, attempt=attempt, now=ground.now())
        done = put(ground, agent, seen, after, attempt, kept)
        if done is not None:
            return after, done
    raise TryAgain(f"{job_id} is changed by others again and again; try again in a moment")


def put(
    ground: Ground,
    agent: Agent | None,
    seen: Seen,
    after: Lifecycle,
    attempt: int,
    kept: PostedFiles | None = None,
    *,
    told: Mapping[str, Any] | None = None,
) -> list[str] | None:
    """The job as it was seen becomes `after`, in one step; those that waited for it. None: somebody was quicker.
    `told`: what the common log says of it, where that is no transition.
    Without an agent anyone may do it, dead or not: the comparison is fence enough."""
    args: list[Arg] = [
        ground.time(),
        "" if agent is None else agent.id,
        seen.job_id,
        seen.version,
        ground.token(),
        after.to_line(),
        where(after),
        after.role,
        due_ms(after),
        line(told or audit_fields.codes(after)),
        attempt,
        *files({} if kept is None else posted(attempt, kept)),
    ]
    reply: Sequence[Any] = ground.server.run(ground.scripts.decide, *args)
    if reply[0] == b"lost":
        assert agent is not None
        raise agent_lost(agent)
    if reply[0] != b"ok":
        return None
    if told is None:
        ground.tell(after)
    return [job_id.decode() for job_id in reply[1]]


def put_aside(ground: Ground, by: str, job_id: str, why: Exception) -> None:
    """A job whose lifecycle cannot be read: shown as failed and damaged, kept as it is, and in nobody's way. One of
    another schema version is only told of."""
    if isinstance(why, UnknownSchema):
        ground.tell_foreign(job_id)
        return
    ground.log("critical", "a job that cannot be read was put aside", {"job_id": job_id, "why": str(why)})
    (seen,) = ground.look([job_id])
    if seen is not None and seen.wh in ("held", "marked"):
        told = line({"event": "quarantined", "actor": by, "job_id": job_id, "role": seen.role})
        args: list[Arg] = [ground.time(), "", job_id, seen.version, ground.token(), seen.life, "failed", seen.role]
        ground.server.run(ground.scripts.decide, *args, 0, told, seen.attempts, 0)


def written(report: Report) -> PostedFiles:
    """A result that nobody made in a folder."""
    body = documents.canonical(report.result) + b"\n"
    return PostedFiles(files={"result.json": body, "result.md": report.markdown.encode("utf-8", "backslashreplace")})
