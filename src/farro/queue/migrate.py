"""Move queued jobs from one store of a root to another (`farro migrate`).

A job is ended in the source with a reason that only a queued job can get (MIGRATED: a worker that was quicker keeps
it), queued in the target under the same id, and then removed from the source. If killed at any point and run again, the
migration continues: an ended job that was not removed is queued under its id, which is the same job if it is there
already. So a job is never in two queues, and never lost.
[test_migration_killed_at_any_call_neither_loses_nor_duplicates_a_job]

A job that waits for others moves with them or stays with them. It is ended before them, else their end would end it;
and it is queued after them, else its dependencies would not exist there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from farro.errors import IdConflict, IllegalTransition, InputError, NameTaken, Refused, UnknownJob
from farro.host.clock import Clock
from farro.jobs.envelope import Lifecycle
from farro.jobs.moves import waits_for_person
from farro.jobs.states import Reason, Status
from farro.lazy_dataclass import dataclass, field, replace
from farro.plans import after
from farro.queue.jobs import operator, submitted_files, submitted_prompt
from farro.store.port import Agent, JobView, Store, Submission

_PATIENCE_S, _PAUSE_S = 15.0, 0.25  # until no journal of the file store mentions a job any more

_DUE = re.compile(r", not before (\S+Z);")

# Why a job stays where it is.
RUNNING, BEGUN, STALE, LINKED, TAKEN, NAMED = "in progress", "begun", "stale", "linked", "id taken", "name taken"
WORDS = {
    RUNNING: "in progress: let them end, then run this again",
    BEGUN: "were worked on before (routed, retried, or wait for a person): let them end where they are",
    STALE: "stale or failed, not for good: `farro manager --once` decides about them",
    LINKED: "run after others, or others run after them, and they cannot move together: let them end, or stop workers",
    TAKEN: "have an id that the other store has given to another job",
    NAMED: "have a name that means another job there",
}


@dataclass(kw_only=True, slots=True)
class Migration:
    """The jobs that will be moved or were moved."""

    moves: list[str] = field(default_factory=list)  # ids, in the order in which they are queued
    left: dict[str, list[str]] = field(default_factory=dict)  # reason → ids of jobs that stay
    finished: int = 0  # finished jobs stay
    moved: list[str] = field(default_factory=list)
    remains: list[str] = field(default_factory=list)  # moved, but not yet removed from the source: run it again


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    view: JobView
    name: str | None
    prompt: Mapping[str, Any]
    marked: bool  # ended by an earlier migration, and not removed
    needs: tuple[str, ...] = ()  # jobs that it waits for, and that move with it or moved before

    @property
    def id(self) -> str:
        return self.view.job_id


def look(source: Store, target: Store) -> Migration:
    """Return what would be moved, and what stays and why. Changes nothing."""
    return _planned(source, target)[0]


def migrate(
    source: Store, target: Store, *, by: str, where: str, clock: Clock, progress: Callable[[int, int], None]
) -> Migration:
    """Move what can be moved. `where`: the target store as shown to users."""
    migration, jobs = _planned(source, target)
    note = f"moves to {where}{{due}}; if it is not there yet, run `farro migrate` again"
    waiting = [job for job in jobs if job.needs]
    with operator(source, by) as agent:
        gone: set[str] = set()
        for job in reversed(waiting):  # a job ends after all that wait for it
            if not _ended(source, agent, job, note):
                gone.add(job.id)
                migration.left.setdefault(RUNNING, []).append(job.id)
        for count, job in enumerate(jobs, start=1):
            if job.id not in gone:
                _move(source, target, agent, job, note, migration, clock)
            progress(count, len(jobs))
            source.heartbeat(agent)
    return migration


def _move(source: Store, target: Store, agent: Agent, job: _Job, note: str, migration: Migration, clock: Clock) -> None:
    if not job.needs and not _ended(source, agent, job, note):
        migration.left.setdefault(RUNNING, []).append(job.id)  # a worker was quicker
        return
    view = source.find(job.id)
    assert view is not None, "this migration ended it, and only this migration removes it"
    try:
        _queue(target, _submission(source, view, job), job.name)
    except IdConflict:
        if not job.marked:
            raise
        # An earlier run queued it, with a dependency that is gone by now.
    except (Refused, UnknownJob):  # its dependency has failed there meanwhile: it stays ended, as it would there
        migration.left.setdefault(LINKED, []).append(job.id)
        return
    migration.moved.append(job.id)
    if not _removed(source, agent, view, clock):
        migration.remains.append(job.id)


def _ended(source: Store, agent: Agent, job: _Job, note: str) -> bool:
    """End the job, so that no worker can claim it. False: a worker has claimed it, or it is gone."""
    if job.marked:
        return True
    try:
        due = job.view.lifecycle.not_before
        words = note.format(due=f", not before {due}" if due else "")  # ending a job clears not_before
        return _is_marked(source.kill(agent, job.id, note=words, reason=Reason.MIGRATED))
    except (IllegalTransition, UnknownJob):
        return False


def _is_marked(life: Lifecycle) -> bool:
    return life.status is Status.KILLED and bool(life.hops) and life.hops[-1].reason is Reason.MIGRATED


def _queue(target: Store, submission: Submission, name: str | None) -> None:
    """Queue the job. If this or an earlier run already did, it is the same job."""
    if name is None:
        target.enqueue(submission)
        return
    try:
        target.enqueue_named(name, submission)
    except NameTaken:
        # The name belongs to this job, by a run that was killed before it queued the job; or it was given to another
        # job meanwhile, and the job matters more than its name.
        target.enqueue(submission)


def _removed(source: Store, agent: Agent, view: JobView, clock: Clock) -> bool:
    """Remove the job from the source. False: that was not possible within `_PATIENCE_S`."""
    by = agent.id.split(".", 1)[0]
    until_s = clock.monotonic_s() + _PATIENCE_S
    while not source.remove([view], by=by, leftovers=False).jobs:
        if source.find(view.job_id) is None:
            return True
        if clock.monotonic_s() >= until_s:
            return False
        clock.sleep(_PAUSE_S)
        source.heartbeat(agent)
    return True


def _submission(source: Store, view: JobView, job: _Job) -> Submission:
    life = view.lifecycle
    narrative, payload = submitted_files(source.folder(view))
    return Submission(
        role=life.role,
        prompt=_waiting_for(job.prompt, job.needs),
        job_id=life.job_id,
        not_before=_due(life),
        retry_of=life.retry_of,
        payload=payload,
        narrative=narrative,
    )


def _due(life: Lifecycle) -> datetime | None:
    found = _DUE.search(life.hops[-1].note or "") if life.hops else None
    return None if found is None else datetime.fromisoformat(found[1])


def _waiting_for(prompt: Mapping[str, Any], needs: Sequence[str]) -> Mapping[str, Any]:
    """Return the prompt without dependencies that have ended: those jobs do not exist in the target."""
    named = after.dependencies(prompt)
    if set(named.all) == set(needs):
        return prompt
    rest = after.alone(prompt)
    kept = {
        "after": [job_id for job_id in named.after if job_id in needs],
        "after_any": [job_id for job_id in named.after_any if job_id in needs],
    }
    kept = {key: value for key, value in kept.items() if value}
    return {**rest, "metadata": {**(rest.get("metadata") or {}), **kept}} if kept else rest


# --- what can be moved ---


def _planned(source: Store, target: Store) -> tuple[Migration, list[_Job]]:
    """Decide which jobs move, in which order, and which stay."""
    migration = Migration()
    names = {job_id: name for name, job_id in source.names().items()}
    theirs = target.names()
    jobs: dict[str, _Job] = {}
    for view in source.list():
        life = view.lifecycle
        if life.terminal and not _is_marked(life):
            migration.finished += 1
            continue
        why = _stays(view)
        if why is None:
            job = _Job(view=view, name=names.get(view.job_id), prompt=_prompt(source, view), marked=_is_marked(life))
            taken = job.name is not None and theirs.get(job.name, view.job_id) != view.job_id
            why = NAMED if taken else TAKEN if not job.marked and target.find(view.job_id) is not None else None
            if why is None:
                jobs[view.job_id] = job
                continue
        migration.left.setdefault(why, []).append(view.job_id)
    staying = _linked(jobs, source, target)
    migration.left.update({LINKED: [job_id for job_id in jobs if job_id in staying]} if staying else {})
    moving = {job_id: job for job_id, job in jobs.items() if job_id not in staying}
    ordered = _ordered(moving, source.entry_order([job.view for job in moving.values()]))
    migration.moves = [job.id for job in ordered]
    return migration, ordered


def _stays(view: JobView) -> str | None:
    """Return why the job cannot be moved, or None."""
    life = view.lifecycle
    if _is_marked(life):
        return None
    if life.status is Status.IN_PROGRESS:
        return RUNNING
    if life.status is not Status.QUEUED or view.damaged:
        return STALE
    return BEGUN if life.attempt or waits_for_person(life) else None


def _linked(jobs: dict[str, _Job], source: Store, target: Store) -> set[str]:
    """Return the jobs that cannot move without others that stay. Sets `needs` of all other jobs."""
    over: dict[str, bool] = {}  # jobs that are not moved: whether they have ended or are gone
    gone: dict[str, bool] = {}  # jobs that are not moved: whether they are in the target already
    for job in jobs.values():
        for needed in after.dependencies(job.prompt).all:
            if needed not in jobs and needed not in over:
                view = source.find(needed)
                gone[needed] = target.find(needed) is not None
                over[needed] = view is None or view.lifecycle.terminal
    waiting: dict[str, tuple[str, ...]] = {}
    for job_id, job in jobs.items():
        named = after.dependencies(job.prompt).all if job.marked or job.view.waits_for else ()
        waiting[job_id] = tuple(needed for needed in named if needed in jobs or gone[needed] or not over[needed])
        jobs[job_id] = replace(job, needs=waiting[job_id])
    # While a worker is alive it may claim one of them after the jobs that wait for it were ended.
    busy = any(agent.alive and agent.role is not None for agent in source.agents())
    stay = {job_id for job_id, needs in waiting.items() if needs and busy and not jobs[job_id].marked}
    stay |= {needed for job_id in stay for needed in waiting[job_id] if needed in jobs}
    changed = True
    while changed:
        before = len(stay)
        for job_id, needs in waiting.items():
            if jobs[job_id].marked:
                continue
            if any(needed in stay or (needed not in jobs and not gone[needed]) for needed in needs):
                stay |= {job_id, *(needed for needed in needs if needed in jobs)}  # it would wait for them forever
        changed = len(stay) > before
    return {job_id for job_id in stay if not jobs[job_id].marked}


def _ordered(jobs: Mapping[str, _Job], order: Mapping[str, int]) -> list[_Job]:
    """Sort by entry into the queue, and by `order` within one millisecond; a job comes after all that it waits for."""
    by_entry = sorted(jobs.values(), key=lambda job: (job.view.lifecycle.enqueued_at, order[job.id], job.id))
    done: dict[str, _Job] = {job.id: job for job in by_entry if not job.needs}
    left = [job for job in by_entry if job.needs]
    while left:
        ready = [job for job in left if all(needed in done or needed not in jobs for needed in job.needs)]
        if not ready:  # stores refuse circular dependencies
            raise InputError(f"jobs wait for each other: {', '.join(job.id for job in left[:5])}")
        done.update((job.id, job) for job in ready)
        left = [job for job in left if job.id not in done]
    return list(done.values())


def _prompt(source: Store, view: JobView) -> Mapping[str, Any]:
    try:
        return submitted_prompt(source.folder(view))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{view.job_id} cannot be moved: its prompt.json cannot be read ({error})") from error
