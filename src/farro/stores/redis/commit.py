"""Committing in the Redis store: the decision is made here, by kernel.moves; one script carries it out, if the fence
(agent, attempt) still holds and the agent is alive.

Jobs that waited for one that ended are looked at in unblock.

The result, the decision and the children are one script: a crash leaves all of it or nothing. A call that is repeated
after a lost answer is known by its token, and answered as accepted. [test_a_lost_answer_is_asked_for_again]
"""

from __future__ import annotations

import hashlib
import json

from farro.kernel import moves, telling
from farro.kernel.envelope import Lifecycle
from farro.kernel.moves import Move
from farro.kernel.outcome import NO_REPORT, Outcome, Released, Succeeded
from farro.kernel.states import Reason
from farro.ports.store import Claim
from farro.ports.workspace import Posted
from farro.stores.redis import preparing
from farro.stores.redis.ground import Ground, agent_lost, claim_lost
from farro.stores.redis.records import due_ms, files, line, posted, where
from farro.stores.redis.server import Arg

_RESULTS = ("result.json", "result.md", "error.md")


def commit(ground: Ground, claim: Claim, outcome: Outcome, move: Move | None) -> tuple[Lifecycle, list[str]]:
    """The lifecycle, and the jobs to look at: those that waited for this one, and children that need not wait."""
    before, agent, attempt = claim.envelope.lifecycle, claim.agent, claim.attempt
    wanted = outcome.children if isinstance(outcome, Succeeded) else ()
    children = preparing.children(ground, claim.job_id, attempt, wanted) if wanted else []
    move = move or moves.after(before, outcome, ground.policy.retry, ground.uniform, attempt=attempt)
    kept = _post(ground, claim, outcome)
    digest = None
    if not isinstance(outcome, Released):
        digest = hashlib.sha256(kept.files.get("result.json") or _spelled(outcome)).hexdigest()
    lifecycle = moves.decided(before, move, by=agent.id, attempt=attempt, now=ground.now(), result_sha256=digest)
    codes = telling.codes(lifecycle)
    place = "marked" if move.reason is Reason.ROUTING_EXHAUSTED else where(lifecycle)
    args: list[Arg] = [
        ground.time(),
        agent.id,
        claim.job_id,
        attempt,
        ground.token(),
        lifecycle.to_json(),
        place,
        lifecycle.role,
        due_ms(lifecycle),
        line(codes),
        *files(posted(attempt, kept)),
    ]
    dispatched = {"actor": agent.id, "job_id": claim.job_id, "children": len(children)}
    if children:
        args += (line({"event": "dispatched", **dispatched}), len(children))
        for child in children:
            args += child.args()
    else:
        args += ("", 0)
    answer = ground.server.run(ground.scripts.commit, *args, waits=True)
    ground.claims.get(agent.id, set()).discard(before.correlation_id or "")
    if answer[0] == b"lost":
        ground.workspace.end(agent.id, claim.job_id)
        raise agent_lost(agent)
    if answer[0] == b"taken":
        ground.workspace.end(agent.id, claim.job_id)
        raise claim_lost(claim.job_id, agent)
    ground.beats[agent.id] = ground.clock.monotonic_s()
    ground.audit(**codes)  # type: ignore[arg-type]
    for child in children:
        ground.tell(child.lifecycle)
    if children:
        ground.audit("dispatched", **dispatched)  # type: ignore[arg-type]
    ground.workspace.end(agent.id, claim.job_id)
    return lifecycle, [job_id.decode() for job_id in (*answer[1], *answer[3])]


def _post(ground: Ground, claim: Claim, outcome: Outcome) -> Posted:
    """What is kept of the attempt's files. Of one that was handed back: what it did already, but no result."""
    folder = claim.place  # one that nobody asked for is not made for this
    if not folder:
        return Posted()
    if isinstance(outcome, Released):
        kept = ground.workspace.post(folder, NO_REPORT, good=True)
        some = {name: data for name, data in kept.files.items() if name not in _RESULTS}
        return Posted(files=some, elsewhere=kept.elsewhere, cut=kept.cut)
    return ground.workspace.post(folder, outcome.report, good=isinstance(outcome, Succeeded))


def _spelled(outcome: Outcome) -> bytes:
    assert not isinstance(outcome, Released)
    text = json.dumps(outcome.report.result, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace") + b"\n"
