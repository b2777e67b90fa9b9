"""Names of jobs: `jobs/.names/<name>`, a link whose target is the id of the job that the name means at present.

What a person may do with a name lives in operations.named.

- A name and its job come into being together: the link is made, durably, after the job was staged and before it is
  published, all under one lock that dies with its holder. A crash in between leaves a link to no job: nobody's name,
  which the next one takes. [test_kill_at_every_call_of_a_named_enqueue]
- A name that passes from one job to the next says both meanwhile, `<new>.<old>`: it means the new job once that
  exists, else the old one, so that publishing the new job is the moment at which the name passes on.
  [test_kill_at_every_call_of_a_name_that_passes_on]
- Not through the journal: after a power cut its record would bring a job back whose name is another's by then.
- A pruned job frees its name (prune); the link goes before the last trace of the job does.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Mapping

from farro.errors import Damaged, NameTaken
from farro.host import fs, leases
from farro.jobs import ids
from farro.store.files import chosen_ids, submit, views
from farro.store.files.context import Ground
from farro.store.port import Submission

FOLDER = "jobs/.names"
_LOCK = ".lock"


def enqueue(ground: Ground, name: str, submission: Submission, instead_of: str | None) -> str:
    """Submit a job under that name, if the name means `instead_of` now; NameTaken, and nothing queued, if not."""
    ids.check_job_name(name)
    with _alone(ground):
        present = named(ground, name)
        if present != instead_of:
            raise NameTaken(name, present)

        def point(job_id: str) -> None:
            _link(ground, name, job_id if present is None or present == job_id else f"{job_id}.{present}")
            ground.sync([ground.path(FOLDER)])

        (job_id,) = submit.enqueue_many(ground, [submission], named=point)
        if present is not None:
            with contextlib.suppress(OSError):  # it has happened; where this fails, the link goes on naming both
                _link(ground, name, job_id)  # else the old job is meant again when the new one is pruned before it
        return job_id


def named(ground: Ground, name: str) -> str | None:
    """The id of the job that has this name; None: nobody has."""
    return next((job_id for job_id in _targets(ground, name) if _exists(ground, job_id)), None)


def names(ground: Ground) -> Mapping[str, str]:
    found = {}
    for name in _links(ground):
        if (job_id := named(ground, name)) is not None:
            found[name] = job_id
    return found


def pointing(ground: Ground) -> dict[str, str]:
    """Job id → its name, as the links say it: for whoever frees names."""
    return {job_id: name for name in _links(ground) for job_id in _targets(ground, name)[:1]}


def free(ground: Ground, name: str, job_id: str) -> None:
    """Nobody's name any more, if it means that job still."""
    with _alone(ground):
        if _targets(ground, name)[:1] == [job_id]:
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(ground.path(FOLDER, name))


@contextlib.contextmanager
def _alone(ground: Ground) -> Iterator[None]:
    """One change of names at a time. The kernel lets go of the lock when its holder dies."""
    with contextlib.suppress(FileExistsError):
        fs.mkdir(ground.path(FOLDER))  # in a root that an older farro made
    with leases.exclusively(ground.path(FOLDER, _LOCK)):
        yield


def _link(ground: Ground, name: str, target: str) -> None:
    """Replace what the name says, in one call."""
    temporary = fs.temporary(ground.path(FOLDER))
    fs.symlink(target, temporary)
    try:
        fs.replace(temporary, ground.path(FOLDER, name))
    except OSError:
        with contextlib.suppress(OSError):
            fs.unlink(temporary)
        raise


def _links(ground: Ground) -> list[str]:
    try:
        return sorted(filter(ids.is_job_id, fs.listdir(ground.path(FOLDER))))
    except FileNotFoundError:
        return []


def _targets(ground: Ground, name: str) -> list[str]:
    """The jobs that a link names; a link that somebody else put there names none."""
    try:
        target = fs.readlink(ground.path(FOLDER, ids.check_job_name(name))) or ""
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise  # nobody can say: trouble of the disk is not a name that nobody has
        return []  # a folder in its place
    return [job_id for job_id in target.split(".") if ids.is_job_id(job_id)]


def _exists(ground: Ground, job_id: str) -> bool:
    """Also a job that is registered and about to be published: clean-up does it when its submitter died."""
    if views.locate(ground, job_id) is not None:
        return True
    try:
        return bool(chosen_ids.registered(ground, job_id)[1])
    except Damaged:
        return False
