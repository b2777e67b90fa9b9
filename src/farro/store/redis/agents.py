"""Manage agents by leases: deadlines in the server, which every call of the agent renews.

- An agent is alive until its deadline, by the server's clock. After that it can change nothing that it held, even if
  its process lives: it is fenced. [test_an_agent_whose_lease_is_over_is_fenced_though_it_lives]
- An agent that held no job may renew late, until it is removed: no job can have been taken from it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection

from farro.errors import TryAgain
from farro.jobs import ids
from farro.jobs.times import timestamp
from farro.store.port import Agent, AgentView, Claim
from farro.store.redis.context import RedisContext, agent_lost, claim_lost
from farro.store.redis.records import json_object

PATIENCE_S = 1.0  # limit for calls that must delay neither a worker nor its end while the server is away
LOOK_S = 1.0  # how often a worker checks at most whether its job is still its own; a kill is noticed within this time


def join(context: RedisContext, name: str, *, role: str | None, slot: int, tags: Collection[str]) -> Agent:
    if role is not None:
        context.check_role(role)
    agent = Agent(id=ids.agent_id(name, slot, context.random_bits), role=role, tags=frozenset(map(ids.check_tag, tags)))
    identity = {**context.identity(), "started_at": timestamp(context.clock.now())}
    about: dict[str, object] = {"role": role, "tags": sorted(agent.tags), "identity": identity}
    if role is not None:
        connection = context.client.name_connections(f"farro-{context.token()}")
        if connection is not None:
            about["connection"] = connection
    context.note_server_time(
        int(context.client.run(context.scripts.join, context.script_time(), agent.id, json.dumps(about)))
    )
    context.last_heard_s[agent.id] = context.clock.monotonic_s()
    return agent


def leave(context: RedisContext, agent: Agent) -> None:
    context.last_heard_s.pop(agent.id, None)
    context.open_claims.pop(agent.id, None)
    context.lost_jobs.pop(agent.id, None)
    context.empty_claims.pop(agent.id, None)
    with contextlib.suppress(TryAgain):  # if the server is away, the lease ends by itself
        heard = "" if agent.tags else agent.role or ""  # only agents without tags wait at the role's bell
        context.client.run(context.scripts.leave, context.script_time(), agent.id, heard, patience_s=PATIENCE_S)
    context.workspace.leave(agent.id)


def heartbeat(context: RedisContext, agent: Agent, claim: Claim | None) -> None:
    """Renew the agent's lease and check its claim. Skip the round trip while the last one is recent."""
    now_s = context.clock.monotonic_s()
    every_s = context.lease_s / 3 if context.beat_s is None else context.beat_s
    if now_s - context.last_heard_s.get(agent.id, float("-inf")) < (every_s if claim is None else min(every_s, LOOK_S)):
        return
    job = ("", 0) if claim is None else (claim.job_id, claim.attempt)
    try:
        answer = context.client.run(context.scripts.beat, context.script_time(), agent.id, *job, patience_s=PATIENCE_S)
    except TryAgain as error:
        # A server that is away ends no attempt. If the lease is over when it is back, it refuses the commit.
        context.log("warning", "the server did not hear this heartbeat", {"agent": agent.id, "why": str(error)})
        context.last_heard_s[agent.id] = context.clock.monotonic_s() - every_s + PATIENCE_S
        return
    if answer == b"taken":
        assert claim is not None
        context.open_claims.get(agent.id, set()).discard(claim.envelope.lifecycle.correlation_id or "")
        context.lost_jobs.setdefault(agent.id, []).append(
            claim.job_id
        )  # its processes may still run; the next claim removes the folder
        raise claim_lost(claim.job_id, agent)
    if answer == b"lost":
        raise agent_lost(agent)
    context.last_heard_s[agent.id] = now_s


def views(context: RedisContext) -> list[AgentView]:
    found = []
    for agent_id, about, alive, jobs in context.client.run(context.scripts.agents, context.script_time()):
        fields = json_object(about)
        found.append(
            AgentView(
                id=agent_id.decode(),
                role=fields.get("role"),
                alive=alive == 1,
                jobs=tuple(sorted(job.decode() for job in jobs)),
                identity=fields.get("identity") or {},
            )
        )
    return found
