"""Submitting to the Redis store: everything is checked, then one script makes the jobs.

Jobs that run after others are judged in unblock; what a script does with a new job is said at its head.

- A call that is repeated after a lost answer makes nothing twice: a minted id is known by itself, a chosen one by its
  digest and the token of the call. [test_a_lost_answer_is_asked_for_again]
- Many jobs are sent in parts of bounded size. Chosen ids of all parts are compared before the first is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from farro.errors import InputError, NameTaken
from farro.jobs import audit_fields, ids
from farro.plans import after
from farro.store.port import Agent, Claim, Submission
from farro.store.redis import claim as claims
from farro.store.redis.context import Ground, agent_lost
from farro.store.redis.prepare import checked, conflict
from farro.store.redis.records import CARRIED, MINTED, New, folded, line
from farro.store.redis.server import Arg

_PART, _PART_BYTES = 200, 4 << 20  # of one call: a script keeps everybody else waiting


def enqueue(ground: Ground, submission: Submission) -> tuple[str, list[str]]:
    """The id, and the jobs to look at again: what they wait for ended meanwhile."""
    (new,) = checked(ground, [submission])
    if new.plain:
        ground.server.run(ground.scripts.enter, ground.time(), *new.entering(), waits=True)
        ground.tell(new.lifecycle)
        return new.lifecycle.job_id, []
    made, late, _ = _send(ground, [new.args()])
    if made[0]:
        ground.tell(new.lifecycle)
    return new.lifecycle.job_id, late


def enqueue_many(ground: Ground, submissions: Sequence[Submission]) -> tuple[list[str], list[str]]:
    news = checked(ground, submissions)
    sent: dict[str, New] = {}
    for new in news:  # one id twice in a batch is one job
        sent.setdefault(new.lifecycle.job_id, new)
    parts = list(_parts(list(sent.values())))
    if len(parts) > 1:
        _compare(ground, [new for new in sent.values() if new.digest != MINTED])
    late: list[str] = []
    for part in parts:
        made, some, _ = _send(ground, [args for _, args in part])
        late += some
        for (new, _), is_new in zip(part, made, strict=True):
            if is_new:
                ground.tell(new.lifecycle)
    return [new.lifecycle.job_id for new in news], late


def enqueue_named(ground: Ground, name: str, submission: Submission, instead_of: str | None) -> tuple[str, list[str]]:
    ids.check_job_name(name)
    (new,) = checked(ground, [submission])
    made, late, _ = _send(ground, [new.args()], name=name, instead_of=instead_of or "")
    if made[0]:
        ground.tell(new.lifecycle)
    return new.lifecycle.job_id, late


def enqueue_claimed(ground: Ground, agent: Agent, submission: Submission) -> Claim | None:
    assert agent.role == submission.role, "an agent works its own role"
    if after.dependencies(submission.prompt).all:
        raise InputError("a job that runs after others cannot start at once; enqueue it")
    (new,) = checked(ground, [submission])
    corr, policy = f"{ground.random_bits(128):032x}", ground.policy.policy_version(submission.role) or ""
    first = folded(new.lifecycle, agent.id, 1, corr, 0, policy)
    own = ground.claims.setdefault(agent.id, set())
    own.add(corr)
    made: Sequence[int] = (0,)
    try:
        made, _, at_ms = _send(
            ground, [new.args()], agent=agent, corr=corr, policy=policy, claimed=line(audit_fields.codes(first))
        )
    finally:
        if not made[0]:
            own.discard(corr)
    if not made[0]:
        return None
    ground.tell(new.lifecycle)
    lifecycle = folded(new.lifecycle, agent.id, 1, corr, at_ms, policy)
    stored = {b"payload/" + name.encode(): data for name, data in submission.payload.items()}
    for name, data in (new.carried or {}).items():
        stored[f"{CARRIED}{name}".encode("utf-8", "surrogateescape")] = data
    if submission.narrative is not None:
        stored[b"prompt.md"] = submission.narrative.encode("utf-8", "backslashreplace")
    return claims.begun(ground, agent, lifecycle, new.prompt_text, stored)


def _parts(news: Sequence[New]) -> Iterator[list[tuple[New, list[Arg]]]]:
    part: list[tuple[New, list[Arg]]] = []
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


def _compare(ground: Ground, news: Sequence[New]) -> None:
    for start in range(0, len(news), 1000):
        some = news[start : start + 1000]
        known = ground.server.calls([("HMGET", ground.keys.job(new.lifecycle.job_id), "v", "digest") for new in some])
        for new, found in zip(some, known, strict=True):
            if found[0] is not None and (found[1] or b"").decode() != new.digest:
                raise conflict(new.lifecycle.job_id)


def _send(
    ground: Ground,
    jobs: Sequence[list[Arg]],
    *,
    name: str = "",
    instead_of: str = "",
    agent: Agent | None = None,
    corr: str = "",
    policy: str = "",
    claimed: bytes = b"",
) -> tuple[list[int], list[str], int]:
    """Which of them this call made, those to look at again, and the server's time."""
    args: list[Any] = [ground.time(), name, instead_of, "" if agent is None else agent.id, corr, policy, claimed]
    args.append(len(jobs))
    for job in jobs:
        args += job
    answer = ground.server.run(ground.scripts.enqueue, *args, waits=True)
    match answer[0]:
        case b"conflict":
            raise conflict(answer[1].decode())
        case b"taken":
            raise NameTaken(name, answer[1].decode() or None)
        case b"lost":
            assert agent is not None
            raise agent_lost(agent)
    return answer[1], [job_id.decode() for job_id in answer[2]], int(answer[3])
