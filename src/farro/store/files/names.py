"""Names of jobs: `jobs/.names/<name>` is a link whose target is the id of the job that has the name.

- A name and its job appear together: the link is made, durably, after the job was staged and before it is published,
  all under one lock that dies with its holder. A crash in between leaves a link to no job: the name is free.
  [test_kill_at_every_call_of_a_named_enqueue]
- While a name passes from one job to the next, the link holds both, `<new>.<old>`: it means the new job once that
  exists, else the old one, so that publishing the new job is what moves the name.
  [test_kill_at_every_call_of_giving_a_name_to_the_next_job]
- Named jobs do not use the journal: after a power cut its record would restore a job whose name has passed on.
- Pruning a job frees its name; the link is removed before the last trace of the job.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Mapping

from farro.errors import Damaged, NameTaken
from farro.host import fs, leases
from farro.jobs import ids
from farro.store.files import chosen_ids, submit, views
from farro.store.files.context import FilesContext
from farro.store.port import Submission

FOLDER = "jobs/.names"
_LOCK_FILE = ".lock"


def enqueue(context: FilesContext, name: str, submission: Submission, instead_of: str | None) -> str:
    """Submit a job under that name if `instead_of` has the name now; else raise NameTaken and queue nothing."""
    ids.check_job_name(name)
    with _lock(context):
        present = named(context, name)
        if present != instead_of:
            raise NameTaken(name, present)

        def point(job_id: str) -> None:
            _link(context, name, job_id if present is None or present == job_id else f"{job_id}.{present}")
            context.sync([context.path(FOLDER)])

        (job,) = submit.enqueue_many(context, [submission], named=point)
        if present is not None:
            with contextlib.suppress(OSError):  # the name has passed on; if this fails, the link continues to name both
                _link(context, name, job.id)  # else the old job gets the name back when the new one is pruned first
        return job.id


def named(context: FilesContext, name: str) -> str | None:
    """Return the id of the job that has this name; None if no job has it."""
    return next((job_id for job_id in _targets(context, name) if _exists(context, job_id)), None)


def names(context: FilesContext) -> Mapping[str, str]:
    found = {}
    for name in _links(context):
        if (job_id := named(context, name)) is not None:
            found[name] = job_id
    return found


def pointing(context: FilesContext) -> dict[str, str]:
    """Map job ids to names according to the links, for freeing names."""
    return {job_id: name for name in _links(context) for job_id in _targets(context, name)[:1]}


def free(context: FilesContext, name: str, job_id: str) -> None:
    """Free the name, if that job still has it."""
    with _lock(context):
        if _targets(context, name)[:1] == [job_id]:
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(context.path(FOLDER, name))


@contextlib.contextmanager
def _lock(context: FilesContext) -> Iterator[None]:
    """Hold the lock for changes of names. The kernel releases it when its holder dies."""
    with contextlib.suppress(FileExistsError):
        fs.mkdir(context.path(FOLDER))  # missing in a root that an older farro made
    with leases.exclusively(context.path(FOLDER, _LOCK_FILE)):
        yield


def _link(context: FilesContext, name: str, target: str) -> None:
    """Point the name at another target, in one call."""
    temporary = fs.temporary(context.path(FOLDER))
    fs.symlink(target, temporary)
    try:
        fs.replace(temporary, context.path(FOLDER, name))
    except OSError:
        with contextlib.suppress(OSError):
            fs.unlink(temporary)
        raise


def _links(context: FilesContext) -> list[str]:
    try:
        return sorted(filter(ids.is_job_id, fs.listdir(context.path(FOLDER))))
    except FileNotFoundError:
        return []


def _targets(context: FilesContext, name: str) -> list[str]:
    """Return the ids in a link's target; empty for a link that farro did not make."""
    try:
        target = fs.readlink(context.path(FOLDER, ids.check_job_name(name))) or ""
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise  # trouble of the disk does not mean that the name is free
        return []  # not a link but a folder
    return [job_id for job_id in target.split(".") if ids.is_job_id(job_id)]


def _exists(context: FilesContext, job_id: str) -> bool:
    """Return whether the job exists or is registered and about to be published (by clean-up if its submitter died)."""
    if views.locate(context, job_id) is not None:
        return True
    try:
        return bool(chosen_ids.registered(context, job_id)[1])
    except Damaged:
        return False
