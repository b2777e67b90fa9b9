"""Claim jobs: one script takes the next jobs, and this machine makes the folder of each attempt.

The script decides order and tags. farro.jobs.moves decides what a claim changes in a lifecycle.

After a crash the job stays with the agent until its lease is over; recovery then counts the attempt.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from farro.errors import Damaged, FarroError, IllegalTransition, Lost, StorageTrouble, TryAgain, UnknownSchema
from farro.jobs import audit_fields
from farro.jobs.envelope import SCHEMA_VERSION, Envelope, Lifecycle
from farro.jobs.outcomes import NO_REPORT, ErrorInfo, Failed, Released
from farro.log.audit import tell_all
from farro.store.port import Agent, AttemptResult, Claim, LazyFolderClaim
from farro.store.redis import commit, decisions, recover
from farro.store.redis.client import Arg, BothReplies
from farro.store.redis.context import RedisContext, agent_lost
from farro.store.redis.records import audit_line, from_ms, material_of, pairs, to_ms, with_claim
from farro.store.workspace import JobFiles


def claim(context: RedisContext, agent: Agent, limit: int) -> list[Claim]:
    return _claim(context, agent, limit, lambda args: context.client.run(context.scripts.claim, *args))


def claim_or_wait(
    context: RedisContext, agent: Agent, limit: int, timeout_s: float, wakeup: socket.socket
) -> list[Claim]:
    """Claim; if there is no job, wait up to `timeout_s`, then claim again. The request blocks in the server, which
    claims as soon as a job enters the queue. This saves the round trip from wake-up to claim, and one sync where every
    reply waits for the disk. A worker that dies while it waits claims nothing, because its connection is gone. If the
    server does not notice (a power cut), the worker counts as having died with the job.

    For a job without tags one worker without tags is woken: the one that waited longest. If the job is delayed, that
    worker learns when it is due and queues up again behind the others, so that they get jobs, and learn of it too,
    before it starts one itself. A worker with tags wakes for every entry, because only it knows which jobs fit.
    [test_one_worker_is_woken_for_a_job, test_a_woken_worker_wakes_the_next_if_jobs_are_left,
    test_a_delayed_job_starts_in_time_whichever_worker_knew_of_it]
    """
    script, role = context.scripts.claim, agent.role or ""
    until_s = context.clock.monotonic_s() + timeout_s
    answered = True

    def ask(args: Sequence[Arg]) -> Any:
        nonlocal answered
        bell: tuple[Arg, ...] = ("BZPOPMIN", context.keys.bell(role), wait_ms / 1000)
        if agent.tags:
            bell = ("XREAD", "COUNT", 1, "BLOCK", wait_ms, "STREAMS", context.keys.feed(role), fed)
        answer = context.client.wait_and_run(bell, script, *args, wait_s=wait_ms / 1000, wakeup=wakeup)
        answered = answer is not None
        return answer if answered else context.client.run(script, *args, again=True)

    while True:
        idle = context.empty_claims.pop(agent.id, None)
        if idle is None:
            found = claim(context, agent, limit)
            if found:
                return found
            continue
        fed, due = idle
        left_s = until_s - context.clock.monotonic_s()
        if due is not None:
            left_s = min(left_s, (due - to_ms(context.now())) / 1000)
        wait_ms = max(1, int(left_s * 1000) + 1)  # 0 would block for ever
        found = _claim(context, agent, limit, ask)
        if found or not answered or context.clock.monotonic_s() >= until_s:
            return found  # otherwise another worker was quicker


def commit_and_claim(
    context: RedisContext, results: Sequence[AttemptResult], agent: Agent, limit: int
) -> tuple[list[commit.Committed | FarroError], list[Claim]]:
    """Commit attempts of this agent and claim its next jobs in one round trip. The answers to the commits are returned
    even if the claim failed."""
    answers: list[commit.Committed | FarroError] = []
    replies: list[BothReplies] = []
    claims: list[Claim] = []
    scripts, client = context.scripts, context.client

    sent = False

    def ask(args: Sequence[Arg]) -> Any:
        def send_both(args_of_commit: Sequence[Arg]) -> Any:
            nonlocal sent
            sent = True
            replies.append(client.run_both((scripts.commit, args_of_commit), (scripts.claim, args)))
            return replies[0].first

        answers[:] = commit.commit(context, results, last=send_both)
        if not sent:  # no result could be committed
            return client.run(scripts.claim, *args)
        if not replies:
            raise TryAgain("the request with the commits and this claim failed")
        if isinstance(replies[0].second, FarroError):
            raise replies[0].second
        return replies[0].second

    with contextlib.suppress(FarroError):  # the next claim meets the same error
        claims = _claim(context, agent, limit, ask)
    if results and not answers:  # the claim failed before its request
        answers = commit.commit(context, results)
    if replies and (short := replies[0].shortfall) is not None:
        with contextlib.suppress(FarroError):  # too few replicas here, too; the jobs must not stay claimed
            hand_back(context, claims)
        return [short] * len(results), []
    return answers, claims


def _claim(context: RedisContext, agent: Agent, limit: int, ask: Callable[[Sequence[Arg]], Any]) -> list[Claim]:
    """Claim up to `limit` jobs. `ask` sends the first request; any further one is sent alone."""
    assert agent.role is not None, "an agent without a role holds jobs, it does not claim them"
    tags = ",".join(sorted(agent.tags))
    policy, audited = context.policy.policy_version(agent.role) or "", audit_fields.pseudonym(agent.id)
    if context.lost_jobs:
        for job_id in context.lost_jobs.pop(agent.id, ()):
            context.workspace.end(agent.id, job_id)
    own = context.open_claims.setdefault(agent.id, set())
    while True:
        corrs = f"{context.random_bits(128 * limit):0{32 * limit}x}"
        nonces = [corrs[start : start + 32] for start in range(0, 32 * limit, 32)]
        own.update(nonces)
        answer: Sequence[Any] = ()
        try:
            now = context.script_time()
            answer = ask((now, agent.id, agent.role, tags, corrs, policy, SCHEMA_VERSION, limit, audited))
        finally:  # after a failed call this process does not know about the claims the server may have made
            taken = answer[3:] if answer and answer[0] == b"ok" else ()
            own.difference_update(nonces[len(taken) :])
        ask = lambda args: context.client.run(context.scripts.claim, *args)  # noqa: E731
        match answer[0]:
            case b"ok":
                made = _start_all(context, agent, taken)
                if answer[1] > len(own):
                    _recover_unknown(context, agent, own)
                if answer[2]:
                    context.log_foreign(answer[2].decode())
                if made:
                    return made
            case b"none":
                context.last_heard_s[agent.id] = context.clock.monotonic_s()
                if answer[1] > len(own):
                    _recover_unknown(context, agent, own)
                context.empty_claims[agent.id] = answer[2], int(float(answer[3])) if answer[3] else None
                return []
            case b"lost":
                raise agent_lost(agent)
            case b"foreign":
                context.log_foreign(answer[1].decode())


def _start_all(context: RedisContext, agent: Agent, jobs: Sequence[Sequence[Any]]) -> list[Claim]:
    """Start an attempt for each job. If one folder cannot be made, hand back the others: theirs would fail too."""
    made: list[Claim] = []
    trouble: StorageTrouble | None = None
    if jobs:
        context.note_server_time(int(jobs[0][4]))
        context.last_heard_s[agent.id] = context.clock.monotonic_s()
    for job in jobs:
        try:
            claimed = _start(context, agent, job)
        except StorageTrouble as error:
            trouble = error
        else:
            made += [] if claimed is None else [claimed]
    if trouble is not None:
        hand_back(context, made)
        raise trouble
    return made


def _start(context: RedisContext, agent: Agent, job: Sequence[Any]) -> Claim | None:
    """Start an attempt for one claimed job. None: the job cannot be read, and was quarantined or failed."""
    job_id, life, prompt, attempt, at, policy_at, stored, nonce, score = job
    corr = nonce.decode()
    try:
        before = Lifecycle.from_json(life)
        lifecycle = with_claim(before, agent.id, int(attempt), corr, int(at), policy_at.decode())
    except (Damaged, IllegalTransition) as error:
        decisions.quarantine(context, agent.id, job_id.decode(), error)
        if not isinstance(error, UnknownSchema):  # a job of another schema version stays with the agent
            context.open_claims[agent.id].discard(corr)
        return None
    try:
        made = start_attempt(context, agent, lifecycle, prompt, pairs(stored) if stored else {})
    except Damaged as error:
        context.log("critical", "a job that cannot be read has failed", {"job_id": job_id.decode(), "why": str(error)})
        return None
    made.envelope.runtime = score
    return made


def hand_back(context: RedisContext, claims: Sequence[Claim]) -> None:
    """Put claimed jobs of one agent that were not begun back into their queues; the attempt does not count."""
    if not claims:
        return
    agent, args = claims[0].agent, [(each, audit_fields.handed_back(each.envelope.lifecycle)) for each in claims]
    sent: list[Arg] = []
    for each, codes in args:
        if each.envelope.runtime:
            sent += (each.job_id, each.attempt, each.envelope.runtime, audit_line(codes))
    if sent:
        context.client.run(context.scripts.unclaim, context.script_time(), agent.id, len(sent) // 4, *sent, waits=True)
    for each, codes in args:
        if not each.envelope.runtime:  # the first answer, which had its queue position, was lost
            with contextlib.suppress(Lost):
                commit.commit_one(context, each, Released(note="not begun"))
            continue
        context.open_claims.get(agent.id, set()).discard(each.envelope.lifecycle.correlation_id or "")
        context.workspace.end(agent.id, each.job_id)
        tell_all(context.audit, [codes])


def _recover_unknown(context: RedisContext, agent: Agent, own: Collection[str]) -> None:
    """Recover jobs that the server counts as this agent's, but that it does not know: the server lost their commits in
    a crash or failover, or the agent lost an answer. While the agent lives, no watchdog would recover them."""
    held = pairs(context.client.call("HGETALL", context.keys.held(agent.id)))
    unknown = {job_id.decode() for job_id, corr in held.items() if corr.decode() not in own}
    for record in context.read_jobs(sorted(unknown)):
        if record is not None and record.place == "held" and record.owner == agent.id:
            context.log("warning", "the server lost what became of an attempt", {"job_id": record.job_id})
            recover.mark_stale(context, agent, record, f"the server lost what became of attempt {record.attempts}")


def start_attempt(
    context: RedisContext, agent: Agent, lifecycle: Lifecycle, prompt: bytes, stored: Mapping[bytes, bytes]
) -> Claim:
    """Return the claim with its folder. If no folder can be made, the job goes back to its queue. Damaged: the stored
    job cannot be read on any machine, so it has failed."""
    context.audit_transition(lifecycle)
    attempt = lifecycle.attempt
    envelope: Envelope[Mapping[str, Any]] = Envelope(prompt={}, lifecycle=lifecycle)
    made = Claim(agent=agent, envelope=envelope, attempt=attempt, folder="", scope=context.scope)
    try:
        envelope.prompt = _prompt(lifecycle.job_id, prompt)
        if not stored:
            bare = lambda: JobFiles(lifecycle=lifecycle.to_json(), prompt=prompt)  # noqa: E731
            place, make = context.workspace.promise(agent.id, lifecycle.job_id, attempt, bare)
            return LazyFolderClaim(
                agent=agent, envelope=envelope, attempt=attempt, folder=place, scope=context.scope, make=make
            )
        whole = material_of(lifecycle, prompt, stored)
        made.folder = context.workspace.begin(agent.id, lifecycle.job_id, attempt, whole)
    except Damaged as error:
        why = ErrorInfo(category="damaged", message=str(error))
        commit.commit_one(context, made, Failed(error=why, report=NO_REPORT))
        raise
    except (OSError, StorageTrouble) as error:
        commit.commit_one(context, made, Released(note="no folder could be made for it"))
        if isinstance(error, StorageTrouble):
            raise StorageTrouble(f"{error}; {lifecycle.job_id} went back to its queue") from error
        raise StorageTrouble(
            f"{error.filename or 'the workspace'}: {error.strerror or error}: no folder for an attempt could be made; "
            f"{lifecycle.job_id} went back to its queue. Free space there, then try again"
        ) from error
    return made


def _prompt(job_id: str, text: bytes) -> Mapping[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{job_id}: its prompt cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise Damaged(f"{job_id}: its prompt is no JSON object")
    return data


def next_due(context: RedisContext, role: str) -> datetime | None:
    """Return when the next delayed job is due, by this machine's clock, because the caller sleeps by it. The time may
    be past."""
    key = context.keys.due(context.check_role(role))
    try:
        paused, found = context.client.calls([("HGET", context.keys.paused, role), ("ZRANGE", key, 0, 0, "WITHSCORES")])
    except TryAgain:
        return None  # the caller waits next, and meets the error there
    return from_ms(int(float(found[1]))) - context.clock_offset if found and not paused else None
