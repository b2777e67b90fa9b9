"""Jobs that run after others: whoever ends a job looks at those that waited for it, and at those that wait for these.

What their ends mean is said in plans.after. The script that ends a job writes those that waited for it into `todo`, and
a job leaves it when it was decided, or looked at and waits on: when whoever ended the job dies first, the next watchdog
looks. [test_a_dependent_is_seen_to_by_the_next_watchdog]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from farro.errors import Damaged
from farro.jobs import transitions
from farro.plans import after
from farro.plans.after import End
from farro.store.redis import edit, prepare
from farro.store.redis.context import Ground
from farro.store.redis.records import Seen
from farro.store.redis.server import Arg

SUBMITTER = "submitter"  # who lets a job in whose dependency ended while it was submitted


def look_at(ground: Ground, by: str, job_ids: Sequence[str]) -> list[tuple[str, str]]:
    """What became of them, and of those that waited for them: (id, unblocked or dependency_failed)."""
    done: list[tuple[str, str]] = []
    todo = deque(job_ids)
    while todo:
        some = list(dict.fromkeys(todo))
        todo.clear()
        # The number in `todo` first: what ends after this look has a higher one, and is looked at again.
        numbers = ground.server.calls([("ZSCORE", f"{ground.keys.prefix}todo", job_id) for job_id in some])
        waiting = [seen for seen in ground.look(some, prompts=True) if seen is not None and seen.wh == "waits"]
        named = {seen.job_id: after.dependencies(seen.prompt) for seen in waiting}
        ends = prepare.ends(ground, {job_id for found in named.values() for job_id in found.all})
        judged: list[Arg] = []
        for seen in waiting:
            what, others = _judge(ground, by, seen, named[seen.job_id], ends)
            todo += others
            if what:
                done.append((seen.job_id, what))
        for job_id, number in zip(some, numbers, strict=True):
            if number is not None:
                judged += (job_id, number)
        if judged:
            ground.server.run(ground.scripts.judged, ground.time(), *judged)
    return done


def _judge(
    ground: Ground, by: str, seen: Seen, named: after.Dependencies, ends: Mapping[str, End]
) -> tuple[str, list[str]]:
    try:
        before = seen.lifecycle
    except Damaged:
        return "", []
    if transitions.waits_for_person(before):
        return "", []
    verdict = after.judge(named, lambda job_id: ends.get(job_id, End.GONE), gone_is_over=True)
    now = ground.now()
    if verdict.hopeless:
        move = transitions.dependency_failed(before.role, verdict.hopeless)
        ended = transitions.decided(before, move, by=by, attempt=seen.attempts, now=now)
        return "dependency_failed", edit.put(ground, None, seen, ended, seen.attempts) or []
    if verdict.ready:
        entered = transitions.unblocked(before, by=by, now=now, note=f"after {', '.join(named.all)}")
        edit.put(ground, None, seen, entered, seen.attempts)
        return "unblocked", []
    return "", []
