"""Create a job under a name, and reset it: its name then belongs to a new job from the same prompt."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from farro.documents import Document, did_you_mean
from farro.errors import Damaged, NameTaken, Refused, TryAgain, UnknownJob
from farro.jobs import ids, places
from farro.jobs.request import JobRequest
from farro.jobs.states import Status
from farro.lazy_dataclass import dataclass, replace
from farro.plans import after
from farro.queue import jobs
from farro.queue.admission import admit
from farro.queue.submit import SubmitPolicy, prepare
from farro.store.port import JobView, Store, Submission, Submitted


@dataclass(frozen=True, kw_only=True, slots=True)
class ResetResult:
    """What a reset did."""

    name: str
    job_id: str  # the job that has the name now
    before: str  # the job that had it before
    changed: bool  # False: the job was already waiting from its start


def reset_named_job(
    store: Store,
    name: str,
    *,
    by: str,
    force: bool = False,
    document: Document | None = None,
    policy: SubmitPolicy,
) -> ResetResult:
    """Put a named job back to waiting from its start: a new job from the same prompt gets its name.

    Nothing of the old job is carried over, so none of its tasks can stay failed. `document` replaces the old job's
    tasks. Safe to repeat after a crash at any point: until the new job exists, the name means the old one.
    """
    old = named_job_id(store, name)
    view = store.find(old)
    if view is None:
        raise TryAgain(f"{name} ({old}) is being made or moved just now; try again in a moment")
    wanted = _again(name, view, document, store, policy)
    if wanted is None:
        return ResetResult(name=name, job_id=old, before=old, changed=False)
    if not view.lifecycle.terminal:
        running = view.status is Status.IN_PROGRESS and old not in jobs.orphans(store)
        if running and not force:
            raise Refused(
                f"{name} ({old}) is working; end it with `farro kill {name}` and reset it then, "
                f"or do both with `farro reset --job {name} --force`"
            )
        with contextlib.suppress(Damaged):  # unreadable: that put it into quarantine, where nothing runs
            jobs.kill(store, old, by=by, note="reset")

    def enqueue(submissions: Sequence[Submission]) -> list[Submitted]:
        return [Submitted(id=store.enqueue_named(name, item, instead_of=old)) for item in submissions]

    try:
        job_id = admit(store, [wanted], policy.gate, enqueue=enqueue)[0].id
    except NameTaken as taken:
        raise TryAgain(
            f"another process reset {name} just now; it is {taken.job_id} (`farro status --job {name}`)"
        ) from taken
    return ResetResult(name=name, job_id=job_id, before=old, changed=True)


def named_job_id(store: Store, name: str) -> str:
    """Return the id of the job of that name. Raises UnknownJob, with the names that exist."""
    job_id = store.named(ids.check_job_name(name))
    if job_id is None:
        if ids.is_job_id(name) and store.find(name) is not None:
            raise UnknownJob(f"{name} is the id of a job, and no job's name; `farro retry {name}` runs it again")
        hint = did_you_mean(name, store.names(), "`farro job list` lists the names")
        raise UnknownJob(f"no job is named {name} in {store.root}; {hint}")
    return job_id


def _again(
    name: str, view: JobView, document: Document | None, store: Store, policy: SubmitPolicy
) -> Submission | None:
    """Return the job that replaces this one; None if this one is queued with the same plan.

    Raises before anything is changed.
    """
    folder = store.folder(view)
    if document is not None:
        (wanted,) = prepare(store, [JobRequest(document=document)], policy)
        return replace(wanted, job_id=None, retry_of=view.job_id)
    try:
        prompt = jobs.submitted_prompt(folder)
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise Damaged(
            f"{name} ({view.job_id}): {view.place}/{view.job_id}/prompt.json cannot be read ({why}), so its tasks "
            f"are unknown; give them again: farro reset --job {name} --tasks FILE"
        ) from error
    if view.status is Status.QUEUED and view.place != places.QUARANTINE and view.lifecycle.attempt == 0:
        return None
    narrative, payload = jobs.submitted_files(folder)
    return Submission(
        role=view.lifecycle.first_role,
        prompt=after.alone(prompt),
        retry_of=view.job_id,
        narrative=narrative,
        payload=payload,
    )  # without a job_id: the old job keeps its id
