"""Recover the jobs of dead agents: one pass of a watchdog. Any number may run at once, and every step can be repeated.

An agent is dead when its lease is over by the server's clock, or when it left. It is first fenced, then its jobs are
decided one by one by compare-and-swap, then it is removed. If a watchdog dies in between, the next one goes on.
[test_two_watchdogs_at_once_do_everything_once]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farro.errors import Damaged, IllegalTransition
from farro.jobs import moves
from farro.jobs.envelope import SCHEMA_VERSION
from farro.jobs.moves import Move
from farro.jobs.outcomes import ErrorInfo
from farro.jobs.states import Reason, Status
from farro.store.port import Agent, RecoveryAction, marker
from farro.store.redis import decisions, unblock
from farro.store.redis.context import RedisContext, agent_lost
from farro.store.redis.records import JobRecord, json_object


def recover(context: RedisContext, agent: Agent) -> list[RecoveryAction]:
    answer = context.client.run(context.scripts.survey, context.script_time(), agent.id, SCHEMA_VERSION)
    if answer[0] == b"lost":
        raise agent_lost(agent)
    context.last_heard_s[agent.id] = context.clock.monotonic_s()
    _, dead, marked, todo = answer
    done: list[RecoveryAction] = []
    for job_id in marked[::2]:
        done += _collect_marked(context, agent, job_id.decode())
    for agent_id, about, jobs in dead:
        done += _recover_agent(
            context, agent, agent_id.decode(), json_object(about), sorted(job.decode() for job in jobs)
        )
    if todo:
        for job_id, what in unblock.unblock(context, agent.id, [job.decode() for job in todo[::2]]):
            done.append(RecoveryAction(job_id=job_id, agent=agent.id, what=what))
    for gone in context.workspace.sweep():
        done.append(RecoveryAction(job_id=None, agent=gone, what="swept"))
    for item in done:
        if item.what not in ("stale", "unblocked", "dependency_failed"):  # transitions are logged where they happen
            _audit(context, agent, item)
    return done


def _recover_agent(
    context: RedisContext, agent: Agent, dead: str, about: Mapping[str, Any], jobs: Sequence[str]
) -> list[RecoveryAction]:
    done: list[RecoveryAction] = []
    if context.client.run(context.scripts.fence, context.script_time(), dead) == 1:
        done.append(RecoveryAction(job_id=None, agent=dead, what="silent_killed"))
    record = [job for job in context.read_jobs(jobs) if job is not None and job.owner == dead]
    identity = about.get("identity") or {}
    own = context.identity()
    if record and own.get("boot_id") and own.get("boot_id") == identity.get("boot_id"):
        context.reap([marker(job.job_id, job.attempts, context.scope) for job in record], {**identity, "agent": dead})
    for job in record:
        done += (
            _collect_marked(context, agent, job.job_id)
            if job.place == "marked"
            else mark_stale(context, agent, job, f"agent {dead} died during attempt {job.attempts}")
        )
    if context.client.run(context.scripts.forget, context.script_time(), dead) == 1:
        done.append(RecoveryAction(job_id=None, agent=dead, what="agent_removed"))
    return done


def mark_stale(context: RedisContext, agent: Agent, record: JobRecord, why: str) -> list[RecoveryAction]:
    """Mark an attempt stale whose agent is dead, or does not know of it. If the job changed meanwhile, it is no longer
    that agent's."""
    try:
        before = record.lifecycle
    except (Damaged, IllegalTransition) as damage:
        decisions.quarantine(context, agent.id, record.job_id, damage)
        return []
    if before.status is not Status.IN_PROGRESS:
        return []
    died = ErrorInfo(category="agent_died", message=why)
    move = Move(reason=Reason.AGENT_DIED, status=Status.STALE, role=before.role, error=died)
    after = moves.decided(before, move, by=agent.id, attempt=record.attempts, now=context.now())
    if decisions.compare_and_swap(context, agent, record, after, record.attempts) is None:
        return []
    return [RecoveryAction(job_id=record.job_id, agent=record.owner, what="stale")]


def _collect_marked(context: RedisContext, agent: Agent, job_id: str) -> list[RecoveryAction]:
    """Move a job that its agent marked stale to the stale jobs."""
    (record,) = context.read_jobs([job_id])
    if record is None or record.place != "marked":
        return []
    event = {"event": "recovered", "actor": agent.id, "job_id": job_id, "what": "rolled_forward", "agent": record.owner}
    try:
        marked = record.lifecycle
    except Damaged as damage:  # one unreadable job must not stop the recovery of others
        decisions.quarantine(context, agent.id, job_id, damage)
        return []
    if decisions.compare_and_swap(context, agent, record, marked, record.attempts, event=event) is None:
        return []
    return [RecoveryAction(job_id=job_id, agent=record.owner, what="rolled_forward")]


def _audit(context: RedisContext, agent: Agent, item: RecoveryAction) -> None:
    codes = {"actor": agent.id, "job_id": item.job_id, "what": item.what, "agent": item.agent}
    context.audit("recovered", **codes)
    if item.what != "rolled_forward":  # the script wrote that line to the common log
        context.write_audit("recovered", codes)
