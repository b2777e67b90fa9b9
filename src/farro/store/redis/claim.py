"""Claiming in the Redis store: one script takes the next job; the attempt's folder is made on this machine.

Order and tags are the script's; what a claim makes of a lifecycle is kernel.moves', folded in by records.

A crash after the script leaves the job in this agent's hands until its lease is over; recovery counts the attempt.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from farro.errors import Damaged, IllegalTransition, StorageTrouble, TryAgain, UnknownSchema
from farro.jobs import audit_fields
from farro.jobs.envelope import SCHEMA_VERSION, Envelope, Lifecycle
from farro.jobs.outcomes import NO_REPORT, ErrorInfo, Failed, Released
from farro.log.audit import tell_all
from farro.store.port import Agent, Claim, LazyFolderClaim
from farro.store.redis import commit, edit, recover
from farro.store.redis.context import Ground, agent_lost
from farro.store.redis.records import folded, line, material, milliseconds, moment, pairs
from farro.store.redis.server import Arg
from farro.store.workspace import JobFiles


def claim(ground: Ground, agent: Agent) -> Claim | None:
    found = claim_batch(ground, agent, 1)
    return found[0] if found else None


def claim_batch(ground: Ground, agent: Agent, limit: int) -> list[Claim]:
    return asked(ground, agent, limit, lambda args: ground.server.run(ground.scripts.claim, *args))


def claim_or_wait(ground: Ground, agent: Agent, limit: int, timeout_s: float, ear: socket.socket) -> list[Claim]:
    """The same, when something has come. The request waits in the server, which claims as soon as it is told of an
    entry: that a worker hears of it, and asks, would be a trip more, and where every reply waits for the disk a sync. A
    worker that dies meanwhile claims nothing: its connection is gone. Should that not be seen (a machine without
    power), it is as if it had died with the job in its hands.

    One of those without tags is woken for a job: the server serves who has waited longest. Of a delayed one it learns
    when that is due, and waits on behind the others; so these are given jobs, and learn of it, before it is away with
    one itself. Who offers tags hears of every entry, for only it knows what fits.
    [test_one_worker_is_woken_for_a_job, test_who_is_woken_wakes_the_next_where_jobs_are_left,
    test_a_delayed_job_is_begun_in_time_whoever_heard_of_it]"""
    script, role = ground.scripts.claim, agent.role or ""
    until_s = ground.clock.monotonic_s() + timeout_s
    rung = True

    def ask(args: Sequence[Arg]) -> Any:
        nonlocal rung
        bell: tuple[Arg, ...] = ("BZPOPMIN", ground.keys.bell(role), wait_ms / 1000)
        if agent.tags:
            bell = ("XREAD", "COUNT", 1, "BLOCK", wait_ms, "STREAMS", ground.keys.feed(role), fed)
        answer = ground.server.ring(bell, script, *args, wait_s=wait_ms / 1000, ear=ear)
        rung = answer is not None
        return answer if rung else ground.server.run(script, *args, again=True)

    while True:
        idle = ground.idle.pop(agent.id, None)
        if idle is None:
            return claim_batch(ground, agent, limit)
        fed, due = idle
        left_s = until_s - ground.clock.monotonic_s()
        if due is not None:
            left_s = min(left_s, (due - milliseconds(ground.now())) / 1000)
        wait_ms = max(1, int(left_s * 1000) + 1)  # 0 would be for ever
        found = asked(ground, agent, limit, ask)
        if found or not rung or ground.clock.monotonic_s() >= until_s:
            return found  # else another was quicker


def asked(ground: Ground, agent: Agent, limit: int, ask: Callable[[Sequence[Arg]], Any]) -> list[Claim]:
    """Claims. `ask` sends the first request; should it take another, that goes by itself."""
    assert agent.role is not None, "an agent without a role holds jobs, it does not claim them"
    tags = ",".join(sorted(agent.tags))
    policy = ground.policy.policy_version(agent.role) or ""
    if ground.lost:
        for job_id in ground.lost.pop(agent.id, ()):
            ground.workspace.end(agent.id, job_id)
    own = ground.claims.setdefault(agent.id, set())
    while True:
        corrs = f"{ground.random_bits(128 * limit):0{32 * limit}x}"
        nonces = [corrs[start : start + 32] for start in range(0, 32 * limit, 32)]
        own.update(nonces)
        answer: Sequence[Any] = ()
        try:
            answer = ask((ground.time(), agent.id, agent.role, tags, corrs, policy, SCHEMA_VERSION, limit))
        finally:  # of a call that failed: should the server have done it, nobody here knows
            taken = answer[3:] if answer and answer[0] == b"ok" else ()
            own.difference_update(nonces[len(taken) :])
        ask = lambda args: ground.server.run(ground.scripts.claim, *args)  # noqa: E731
        match answer[0]:
            case b"ok":
                made = _all_taken(ground, agent, taken)
                if answer[1] > len(own):
                    _disown(ground, agent, own)
                if answer[2]:
                    ground.tell_foreign(answer[2].decode())
                if made:
                    return made
            case b"none":
                ground.beats[agent.id] = ground.clock.monotonic_s()
                if answer[1] > len(own):
                    _disown(ground, agent, own)
                ground.idle[agent.id] = answer[2], int(float(answer[3])) if answer[3] else None
                return []
            case b"lost":
                raise agent_lost(agent)
            case b"foreign":
                ground.tell_foreign(answer[1].decode())


def _all_taken(ground: Ground, agent: Agent, jobs: Sequence[Sequence[Any]]) -> list[Claim]:
    """Where a folder cannot be made all go back: one that it was to be made for has, and so would the next."""
    made: list[Claim] = []
    trouble: StorageTrouble | None = None
    if jobs:
        ground.heard(int(jobs[0][4]))
        ground.beats[agent.id] = ground.clock.monotonic_s()
    for job in jobs:
        try:
            claimed = _taken(ground, agent, job)
        except StorageTrouble as error:
            trouble = error
        else:
            made += [] if claimed is None else [claimed]
    if trouble is not None:
        if made:
            hand_back(ground, made)
        raise trouble
    return made


def _taken(ground: Ground, agent: Agent, job: Sequence[Any]) -> Claim | None:
    """A job that the script gave. None: it cannot be read, and is out of everybody's way now."""
    job_id, life, prompt, attempt, at, policy_at, stored, nonce, score = job
    corr = nonce.decode()
    try:
        before = Lifecycle.from_json(life)
        lifecycle = folded(before, agent.id, int(attempt), corr, int(at), policy_at.decode())
    except (Damaged, IllegalTransition) as error:
        edit.put_aside(ground, agent.id, job_id.decode(), error)
        if not isinstance(error, UnknownSchema):  # that one stays in its hands
            ground.claims[agent.id].discard(corr)
        return None
    try:
        made = begun(ground, agent, lifecycle, prompt, pairs(stored) if stored else {})
    except Damaged as error:
        ground.log("critical", "a job that cannot be read has failed", {"job_id": job_id.decode(), "why": str(error)})
        return None
    made.envelope.runtime = score
    return made


def hand_back(ground: Ground, claims: Sequence[Claim]) -> None:
    """Those that were not begun. Each is told as what it is: handed back, of an attempt that does not count."""
    agent, args = claims[0].agent, [(each, audit_fields.handed_back(each.envelope.lifecycle)) for each in claims]
    sent: list[Arg] = []
    for each, codes in args:
        if each.envelope.runtime:
            sent += (each.job_id, each.attempt, each.envelope.runtime, line(codes))
    if sent:
        ground.server.run(ground.scripts.unclaim, ground.time(), agent.id, len(sent) // 4, *sent, waits=True)
    for each, codes in args:
        if not each.envelope.runtime:  # its place was lost with the first answer
            commit.commit(ground, each, Released(note="not begun"), None)
            continue
        ground.claims.get(agent.id, set()).discard(each.envelope.lifecycle.correlation_id or "")
        ground.workspace.end(agent.id, each.job_id)
        tell_all(ground.audit, [codes])


def _disown(ground: Ground, agent: Agent, own: Collection[str]) -> None:
    """Jobs that the server says are in this agent's hands, by claims that it does not know of: the server lost their
    commits, by a crash or a failover, or the agent lost an answer. While it lives nobody else would recover them."""
    held = pairs(ground.server.call("HGETALL", ground.keys.held(agent.id)))
    unknown = {job_id.decode() for job_id, corr in held.items() if corr.decode() not in own}
    for seen in ground.look(sorted(unknown)):
        if seen is not None and seen.wh == "held" and seen.own == agent.id:
            ground.log("warning", "the server lost what became of an attempt", {"job_id": seen.job_id})
            recover.stale(ground, agent, seen, f"the server lost what became of attempt {seen.attempts}")


def begun(ground: Ground, agent: Agent, lifecycle: Lifecycle, prompt: bytes, stored: Mapping[bytes, bytes]) -> Claim:
    """The claim, with its folder. A machine that cannot make one hands the job back. Damaged: what is stored of it
    cannot be read by anyone, so it has failed."""
    ground.tell(lifecycle)
    attempt = lifecycle.attempt
    envelope: Envelope[Mapping[str, Any]] = Envelope(prompt={}, lifecycle=lifecycle)
    made = Claim(agent=agent, envelope=envelope, attempt=attempt, folder="", scope=ground.scope)
    try:
        envelope.prompt = _prompt(lifecycle.job_id, prompt)
        if not stored:
            bare = lambda: JobFiles(lifecycle=lifecycle.to_json(), prompt=prompt)  # noqa: E731
            place, make = ground.workspace.promise(agent.id, lifecycle.job_id, attempt, bare)
            return LazyFolderClaim(
                agent=agent, envelope=envelope, attempt=attempt, folder=place, scope=ground.scope, make=make
            )
        whole = material(lifecycle, prompt, stored)
        made.folder = ground.workspace.begin(agent.id, lifecycle.job_id, attempt, whole)
    except Damaged as error:
        why = ErrorInfo(category="damaged", message=str(error))
        commit.commit(ground, made, Failed(error=why, report=NO_REPORT), None)
        raise
    except (OSError, StorageTrouble) as error:
        commit.commit(ground, made, Released(note="no folder could be made for it"), None)
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


def next_due(ground: Ground, role: str) -> datetime | None:
    """In this machine's time: whoever asks sleeps by that. What fell due since the last claim is told too."""
    key = ground.keys.due(ground.check_role(role))
    try:
        paused, found = ground.server.calls([("HGET", ground.keys.paused, role), ("ZRANGE", key, 0, 0, "WITHSCORES")])
    except TryAgain:
        return None  # whoever asks is about to wait, and finds out
    return moment(int(float(found[1]))) - ground.ahead if found and not paused else None
