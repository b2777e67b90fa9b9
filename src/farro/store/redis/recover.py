"""Recover the jobs of dead agents: one pass of a watchdog. Any number may run at once, and every step can be repeated.

An agent is dead when its lease is over by the server's clock, when it left, or when death_watch finds it. It is first
fenced, then its jobs are decided one by one by compare-and-swap, then it is removed. If a watchdog dies in between, the
next one goes on.
[test_two_watchdogs_at_once_do_everything_once]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from farro.errors import Damaged, IllegalTransition
from farro.jobs import moves
from farro.jobs.envelope import SCHEMA_VERSION
from farro.jobs.moves import Move
from farro.jobs.outcomes import ErrorInfo
from farro.jobs.states import Reason, Status
from farro.plans import after
from farro.plans.after import DependencyState
from farro.store.port import Agent, RecoveryAction, marker
from farro.store.redis import decisions, new_jobs
from farro.store.redis.client import Arg
from farro.store.redis.context import RedisContext, agent_lost
from farro.store.redis.records import JobRecord, json_object


def recover(context: RedisContext, agent: Agent) -> list[RecoveryAction]:
    done = _fence_early(context)
    answer = context.client.run(context.scripts.survey, context.script_time(), agent.id, SCHEMA_VERSION)
    if answer[0] == b"lost":
        raise agent_lost(agent)
    context.last_heard_s[agent.id] = context.clock.monotonic_s()
    _, dead, marked, todo = answer
    for job_id in marked[::2]:
        done += _collect_marked(context, agent, job_id.decode())
    for agent_id, about, jobs in dead:
        done += _recover_agent(
            context, agent, agent_id.decode(), json_object(about), sorted(job.decode() for job in jobs)
        )
    if todo:
        for job_id, what in unblock(context, agent.id, [job.decode() for job in todo[::2]]):
            done.append(RecoveryAction(job_id=job_id, agent=agent.id, what=what))
    for gone in context.workspace.sweep():
        done.append(RecoveryAction(job_id=None, agent=gone, what="swept"))
    for item in done:
        if item.what not in ("stale", "unblocked", "dependency_failed"):  # transitions are logged where they happen
            _audit(context, agent, item)
    return done


def _fence_early(context: RedisContext) -> list[RecoveryAction]:
    """Fence the agents that a death watch found; the pass then recovers them."""
    done = []
    while context.early_dead:
        dead, till = context.early_dead.popitem()
        if context.client.run(context.scripts.fence, context.script_time(), dead, till) == 1:
            done.append(RecoveryAction(job_id=None, agent=dead, what="silent_killed"))
    return done


def _recover_agent(
    context: RedisContext, agent: Agent, dead: str, about: Mapping[str, Any], jobs: Sequence[str]
) -> list[RecoveryAction]:
    done: list[RecoveryAction] = []
    if context.client.run(context.scripts.fence, context.script_time(), dead, "") == 1:
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


# --- jobs that wait for other jobs ---


SUBMITTER = "submitter"  # the actor for a job whose dependency ended during its submission


def unblock(context: RedisContext, by: str, job_ids: Sequence[str]) -> list[tuple[str, str]]:
    """Start or fail jobs that wait for other jobs, when those end.

    farro.plans.after decides what an end means for a dependent. The script that ends a job writes its dependents into
    `todo`. A job leaves `todo` when it was decided, or checked and waits on. If the process that ended the job dies
    first, the next watchdog checks it. [test_the_next_watchdog_unblocks_a_forgotten_dependent]

    Checks these jobs, and the dependents of those that fail; returns (id, `unblocked` or `dependency_failed`) of each
    change."""
    done: list[tuple[str, str]] = []
    todo = deque(job_ids)
    while todo:
        some = list(dict.fromkeys(todo))
        todo.clear()
        # Read the numbers in `todo` first: an end after this read has a higher number, and the job is checked again.
        numbers = context.client.calls([("ZSCORE", f"{context.keys.prefix}todo", job_id) for job_id in some])
        waiting = [
            record for record in context.read_jobs(some, prompts=True) if record is not None and record.place == "waits"
        ]
        named = {record.job_id: after.dependencies(record.prompt) for record in waiting}
        ends = new_jobs.ends(context, {job_id for names in named.values() for job_id in names.all})
        judged: list[Arg] = []
        for record in waiting:
            what, others = _unblock_one(context, by, record, named[record.job_id], ends)
            todo += others
            if what:
                done.append((record.job_id, what))
        for job_id, number in zip(some, numbers, strict=True):
            if number is not None:
                judged += (job_id, number)
        if judged:
            context.client.run(context.scripts.judged, context.script_time(), *judged)
    return done


def _unblock_one(
    context: RedisContext, by: str, record: JobRecord, named: after.Dependencies, ends: Mapping[str, DependencyState]
) -> tuple[str, list[str]]:
    try:
        before = record.lifecycle
    except Damaged:
        return "", []
    if moves.waits_for_person(before):
        return "", []
    verdict = after.judge(named, lambda job_id: ends.get(job_id, DependencyState.GONE), gone_is_over=True)
    now = context.now()
    if verdict.hopeless:
        move = moves.dependency_failed(before.role, verdict.hopeless)
        ended = moves.decided(before, move, by=by, attempt=record.attempts, now=now)
        return "dependency_failed", decisions.compare_and_swap(context, None, record, ended, record.attempts) or []
    if verdict.ready:
        entered = moves.unblocked(before, by=by, now=now, note=f"after {', '.join(named.all)}")
        decisions.compare_and_swap(context, None, record, entered, record.attempts)
        return "unblocked", []
    return "", []
