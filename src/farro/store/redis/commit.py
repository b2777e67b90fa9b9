"""Committing in the Redis store: the decision is made here, by kernel.moves; one script carries it out, if the fence
(agent, attempt) still holds and the agent is alive.

Jobs that waited for one that ended are looked at in unblock.

The result, the decision and the children are one script: a crash leaves all of it or nothing. A call that is repeated
after a lost answer is known by its token, and answered as accepted. [test_a_lost_answer_is_asked_for_again]
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from farro.errors import Lost
from farro.jobs import audit_fields, transitions
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import NO_REPORT, Outcome, Released, Succeeded
from farro.jobs.states import Reason
from farro.jobs.transitions import Move
from farro.lazy_dataclass import dataclass
from farro.store.port import Claim
from farro.store.redis import prepare
from farro.store.redis.context import Ground, agent_lost, claim_lost
from farro.store.redis.records import New, due_ms, files, line, posted, where
from farro.store.redis.server import Arg
from farro.store.workspace import PostedFiles

PART, PART_BYTES = 200, 4 << 20  # of one call: a script keeps everybody else waiting
Committed = tuple[
    Lifecycle, list[str]
]  # and the jobs to look at: those that waited for it, children that need not wait
Run = Callable[[Sequence[Arg]], Any]  # the arguments of the script → its answers
_RESULTS = ("result.json", "result.md", "error.md")


@dataclass(slots=True)
class _Decided:
    """A commit on its way."""

    claim: Claim
    lifecycle: Lifecycle
    args: list[Arg]
    children: Sequence[New]
    weight: int  # bytes, about


def commit(ground: Ground, claim: Claim, outcome: Outcome, move: Move | None) -> Committed:
    (told,) = commit_batch(ground, [(claim, outcome)], move)
    if isinstance(told, Lost):
        raise told
    return told


def commit_batch(
    ground: Ground,
    ended: Sequence[tuple[Claim, Outcome]],
    move: Move | None = None,
    last: Run | None = None,
) -> list[Committed | Lost]:
    """Of attempts of one agent, in parts of bounded size. `last` sends the last of them."""
    told: list[Committed | Lost] = []
    part: list[_Decided] = []
    size, token, now = 0, ground.token(), ground.now()
    for claim, outcome in ended:
        decided = _decide(ground, claim, outcome, move, token, now)
        if part and (len(part) >= PART or size + decided.weight > PART_BYTES):
            told += _send(ground, part)
            part, size = [], 0
        part.append(decided)
        size += decided.weight
    return told + _send(ground, part, last)


def _decide(ground: Ground, claim: Claim, outcome: Outcome, move: Move | None, token: str, now: datetime) -> _Decided:
    before, agent, attempt = claim.envelope.lifecycle, claim.agent, claim.attempt
    wanted = outcome.children if isinstance(outcome, Succeeded) else ()
    children = prepare.children(ground, claim.job_id, attempt, wanted) if wanted else []
    move = move or transitions.after(before, outcome, ground.policy.retry, ground.uniform, attempt=attempt)
    kept = _post(ground, claim, outcome)
    digest = None
    if not isinstance(outcome, Released):
        digest = hashlib.sha256(kept.files.get("result.json") or _spelled(outcome)).hexdigest()
    lifecycle = transitions.decided(before, move, by=agent.id, attempt=attempt, now=now, result_sha256=digest)
    place = "marked" if move.reason is Reason.ROUTING_EXHAUSTED else where(lifecycle)
    life, told = lifecycle.to_line(), line(audit_fields.codes(lifecycle))
    args: list[Arg] = [claim.job_id, attempt, token, life, place, lifecycle.role, due_ms(lifecycle), told]
    args += files(posted(attempt, kept))
    weight = len(life) + sum(map(len, kept.files.values()))
    if children:
        args += (line({"event": "dispatched", **_dispatched(claim, children)}), len(children))
        for child in children:
            more = child.args()
            args += more
            weight += sum(len(arg) for arg in more if isinstance(arg, bytes | str))
    else:
        args += ("", 0)
    return _Decided(claim, lifecycle, args, children, weight)


def _dispatched(claim: Claim, children: Sequence[New]) -> dict[str, Any]:
    return {"actor": claim.agent.id, "job_id": claim.job_id, "children": len(children)}


def _send(ground: Ground, part: Sequence[_Decided], run: Run | None = None) -> list[Committed | Lost]:
    agent = part[0].claim.agent
    args: list[Arg] = [ground.time(), agent.id, len(part)]
    for each in part:
        args += each.args
    answers = run(args) if run else ground.server.run(ground.scripts.commit, *args, waits=True)
    return [_told(ground, each, answer) for each, answer in zip(part, answers, strict=True)]


def _told(ground: Ground, each: _Decided, answer: Sequence[Any]) -> Committed | Lost:
    claim, agent = each.claim, each.claim.agent
    ground.claims.get(agent.id, set()).discard(claim.envelope.lifecycle.correlation_id or "")
    ground.workspace.end(agent.id, claim.job_id)
    if answer[0] == b"lost":
        return agent_lost(agent)
    if answer[0] == b"taken":
        return claim_lost(claim.job_id, agent)
    ground.beats[agent.id] = ground.clock.monotonic_s()
    ground.tell(each.lifecycle)
    for child in each.children:
        ground.tell(child.lifecycle)
    if each.children:
        ground.audit("dispatched", **_dispatched(claim, each.children))
    return each.lifecycle, [job_id.decode() for job_id in (*answer[1], *answer[3])]


def _post(ground: Ground, claim: Claim, outcome: Outcome) -> PostedFiles:
    """What is kept of the attempt's files. Of one that was handed back: what it did already, but no result."""
    folder = claim.place  # one that nobody asked for is not made for this
    if not folder:
        return PostedFiles()
    if isinstance(outcome, Released):
        kept = ground.workspace.post(folder, NO_REPORT, good=True)
        some = {name: data for name, data in kept.files.items() if name not in _RESULTS}
        return PostedFiles(files=some, elsewhere=kept.elsewhere, cut=kept.cut)
    return ground.workspace.post(folder, outcome.report, good=isinstance(outcome, Succeeded))


def _spelled(outcome: Outcome) -> bytes:
    assert not isinstance(outcome, Released)
    text = json.dumps(outcome.report.result, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace") + b"\n"
