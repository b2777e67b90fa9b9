"""Run a finished job again: as a new job from the same prompt that skips steps which need not be repeated.

Jobs that were killed because it failed can be run again with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farro.errors import BadDocument, InputError, Refused
from farro.execution import records, resume
from farro.host import fs
from farro.jobs.envelope import Lifecycle
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass, replace
from farro.plans import frontier
from farro.plans.after import Dependencies, alone, dependencies
from farro.plans.loading import load_data
from farro.plans.model import Plan
from farro.queue import find_job, jobs
from farro.queue.admission import Gate, admit
from farro.store.port import CARRIED_BYTES, CarriedFiles, JobView, Store, Submission

_NOT_YET = {
    Status.QUEUED: "is queued, and will run by itself; `farro explain {id}` says what it waits for",
    Status.IN_PROGRESS: "is running; `farro wait {id}` waits for its end, `farro kill {id}` ends it",
    Status.STALE: "is stale; `farro requeue {id}` puts it back into its queue, and it goes on where it was",
    Status.FAILED: "has failed, but not for good; `farro requeue {id}` puts it back into its queue",
}
_ORPHANED = (
    "is in_progress, but its agent is dead: `farro requeue {id}` puts it back into its queue, where it goes on; or "
    "`farro kill {id}` ends it"
)
_KILLED_FOR_IT = "dependency_failed"  # the error category of such a job


@dataclass(frozen=True, kw_only=True, slots=True)
class RetriedJob:
    """A new job and the job that it repeats."""

    job_id: str
    retry_of: str
    kept: tuple[str, ...]  # steps that are not run again, in the order in which they ended


@dataclass(frozen=True, kw_only=True, slots=True)
class _NewJob:
    """A new job that is not queued yet."""

    view: JobView
    submission: Submission
    kept: tuple[str, ...]


def retry(
    store: Store,
    job_id: str,
    *,
    from_step: str | None = None,
    from_start: bool = False,
    after: Sequence[str] | None = None,
    durable: bool = True,
    gate: Gate | None = None,
) -> RetriedJob:
    """Queue the new job. Refused: the job has not ended. InputError: there is no such step, or nothing to repeat.

    `after`: the jobs that the new one runs after, instead of those that the old one waited for; empty: none.
    """
    made = _prepare(store, job_id, from_step=from_step, from_start=from_start, durable=durable)
    if after is not None:
        made = replace(made, submission=replace(made.submission, prompt=_after(made.submission.prompt, after)))
    else:
        _check_dependencies(store, job_id, made.submission.prompt)
    return _queued(store, [made], gate)[0]


def with_dependents(
    store: Store,
    job_id: str,
    *,
    mint: Callable[[], str],
    from_step: str | None = None,
    from_start: bool = False,
    durable: bool = True,
    gate: Gate | None = None,
) -> list[RetriedJob]:
    """Retry the job and, transitively, the jobs that were killed because it did not succeed.

    Each runs after the new copies of its dependencies. All are queued, or none; the job itself comes first.
    """
    first = _prepare(store, job_id, from_step=from_step, from_start=from_start, durable=durable)
    made = [replace(first, submission=replace(first.submission, job_id=mint()))]
    anew = {job_id: str(made[0].submission.job_id)}
    for dependent in _in_order(job_id, _killed_for_others(store)):
        one = _prepare(store, dependent, from_step=None, from_start=False, durable=durable)
        named = dependencies(one.submission.prompt)
        new = anew[dependent] = mint()
        renamed = [[anew.get(name, name) for name in names] for names in (named.after, named.after_any)]
        prompt = _after(one.submission.prompt, *renamed)
        made.append(replace(one, submission=replace(one.submission, job_id=new, prompt=prompt)))
    return _queued(store, made, gate)


def _killed_for_others(store: Store) -> dict[str, Dependencies]:
    """Return the killed dependents with what they ran after, roughly in the order of creation.

    Unreadable jobs are skipped: an unrelated damaged job must not prevent this retry.
    """
    found = []
    for entry in store.entries(statuses={Status.KILLED}):
        life = entry.lifecycle()
        if life is not None and not life.attempt and (life.error or {}).get("category") == _KILLED_FOR_IT:
            found.append((life.created_at, life.job_id, entry))
    prompts = store.prompts([entry for _, _, entry in found])
    ordered = sorted(found, key=lambda one: one[:2])
    return {job_id: dependencies(prompts[job_id]) for _, job_id, _ in ordered if job_id in prompts}


def _in_order(first: str, named: Mapping[str, Dependencies]) -> list[str]:
    """Return the jobs that needed the success of `first`, transitively, each behind its dependencies.

    Creation times do not give this order: jobs of one batch share theirs, and a clock may have been set back.
    """
    wanted_by: dict[str, list[str]] = {}
    for job_id, after in named.items():
        for name in after.after:
            wanted_by.setdefault(name, []).append(job_id)
    reached, todo = {first}, [first]
    while todo:
        more = [job_id for job_id in wanted_by.get(todo.pop(), ()) if job_id not in reached]
        reached.update(more)
        todo += more
    left = {job_id: reached.intersection(after.all) - {first} for job_id, after in named.items() if job_id in reached}
    left.pop(first, None)
    order: list[str] = []
    before = -1
    while len(order) > before:
        before = len(order)
        for job_id, wants in list(left.items()):
            if left.keys().isdisjoint(wants):
                order.append(job_id)
                del left[job_id]
    return [*order, *left]  # the rest depend on each other through reused ids: refused when queued


def _prepare(store: Store, job_id: str, *, from_step: str | None, from_start: bool, durable: bool) -> _NewJob:
    """Prepare the new job."""
    view = find_job.find_view(store, job_id)
    life = view.lifecycle
    if not life.terminal and not view.place.startswith("jobs/quarantine"):
        orphaned = life.status is Status.IN_PROGRESS and job_id in jobs.orphans(store)
        raise Refused(f"{job_id} {(_ORPHANED if orphaned else _NOT_YET[life.status]).format(id=job_id)}")
    folder = store.folder(view)
    prompt = _prompt(folder, job_id)
    by_link = store.live_folders
    past = resume.PastAttempts(added_by={}) if from_start else _past(folder, prompt, life, from_step)
    carried = None
    if past.lines:
        synced = durable or not by_link  # a job that is sent to another machine is complete, whatever its boot id
        lines: list[records.Line] = [records.head(past.lines), *past.lines, *([{"synced": True}] if synced else [])]
        files = {path: f"{past.folder}/{path}" for line in past.succeeded for path in records.paths(line)}
        if not by_link:
            _check_size(job_id, files)
        carried = CarriedFiles(records=records.text(lines), files=files)
    narrative, payload = jobs.submitted_files(folder)
    submission = Submission(
        role=life.first_role,
        prompt=alone(prompt) if life.attempt else prompt,
        retry_of=job_id,
        payload=payload,
        narrative=narrative,
        carried=carried,
    )
    return _NewJob(view=view, submission=submission, kept=tuple(line["id"] for line in past.succeeded))


def _queued(store: Store, made: Sequence[_NewJob], gate: Gate | None) -> list[RetriedJob]:
    try:
        queued = admit(store, [one.submission for one in made], gate)
    except FileNotFoundError as error:
        raise _gone(made[0].view) from error
    return [
        RetriedJob(job_id=job.id, retry_of=one.view.job_id, kept=one.kept)
        for job, one in zip(queued, made, strict=True)
    ]


def _after(prompt: Mapping[str, Any], after: Sequence[str], after_any: Sequence[str] = ()) -> dict[str, Any]:
    """Return the prompt with these dependencies and no others."""
    made = alone(prompt)
    named = {"after": list(dict.fromkeys(after)), "after_any": list(dict.fromkeys(after_any))}
    if any(named.values()):
        more = {name: job_ids for name, job_ids in named.items() if job_ids}
        made["metadata"] = {**(made.get("metadata") or {}), **more}
    return made


def _check_dependencies(store: Store, job_id: str, prompt: Mapping[str, Any]) -> None:
    """Raise Refused if a job that never began would wait for a job that failed or is gone."""
    for name in dependencies(prompt).after:
        found = store.find(name)
        if found is not None and (not found.lifecycle.terminal or found.status is Status.SUCCEEDED):
            continue
        both = "" if found is None else f"`farro retry {name} --with-dependents` runs both again; or "
        raise Refused(
            f"{job_id} runs after {name}, which {'is gone' if found is None else 'did not succeed'}, so it would never "
            f"start. Nothing was queued. {both}`farro retry {job_id} --after JOB` lets it run after another job, and "
            "--no-after after none"
        )


def _check_size(job_id: str, files: Mapping[str, str]) -> None:
    """Refuse to carry over too much: in a store without folders, carried files are sent."""
    size = sum(fs.lstat(path).st_size for path in files.values())
    if size > CARRIED_BYTES:
        raise Refused(
            f"the finished steps of {job_id} have {size >> 20} MiB of output, and a retry takes over at most "
            f"{CARRIED_BYTES >> 20} MiB; `farro retry {job_id} --from-start` runs all of them again. Nothing was queued"
        )


def _past(folder: str, prompt: Mapping[str, Any], life: Lifecycle, from_step: str | None) -> resume.PastAttempts:
    """Return which steps of the job stay valid. None for a routed job: the new one starts in its first role."""
    try:
        plan: Plan = load_data(prompt, "prompt.json")
    except BadDocument:
        return resume.PastAttempts(added_by={})  # it fails again and reports why
    attempt = f"{folder}/attempts/{life.attempt + 1:04d}"
    earlier = resume.earlier(attempt, life.attempt + 1, 0, retried=life.retry_of is not None)
    found = resume.past(plan, () if life.hop_start else earlier)
    succeeded = [line["id"] for line in found.succeeded]
    if from_step is None and life.status is Status.SUCCEEDED and len(succeeded) == len(found.steps):
        return resume.PastAttempts(added_by={})  # all steps succeeded: a retry means all of them
    kept = frontier.kept(found.steps, succeeded, parallel=plan.parallel, from_step=from_step)
    return resume.only(plan, found, kept)


def _prompt(folder: str, job_id: str) -> Mapping[str, Any]:
    try:
        return jobs.submitted_prompt(folder)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{job_id} cannot be repeated: its prompt.json cannot be read ({error})") from error


def _gone(view: JobView) -> Refused:
    return Refused(f"{view.job_id} was moved or pruned while it was read; nothing was queued. Try again")
