"""Start or fail jobs that wait for other jobs, when those end.

farro.plans.after decides what an end means for a dependent. The script that ends a job writes its dependents into
`todo`. A job leaves `todo` when it was decided, or checked and waits on. If the process that ended the job dies first,
the next watchdog checks it. [test_the_next_watchdog_unblocks_a_forgotten_dependent]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from farro.errors import Damaged
from farro.jobs import moves
from farro.plans import after
from farro.plans.after import DependencyState
from farro.store.redis import decisions, new_jobs
from farro.store.redis.client import Arg
from farro.store.redis.context import RedisContext
from farro.store.redis.records import JobRecord

SUBMITTER = "submitter"  # the actor for a job whose dependency ended during its submission


def unblock(context: RedisContext, by: str, job_ids: Sequence[str]) -> list[tuple[str, str]]:
    """Check these jobs, and the dependents of those that fail; return (id, `unblocked` or `dependency_failed`) of each
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
            what, others = _decide(context, by, record, named[record.job_id], ends)
            todo += others
            if what:
                done.append((record.job_id, what))
        for job_id, number in zip(some, numbers, strict=True):
            if number is not None:
                judged += (job_id, number)
        if judged:
            context.client.run(context.scripts.judged, context.script_time(), *judged)
    return done


def _decide(
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
