"""Claiming in the Redis store: one script takes the next job; the attempt's folder is made on this machine.

Order and tags are the script's; what a claim makes of a lifecycle is kernel.moves', folded in by records.

A crash after the script leaves the job in this agent's hands until its lease is over; recovery counts the attempt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from farro.errors import Damaged, IllegalTransition, StorageTrouble, TryAgain
from farro.kernel.envelope import SCHEMA_VERSION, Envelope, Lifecycle
from farro.kernel.outcome import Released
from farro.ports.store import Agent, Claim, LateClaim
from farro.ports.workspace import Material
from farro.stores.redis import changing, commit
from farro.stores.redis.ground import Ground, agent_lost
from farro.stores.redis.records import folded, material, milliseconds, moment, pairs


def claim(ground: Ground, agent: Agent) -> Claim | None:
    assert agent.role is not None, "an agent without a role holds jobs, it does not claim them"
    tags = ",".join(sorted(agent.tags))
    policy = ground.policy.policy_version(agent.role) or ""
    if ground.lost:
        for job_id in ground.lost.pop(agent.id, ()):
            ground.workspace.end(agent.id, job_id)
    while True:
        corr = f"{ground.random_bits(128):032x}"
        answer = ground.server.run(
            ground.scripts.claim, ground.time(), agent.id, agent.role, tags, corr, policy, SCHEMA_VERSION
        )
        match answer[0]:
            case b"ok":
                break
            case b"none":
                ground.beats[agent.id] = ground.clock.monotonic_s()
                return None
            case b"lost":
                raise agent_lost(agent)
            case b"foreign":
                ground.tell_foreign(answer[1].decode())
    _, job_id, life, prompt, attempt, at, policy_at, stored = answer
    at_ms = int(at)
    ground.heard(at_ms)
    ground.beats[agent.id] = ground.clock.monotonic_s()
    try:
        before = Lifecycle.from_json(life)
        lifecycle = folded(before, agent.id, int(attempt), corr, at_ms, policy_at.decode())
    except (Damaged, IllegalTransition) as error:
        changing.put_aside(ground, agent.id, job_id.decode(), error)
        return None
    return begun(ground, agent, lifecycle, prompt, pairs(stored) if stored else {})


def begun(ground: Ground, agent: Agent, lifecycle: Lifecycle, prompt: bytes, stored: Mapping[bytes, bytes]) -> Claim:
    """The claim, with its folder. A machine that cannot make one hands the job back."""
    ground.tell(lifecycle)
    data: Mapping[str, Any] = json.loads(prompt)
    attempt = lifecycle.attempt
    envelope = Envelope(prompt=data, lifecycle=lifecycle)
    try:
        if not stored:
            bare = Material(lifecycle=lifecycle.to_json(), prompt=prompt)
            place, make = ground.workspace.promise(agent.id, lifecycle.job_id, attempt, bare)
            return LateClaim(
                agent=agent, envelope=envelope, attempt=attempt, folder=place, scope=ground.scope, make=make
            )
        made = Claim(agent=agent, envelope=envelope, attempt=attempt, folder="", scope=ground.scope)
        whole = material(lifecycle, prompt, stored)
        made.folder = ground.workspace.begin(agent.id, lifecycle.job_id, attempt, whole)
    except OSError as error:
        made = Claim(agent=agent, envelope=envelope, attempt=attempt, folder="", scope=ground.scope)
        commit.commit(ground, made, Released(note="no folder could be made for it"), None)
        raise StorageTrouble(
            f"{error.filename or 'the workspace'}: {error.strerror or error}: no folder for an attempt could be made; "
            f"{lifecycle.job_id} went back to its queue. Free space there, then try again"
        ) from error
    return made


def next_due(ground: Ground, role: str) -> datetime | None:
    now_ms = milliseconds(ground.now())
    key = ground.keys.due(ground.check_role(role))
    try:
        found = ground.server.call("ZRANGEBYSCORE", key, f"({now_ms}", "+inf", "WITHSCORES", "LIMIT", 0, 1)
    except TryAgain:
        return None  # whoever asks is about to wait, and finds out
    return moment(int(float(found[1]))) if found else None
