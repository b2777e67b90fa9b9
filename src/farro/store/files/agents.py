"""Agents of the file store: join with a lease, send heartbeats, leave, list."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Collection, Mapping
from typing import Any

from farro.errors import AgentLost, ClaimLost
from farro.host import fs, leases, trees
from farro.jobs import ids
from farro.jobs.times import timestamp
from farro.store.files.context import FilesContext, LocalAgent
from farro.store.port import Agent, AgentView, Claim

LEASE = ".lease"
# A symbolic link whose target is the agent's name. The lock of each job that the agent claims is a hard link to it, so
# a claim allocates and frees no inode (docs/decisions/small-jobs-go-in-batches.md).
LOCK = ".lock"
BEAT_EVERY_S = 10.0


def join(context: FilesContext, name: str, *, role: str | None, slot: int, tags: Collection[str]) -> Agent:
    """Build and lock the agent's folder in staging, then rename it into place, so that it appears already leased (R3).

    A crash before the rename leaves debris that staging clean-up removes. [test_an_agent_appears_already_leased]
    """
    if role is not None:
        context.check_role(role)
    agent = Agent(id=ids.agent_id(name, slot, context.random_bits), role=role, tags=frozenset(map(ids.check_tag, tags)))
    staged = f"{context.staging}/{agent.id}"
    folder = f"{context.holds if role is None else context.in_progress(role)}/{agent.id}"
    identity = {**context.identity(), "started_at": timestamp(context.clock.now())}
    if agent.tags:
        identity["tags"] = sorted(agent.tags)  # so that other processes can report tags that no worker has
    content = json.dumps(identity).encode() + b"\n"

    def build() -> leases.Lease:
        trees.remove_tree(staged)  # left by a failed try
        fs.mkdir(staged)
        lease = leases.create(f"{staged}/{LEASE}", content)
        try:
            if role is not None:
                fs.symlink(agent.id, f"{staged}/{LOCK}")
            fs.move(staged, folder)
            # Jobs will be moved into this folder. A power cut that keeps such a move must keep the folder too, else the
            # job is found among the debris in staging. This costs one sync per agent.
            context.sync([folder.rsplit("/", 1)[0]])
        except BaseException:
            lease.drop()
            raise
        return lease

    lease = fs.retried(build, staged, context.clock.sleep)
    with context.lock:
        context.local_agents[agent.id] = LocalAgent(agent=agent, lease=lease, folder=folder)
    return agent


def leave(context: FilesContext, agent: Agent) -> None:
    """Remove the agent and, if it is empty, its folder. A folder without a lease file belongs to a dead agent."""
    with context.lock:
        owner = context.local_agents.pop(agent.id, None)
    if owner is None:
        return
    with contextlib.suppress(OSError):
        if not fs.subdirectories(owner.folder):
            remove_folder(owner.folder)
    owner.lease.drop()


def remove_folder(folder: str) -> None:
    for name in (LOCK, LEASE):
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(f"{folder}/{name}")
    try:
        fs.rmdir(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise


def heartbeat(context: FilesContext, agent: Agent, claim: Claim | None) -> None:
    """Touch the lease file every ten seconds. Check the folders on every call, so that the worker notices a killed job
    at its next turn."""
    owner = context.local_agent(agent)
    now_s = context.clock.monotonic_s()
    # Several beats within `stale_after_s`: with a fixed ten seconds a shorter setting killed healthy agents.
    if now_s - owner.last_beat_s >= min(BEAT_EVERY_S, context.policy.stale_after_s / 4):
        owner.lease.beat()
        owner.last_beat_s = now_s
    if claim is not None and not (
        owner.claims.get(claim.job_id) == claim.attempt and fs.exists(f"{owner.folder}/{claim.job_id}")
    ):
        raise ClaimLost(f"{claim.job_id} no longer belongs to {agent.id}: it was recovered or killed")
    if not owner.lease.stands():
        raise AgentLost(f"{agent.id} was declared dead; the slot joins again under a new name")


def views(context: FilesContext) -> list[AgentView]:
    found = []
    for role in (None, *context.roles()):
        home = context.holds if role is None else context.in_progress(role)
        for name in sorted(fs.subdirectories(home)):
            folder = f"{home}/{name}"
            found.append(
                AgentView(
                    id=name,
                    role=role,
                    alive=leases.is_held(f"{folder}/{LEASE}"),
                    jobs=tuple(sorted(filter(ids.is_job_id, fs.subdirectories(folder)))),
                    identity=read_identity(folder),
                )
            )
    return found


def read_identity(folder: str) -> Mapping[str, Any]:
    try:
        data = json.loads(fs.read_bytes(f"{folder}/{LEASE}", 64 * 1024))  # tags may be many
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
