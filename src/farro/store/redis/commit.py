"""Commit attempts. farro.jobs.moves decides here; one script applies it if the fence (agent, attempt) holds and
the agent is alive.

Result, decision and children are stored by one script: a crash leaves all or nothing. A call repeated after a lost
answer is recognised by its token and accepted. [test_a_call_with_a_lost_answer_is_repeated_safely]
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from farro.errors import FarroError, Lost
from farro.jobs import audit_fields, moves
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import NO_REPORT, Outcome, Released, Succeeded
from farro.jobs.states import Reason
from farro.lazy_dataclass import dataclass
from farro.store.port import AttemptResult, Claim
from farro.store.redis import new_jobs
from farro.store.redis.client import Arg
from farro.store.redis.context import RedisContext, agent_lost, claim_lost
from farro.store.redis.records import NewJob, attempt_fields, audit_line, due_ms, file_args, place_of
from farro.store.workspace import PostedFiles

PART, PART_BYTES = 200, 4 << 20  # limits of one call: the server runs nothing else during a script
Committed = tuple[Lifecycle, list[str]]  # with the jobs to unblock: dependents, and children that need not wait
Run = Callable[[Sequence[Arg]], Any]  # the script's arguments → its replies
_RESULTS = ("result.json", "result.md", "error.md")


@dataclass(slots=True)
class _PendingCommit:
    """A commit that is ready to send."""

    claim: Claim
    lifecycle: Lifecycle
    args: list[Arg]
    children: Sequence[NewJob]
    weight: int  # approximate bytes


def commit(
    context: RedisContext, results: Sequence[AttemptResult], last: Run | None = None
) -> list[Committed | FarroError]:
    """Commit attempts of one agent, in parts of bounded size. `last` sends the last part."""
    answers: dict[int, Committed | FarroError] = {}
    parts: list[dict[int, _PendingCommit]] = [{}]
    size, token, now = 0, context.token(), context.now()
    for at, result in enumerate(results):
        try:
            decided = _decide(context, result, token, now)
        except FarroError as error:
            answers[at] = error
            continue
        if parts[-1] and (len(parts[-1]) >= PART or size + decided.weight > PART_BYTES):
            parts.append({})
            size = 0
        parts[-1][at] = decided
        size += decided.weight
    for part in filter(None, parts):
        try:
            answers.update(
                zip(part, _send(context, [*part.values()], last if part is parts[-1] else None), strict=True)
            )
        except FarroError as error:  # the whole request failed
            answers.update(dict.fromkeys(part, error))
    return [answers[at] for at in range(len(results))]


def commit_one(context: RedisContext, claim: Claim, outcome: Outcome) -> None:
    (answer,) = commit(context, [AttemptResult(claim, outcome)])
    if isinstance(answer, FarroError):
        raise answer


def _decide(context: RedisContext, result: AttemptResult, token: str, now: datetime) -> _PendingCommit:
    claim, outcome, move = result
    if move is not None:
        context.check_role(move.role)
    before, agent, attempt = claim.envelope.lifecycle, claim.agent, claim.attempt
    wanted = outcome.children if isinstance(outcome, Succeeded) else ()
    children = new_jobs.prepare_children(context, claim.job_id, attempt, wanted) if wanted else []
    move = move or moves.after(before, outcome, context.policy.retry, context.uniform, attempt=attempt)
    kept = _kept_files(context, claim, outcome)
    digest = None
    if not isinstance(outcome, Released):
        digest = hashlib.sha256(kept.files.get("result.json") or _result_bytes(outcome)).hexdigest()
    lifecycle = moves.decided(before, move, by=agent.id, attempt=attempt, now=now, result_sha256=digest)
    place = "marked" if move.reason is Reason.ROUTING_EXHAUSTED else place_of(lifecycle)
    life, event = lifecycle.to_line(), audit_line(audit_fields.codes(lifecycle))
    args: list[Arg] = [claim.job_id, attempt, token, life, place, lifecycle.role, due_ms(lifecycle), event]
    args += file_args(attempt_fields(attempt, kept))
    weight = len(life) + sum(map(len, kept.files.values()))
    if children:
        args += (audit_line({"event": "dispatched", **_dispatch_fields(claim, children)}), len(children))
        for child in children:
            more = child.args()
            args += more
            weight += sum(len(arg) for arg in more if isinstance(arg, bytes | str))
    else:
        args += ("", 0)
    return _PendingCommit(claim, lifecycle, args, children, weight)


def _dispatch_fields(claim: Claim, children: Sequence[NewJob]) -> dict[str, Any]:
    return {"actor": claim.agent.id, "job_id": claim.job_id, "children": len(children)}


def _send(context: RedisContext, part: Sequence[_PendingCommit], run: Run | None = None) -> list[Committed | Lost]:
    agent = part[0].claim.agent
    args: list[Arg] = [context.script_time(), agent.id, len(part)]
    for each in part:
        args += each.args
    answers = run(args) if run else context.client.run(context.scripts.commit, *args, waits=True)
    return [_committed(context, each, answer) for each, answer in zip(part, answers, strict=True)]


def _committed(context: RedisContext, each: _PendingCommit, answer: Sequence[Any]) -> Committed | Lost:
    claim, agent = each.claim, each.claim.agent
    context.open_claims.get(agent.id, set()).discard(claim.envelope.lifecycle.correlation_id or "")
    context.workspace.end(agent.id, claim.job_id)
    if answer[0] == b"lost":
        return agent_lost(agent)
    if answer[0] == b"taken":
        return claim_lost(claim.job_id, agent)
    context.last_heard_s[agent.id] = context.clock.monotonic_s()
    context.audit_transition(each.lifecycle)
    for child in each.children:
        context.audit_transition(child.lifecycle)
    if each.children:
        context.audit("dispatched", **_dispatch_fields(claim, each.children))
    return each.lifecycle, [job_id.decode() for job_id in (*answer[1], *answer[3])]


def _kept_files(context: RedisContext, claim: Claim, outcome: Outcome) -> PostedFiles:
    """Return the files of the attempt to keep. A released attempt keeps its files so far, but no result."""
    folder = claim.place  # read without creating the folder
    if not folder:
        return PostedFiles()
    if isinstance(outcome, Released):
        kept = context.workspace.post(folder, NO_REPORT, good=True)
        some = {name: data for name, data in kept.files.items() if name not in _RESULTS}
        return PostedFiles(files=some, elsewhere=kept.elsewhere, cut=kept.cut)
    return context.workspace.post(folder, outcome.report, good=isinstance(outcome, Succeeded))


def _result_bytes(outcome: Outcome) -> bytes:
    assert not isinstance(outcome, Released)
    text = json.dumps(outcome.report.result, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace") + b"\n"
