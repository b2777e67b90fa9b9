"""Agents of the Redis store: a lease is a deadline in the server, renewed by every call of its agent.

What becomes of a dead agent's jobs lives in recover.

- An agent is alive until its deadline, by the server's clock. After that it can change nothing of what it held, though
  its process may live: it is fenced. [test_an_agent_whose_lease_is_over_is_fenced_though_it_lives]
- One that held nothing may be late, while nobody removed it: nothing can have been taken from it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection

from farro.errors import TryAgain
from farro.jobs import ids
from farro.jobs.times import timestamp
from farro.store.port import Agent, AgentView, Claim
from farro.store.redis.context import Ground, agent_lost, claim_lost
from farro.store.redis.records import record

PATIENCE_S = 1.0  # of what must not keep a worker from its work, nor from its end, while the server is away
LOOK_S = 1.0  # how often a worker at most asks whether its job is still its own: a kill is seen within this


def join(ground: Ground, name: str, *, role: str | None, slot: int, tags: Collection[str]) -> Agent:
    if role is not None:
        ground.check_role(role)
    agent = Agent(id=ids.agent_id(name, slot, ground.random_bits), role=role, tags=frozenset(map(ids.check_tag, tags)))
    identity = {**ground.identity(), "started_at": timestamp(ground.clock.now())}
    about = {"role": role, "tags": sorted(agent.tags), "identity": identity}
    ground.heard(int(ground.server.run(ground.scripts.join, ground.time(), agent.id, json.dumps(about))))
    ground.beats[agent.id] = ground.clock.monotonic_s()
    return agent


def leave(ground: Ground, agent: Agent) -> None:
    ground.beats.pop(agent.id, None)
    ground.claims.pop(agent.id, None)
    ground.lost.pop(agent.id, None)
    ground.idle.pop(agent.id, None)
    with contextlib.suppress(TryAgain):  # a server that is away: its lease ends by itself
        heard = "" if agent.tags else agent.role or ""  # whose bell
        ground.server.run(ground.scripts.leave, ground.time(), agent.id, heard, patience_s=PATIENCE_S)
    ground.workspace.leave(agent.id)


def heartbeat(ground: Ground, agent: Agent, claim: Claim | None) -> None:
    """No round trip while the server has heard of the agent lately."""
    now_s = ground.clock.monotonic_s()
    every_s = ground.lease_s / 3 if ground.beat_s is None else ground.beat_s
    if now_s - ground.beats.get(agent.id, float("-inf")) < (every_s if claim is None else min(every_s, LOOK_S)):
        return
    job = ("", 0) if claim is None else (claim.job_id, claim.attempt)
    try:
        answer = ground.server.run(ground.scripts.beat, ground.time(), agent.id, *job, patience_s=PATIENCE_S)
    except TryAgain as error:
        # A server that is away ends no attempt: should the lease be over when it is back, the commit is refused.
        ground.log("warning", "the server did not hear this heartbeat", {"agent": agent.id, "why": str(error)})
        ground.beats[agent.id] = ground.clock.monotonic_s() - every_s + PATIENCE_S
        return
    if answer == b"taken":
        assert claim is not None
        ground.claims.get(agent.id, set()).discard(claim.envelope.lifecycle.correlation_id or "")
        ground.lost.setdefault(agent.id, []).append(claim.job_id)  # its processes may live: removed with the next claim
        raise claim_lost(claim.job_id, agent)
    if answer == b"lost":
        raise agent_lost(agent)
    ground.beats[agent.id] = now_s


def views(ground: Ground) -> list[AgentView]:
    found = []
    for agent_id, about, alive, jobs in ground.server.run(ground.scripts.agents, ground.time()):
        told = record(about)
        found.append(
            AgentView(
                id=agent_id.decode(),
                role=told.get("role"),
                alive=alive == 1,
                jobs=tuple(sorted(job.decode() for job in jobs)),
                identity=told.get("identity") or {},
            )
        )
    return found
