"""Claiming in the Redis store: one script takes the next job; the attempt's folder is made on this machine.

Order and tags are the script's; what a claim makes of a lifecycle is kernel.moves', folded in by records.

A crash after the script leaves the job in this agent's hands until its lease is over; recovery counts the attempt.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from farro.errors import Damaged, IllegalTransition, StorageTrouble, TryAgain, UnknownSchema
from farro.kernel.envelope import SCHEMA_VERSION, Envelope, Lifecycle
from farro.kernel.outcome import NO_REPORT, ErrorInfo, Failed, Released
from farro.ports.store import Agent, Claim, LateClaim
from farro.ports.workspace import Material
from farro.stores.redis import changing, commit, recover
from farro.stores.redis.ground import Ground, agent_lost
from farro.stores.redis.records import folded, material, moment, pairs


def claim(ground: Ground, agent: Agent) -> Claim | None:
    assert agent.role is not None, "an agent without a role holds jobs, it does not claim them"
    tags = ",".join(sorted(agent.tags))
    policy = ground.policy.policy_version(agent.role) or ""
    if ground.lost:
        for job_id in ground.lost.pop(agent.id, ()):
            ground.workspace.end(agent.id, job_id)
    own = ground.claims.setdefault(agent.id, set())
    while True:
        corr = f"{ground.random_bits(128):032x}"
        own.add(corr)
        try:
            answer = ground.server.run(
                ground.scripts.claim, ground.time(), agent.id, agent.role, tags, corr, policy, SCHEMA_VERSION
            )
        except BaseException:
            own.discard(corr)  # should the server have done it, nobody here knows
            raise
        if answer[0] != b"ok":
            own.discard(corr)
        match answer[0]:
            case b"ok":
                made = _taken(ground, agent, corr, answer)
                if answer[-1] > len(own):
                    _disown(ground, agent, own)
                if made is not None:
                    return made
            case b"none":
                ground.beats[agent.id] = ground.clock.monotonic_s()
                if answer[1] > len(own):
                    _disown(ground, agent, own)
                return None
            case b"lost":
                raise agent_lost(agent)
            case b"foreign":
                ground.tell_foreign(answer[1].decode())


def _taken(ground: Ground, agent: Agent, corr: str, answer: Sequence[Any]) -> Claim | None:
    """The job that the script gave. None: it cannot be read, and is out of everybody's way now."""
    _, job_id, life, prompt, attempt, at, policy_at, stored, _ = answer
    at_ms = int(at)
    ground.heard(at_ms)
    ground.beats[agent.id] = ground.clock.monotonic_s()
    try:
        before = Lifecycle.from_json(life)
        lifecycle = folded(before, agent.id, int(attempt), corr, at_ms, policy_at.decode())
    except (Damaged, IllegalTransition) as error:
        changing.put_aside(ground, agent.id, job_id.decode(), error)
        if not isinstance(error, UnknownSchema):  # that one stays in its hands
            ground.claims[agent.id].discard(corr)
        return None
    try:
        return begun(ground, agent, lifecycle, prompt, pairs(stored) if stored else {})
    except Damaged as error:
        ground.log("critical", "a job that cannot be read has failed", {"job_id": job_id.decode(), "why": str(error)})
        return None


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
    made = Claim(
        agent=agent,
        envelope=Envelope(prompt={}, lifecycle=lifecycle),
        attempt=attempt,
        folder="",
        scope=ground.scope,
    )
    try:
        made.envelope = Envelope(prompt=_prompt(lifecycle.job_id, prompt), lifecycle=lifecycle)
        if not stored:
            bare = Material(lifecycle=lifecycle.to_json(), prompt=prompt)
            place, make = ground.workspace.promise(agent.id, lifecycle.job_id, attempt, bare)
            return LateClaim(
                agent=agent, envelope=made.envelope, attempt=attempt, folder=place, scope=ground.scope, make=make
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
        found = ground.server.call("ZRANGE", key, 0, 0, "WITHSCORES")
    except TryAgain:
        return None  # whoever asks is about to wait, and finds out
    return moment(int(float(found[1]))) - ground.ahead if found else None
