"""Agents of the file store: joining with a lease, heartbeats, leaving, and how others see them.

What a dead agent's jobs become lives in recover.
"""

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
from farro.store.files.context import Ground, Held
from farro.store.port import Agent, AgentView, Claim

LEASE = ".lease"
# A link that says the agent's name. The lock of each job that it claims is a second name of it: nothing is made and
# nothing freed for a claim (docs/decisions/small-jobs-go-in-batches.md).
LOCK = ".lock"
BEAT_EVERY_S = 10.0


def join(ground: Ground, name: str, *, role: str | None, slot: int, tags: Collection[str]) -> Agent:
    """Build and lock the agent's folder in staging, then rename it in: it appears already leased (R3).

    Test: test_an_agent_appears_already_leased. A crash before the rename leaves debris that staging clean-up removes.
    """
    if role is not None:
        ground.check_role(role)
    agent = Agent(id=ids.agent_id(name, slot, ground.random_bits), role=role, tags=frozenset(map(ids.check_tag, tags)))
    staged = f"{ground.staging}/{agent.id}"
    folder = f"{ground.holds if role is None else ground.in_progress(role)}/{agent.id}"
    identity = {**ground.identity(), "started_at": timestamp(ground.clock.now())}
    if agent.tags:
        identity["tags"] = sorted(agent.tags)  # so that others can tell what nobody offers
    content = json.dumps(identity).encode() + b"\n"

    def build() -> leases.Lease:
        trees.remove_tree(staged)  # what a failed try left
        fs.mkdir(staged)
        lease = leases.create(f"{staged}/{LEASE}", content)
        try:
            if role is not None:
                fs.symlink(agent.id, f"{staged}/{LOCK}")
            fs.move(staged, folder)
            # Jobs will be moved in here. A power cut that keeps such a move must keep the folder too, else the job is
            # found in staging, among the debris. Once in an agent's life.
            ground.sync([folder.rsplit("/", 1)[0]])
        except BaseException:
            lease.drop()
            raise
        return lease

    lease = fs.retried(build, staged, ground.clock.sleep)
    with ground.lock:
        ground.held[agent.id] = Held(agent=agent, lease=lease, folder=folder)
    return agent


def leave(ground: Ground, agent: Agent) -> None:
    """End an agent. Its folder goes when it is empty; a folder without a lease file is a dead agent's."""
    with ground.lock:
        held = ground.held.pop(agent.id, None)
    if held is None:
        return
    with contextlib.suppress(OSError):
        if not fs.subdirectories(held.folder):
            remove_folder(held.folder)
    held.lease.drop()


def remove_folder(folder: str) -> None:
    for name in (LOCK, LEASE):
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(f"{folder}/{name}")
    try:
        fs.rmdir(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise


def heartbeat(ground: Ground, agent: Agent, claim: Claim | None) -> None:
    """The lease file's time changes every ten seconds; the folders are looked at every time, so that a job that was
    killed is noticed at the next turn."""
    held = ground.mine(agent)
    now_s = ground.clock.monotonic_s()
    # Several beats in every `stale_after`: with a fixed ten seconds a shorter setting had healthy agents killed.
    if now_s - held.last_beat_s >= min(BEAT_EVERY_S, ground.policy.stale_after_s / 4):
        held.lease.beat()
        held.last_beat_s = now_s
    if claim is not None and not (
        held.claims.get(claim.job_id) == claim.attempt and fs.exists(f"{held.folder}/{claim.job_id}")
    ):
        raise ClaimLost(f"{claim.job_id}: taken from {agent.id} (recovered or killed)")
    if not held.lease.stands():
        raise AgentLost(f"{agent.id} was declared dead; the slot joins again under a new name")


def views(ground: Ground) -> list[AgentView]:
    found = []
    for role in (None, *ground.roles()):
        home = ground.holds if role is None else ground.in_progress(role)
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
