"""Submit jobs: check everything, then create the jobs by one script.

- A call repeated after a lost answer creates no job twice: a minted id is unique, a chosen id is recognised by its
  digest and the call's token. [test_a_call_with_a_lost_answer_is_repeated_safely]
- Many jobs are sent in parts of bounded size. Chosen ids of all parts are compared before the first part is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from farro.errors import InputError, NameTaken
from farro.jobs import audit_fields, ids
from farro.plans import after
from farro.store.port import Agent, Claim, Submission, Submitted
from farro.store.redis import claim as claims
from farro.store.redis.client import Arg
from farro.store.redis.context import RedisContext, agent_lost
from farro.store.redis.new_jobs import conflict, prepare
from farro.store.redis.records import CARRIED, MINTED, NewJob, audit_line, with_claim

_PART, _PART_BYTES = 200, 4 << 20  # limits of one call: the server runs nothing else during a script


def enqueue(context: RedisContext, submission: Submission) -> tuple[str, list[str]]:
    """Return the job's id, and the jobs to unblock: those whose dependency ended meanwhile."""
    (new,) = prepare(context, [submission])
    if new.plain:
        context.client.run(context.scripts.enter, context.script_time(), *new.entering(), waits=True)
        context.audit_transition(new.lifecycle)
        return new.lifecycle.job_id, []
    made, late, _ = _send(context, [new.args()])
    if made[0]:
        context.audit_transition(new.lifecycle)
    return new.lifecycle.job_id, late


def enqueue_many(context: RedisContext, submissions: Sequence[Submission]) -> tuple[list[Submitted], list[str]]:
    """Return the jobs, and those to unblock: those whose dependency ended meanwhile."""
    news = prepare(context, submissions)
    sent: dict[str, NewJob] = {}
    for new in news:  # an id that occurs twice in a batch is one job
        sent.setdefault(new.lifecycle.job_id, new)
    parts = list(_parts(list(sent.values())))
    if len(parts) > 1:
        _compare(context, [new for new in sent.values() if new.digest != MINTED])
    late: list[str] = []
    created: set[int] = set()  # by identity: the second of two equal submissions finds the first
    for part in parts:
        made, some, _ = _send(context, [args for _, args in part])
        late += some
        for (new, _), is_new in zip(part, made, strict=True):
            if is_new:
                created.add(id(new))
                context.audit_transition(new.lifecycle)
    return [Submitted(id=new.lifecycle.job_id, existed=id(new) not in created) for new in news], late


def enqueue_named(
    context: RedisContext, name: str, submission: Submission, instead_of: str | None
) -> tuple[str, list[str]]:
    ids.check_job_name(name)
    (new,) = prepare(context, [submission])
    made, late, _ = _send(context, [new.args()], name=name, instead_of=instead_of or "")
    if made[0]:
        context.audit_transition(new.lifecycle)
    return new.lifecycle.job_id, late


def enqueue_claimed(context: RedisContext, agent: Agent, submission: Submission) -> Claim | None:
    assert agent.role == submission.role, "an agent works its own role"
    if after.dependencies(submission.prompt).all:
        raise InputError("a job that runs after others cannot start at once; enqueue it")
    (new,) = prepare(context, [submission])
    corr, policy = f"{context.random_bits(128):032x}", context.policy.policy_version(submission.role) or ""
    first = with_claim(new.lifecycle, agent.id, 1, corr, 0, policy)
    own = context.open_claims.setdefault(agent.id, set())
    own.add(corr)
    made: Sequence[int] = (0,)
    try:
        made, _, at_ms = _send(
            context, [new.args()], agent=agent, corr=corr, policy=policy, claimed=audit_line(audit_fields.codes(first))
        )
    finally:
        if not made[0]:
            own.discard(corr)
    if not made[0]:
        return None
    context.audit_transition(new.lifecycle)
    lifecycle = with_claim(new.lifecycle, agent.id, 1, corr, at_ms, policy)
    stored = {b"payload/" + name.encode(): data for name, data in submission.payload.items()}
    for name, data in (new.carried or {}).items():
        stored[f"{CARRIED}{name}".encode("utf-8", "surrogateescape")] = data
    if submission.narrative is not None:
        stored[b"prompt.md"] = submission.narrative.encode("utf-8", "backslashreplace")
    return claims.start_attempt(context, agent, lifecycle, new.prompt_text, stored)


def _parts(news: Sequence[NewJob]) -> Iterator[list[tuple[NewJob, list[Arg]]]]:
    part: list[tuple[NewJob, list[Arg]]] = []
    size = 0
    for new in news:
        args = new.args()
        weight = sum(len(arg) for arg in args if isinstance(arg, bytes | str))
        if part and (len(part) >= _PART or size + weight > _PART_BYTES):
            yield part
            part, size = [], 0
        part.append((new, args))
        size += weight
    if part:
        yield part


def _compare(context: RedisContext, news: Sequence[NewJob]) -> None:
    for start in range(0, len(news), 1000):
        some = news[start : start + 1000]
        known = context.client.calls([("HMGET", context.keys.job(new.lifecycle.job_id), "v", "digest") for new in some])
        for new, found in zip(some, known, strict=True):
            if found[0] is not None and (found[1] or b"").decode() != new.digest:
                raise conflict(new.lifecycle.job_id)


def _send(
    context: RedisContext,
    jobs: Sequence[list[Arg]],
    *,
    name: str = "",
    instead_of: str = "",
    agent: Agent | None = None,
    corr: str = "",
    policy: str = "",
    claimed: bytes = b"",
) -> tuple[list[int], list[str], int]:
    """Return which jobs this call created, the jobs to unblock, and the server's time."""
    args: list[Any] = [
        context.script_time(),
        name,
        instead_of,
        "" if agent is None else agent.id,
        corr,
        policy,
        claimed,
    ]
    args.append(len(jobs))
    for job in jobs:
        args += job
    answer = context.client.run(context.scripts.enqueue, *args, waits=True)
    match answer[0]:
        case b"conflict":
            raise conflict(answer[1].decode())
        case b"taken":
            raise NameTaken(name, answer[1].decode() or None)
        case b"lost":
            assert agent is not None
            raise agent_lost(agent)
    return answer[1], [job_id.decode() for job_id in answer[2]], int(answer[3])
