"""Recovery in the Redis store: one pass of a watchdog. Any number may run at once; every step can be repeated.

An agent is dead when its lease is over by the server's clock, or when it left. It is fenced first, then its jobs are
decided one by one, each by compare and swap, then it is removed: a watchdog that dies in between leaves the rest to the
next. [test_two_watchdogs_at_once_do_everything_once]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farro.errors import Damaged, IllegalTransition
from farro.jobs import transitions
from farro.jobs.envelope import SCHEMA_VERSION
from farro.jobs.outcomes import ErrorInfo
from farro.jobs.states import Reason, Status
from farro.jobs.transitions import Move
from farro.store.port import Agent, RecoveryAction, marker
from farro.store.redis import edit, unblock
from farro.store.redis.context import Ground, agent_lost
from farro.store.redis.records import Seen, record


def recover(ground: Ground, agent: Agent) -> list[RecoveryAction]:
    answer = ground.server.run(ground.scripts.survey, ground.time(), agent.id, SCHEMA_VERSION)
    if answer[0] == b"lost":
        raise agent_lost(agent)
    ground.beats[agent.id] = ground.clock.monotonic_s()
    _, dead, marked, todo = answer
    done: list[RecoveryAction] = []
    for job_id in marked[::2]:
        done += _collect(ground, agent, job_id.decode())
    for agent_id, about, jobs in dead:
        done += _bury(ground, agent, agent_id.decode(), record(about), sorted(job.decode() for job in jobs))
    if todo:
        for job_id, what in unblock.look_at(ground, agent.id, [job.decode() for job in todo[::2]]):
            done.append(RecoveryAction(job_id=job_id, agent=agent.id, what=what))
    for gone in ground.workspace.sweep():
        done.append(RecoveryAction(job_id=None, agent=gone, what="swept"))
    for item in done:
        if item.what not in ("stale", "unblocked", "dependency_failed"):  # transitions, told where they happen
            _note(ground, agent, item)
    return done


def _bury(
    ground: Ground, agent: Agent, dead: str, about: Mapping[str, Any], jobs: Sequence[str]
) -> list[RecoveryAction]:
    done: list[RecoveryAction] = []
    if ground.server.run(ground.scripts.fence, ground.time(), dead) == 1:
        done.append(RecoveryAction(job_id=None, agent=dead, what="silent_killed"))
    seen = [job for job in ground.look(jobs) if job is not None and job.own == dead]
    identity = about.get("identity") or {}
    own = ground.identity()
    if seen and own.get("boot_id") and own.get("boot_id") == identity.get("boot_id"):
        ground.reap([marker(job.job_id, job.attempts, ground.scope) for job in seen], {**identity, "agent": dead})
    for job in seen:
        done += (
            _collect(ground, agent, job.job_id)
            if job.wh == "marked"
            else stale(ground, agent, job, f"agent {dead} died during attempt {job.attempts}")
        )
    if ground.server.run(ground.scripts.forget, ground.time(), dead) == 1:
        done.append(RecoveryAction(job_id=None, agent=dead, what="agent_removed"))
    return done


def stale(ground: Ground, agent: Agent, seen: Seen, why: str) -> list[RecoveryAction]:
    """The attempt of a dead agent, or of one that knows nothing of it. When somebody was quicker, it is no longer
    that agent's."""
    try:
        before = seen.lifecycle
    except (Damaged, IllegalTransition) as damage:
        edit.put_aside(ground, agent.id, seen.job_id, damage)
        return []
    if before.status is not Status.IN_PROGRESS:
        return []
    died = ErrorInfo(category="agent_died", message=why)
    move = Move(reason=Reason.AGENT_DIED, status=Status.STALE, role=before.role, error=died)
    after = transitions.decided(before, move, by=agent.id, attempt=seen.attempts, now=ground.now())
    if edit.put(ground, agent, seen, after, seen.attempts) is None:
        return []
    return [RecoveryAction(job_id=seen.job_id, agent=seen.own, what="stale")]


def _collect(ground: Ground, agent: Agent, job_id: str) -> list[RecoveryAction]:
    """A job that its agent marked stale where it lies: into everybody's sight."""
    (seen,) = ground.look([job_id])
    if seen is None or seen.wh != "marked":
        return []
    told = {"event": "recovered", "actor": agent.id, "job_id": job_id, "what": "rolled_forward", "agent": seen.own}
    try:
        marked = seen.lifecycle
    except Damaged as damage:  # of another version, or of nobody: it keeps no other job from being recovered
        edit.put_aside(ground, agent.id, job_id, damage)
        return []
    if edit.put(ground, agent, seen, marked, seen.attempts, told=told) is None:
        return []
    return [RecoveryAction(job_id=job_id, agent=seen.own, what="rolled_forward")]


def _note(ground: Ground, agent: Agent, item: RecoveryAction) -> None:
    codes = {"actor": agent.id, "job_id": item.job_id, "what": item.what, "agent": item.agent}
    ground.audit("recovered", **codes)
    if item.what != "rolled_forward":  # of that the common log has it from the script
        ground.write("recovered", codes)
