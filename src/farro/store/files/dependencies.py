"""Jobs that run after others: where they lie meanwhile, and the index that says who waits for whom.

Taking them from there lives in unblock; what an end means to them lives in plans.after.

    agents/Manager/waiting/<job>/            the job, its role in job.json: a claim never walks past it
    jobs/.after/<dependency>/<job> -> <job>  made before the job is published, removed after it has left: while a job
                                             waits, whoever ends its dependency finds it

A submitter registers, publishes, then looks again: a dependency that ended in between found the entry but no job, or
not even the entry. Whatever dies on the way, recovery finds the entry. [tests/crash/test_after.py]
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Sequence
from functools import partial

from farro.errors import FarroError, StorageTrouble
from farro.host import fs
from farro.jobs import ids, places, transitions
from farro.jobs.states import Status
from farro.plans import after
from farro.plans.after import Dependencies, DependencyState
from farro.store.files import folder as folders
from farro.store.files import views
from farro.store.files.context import Ground
from farro.store.port import Submission

_TRIES = 8  # an entry's folder may be removed, empty, while we put an entry into it


def index(ground: Ground) -> str:
    return f"{ground.root}/jobs/.after"


def waits(submission: Submission) -> bool:
    return bool(after.dependencies(submission.prompt).all)


def end_of(ground: Ground, job_id: str) -> DependencyState:
    """How far a job is. The path says it (R1), but for a failure that is not final."""
    if fs.exists(ground.path(places.WAITING, job_id)):
        return DependencyState.OPEN
    found = views.locate(ground, job_id)
    if found is None:
        return DependencyState.GONE
    if found.place == places.QUARANTINE or found.status is Status.KILLED:
        return DependencyState.FAILED
    if found.status is Status.SUCCEEDED:
        return DependencyState.SUCCEEDED
    if found.status is Status.FAILED:
        try:
            return DependencyState.FAILED if views.view(ground, found).lifecycle.terminal else DependencyState.OPEN
        except FileNotFoundError:
            return DependencyState.OPEN  # on the move: not final
    return DependencyState.OPEN


def blocking(ground: Ground, submissions: Sequence[Submission]) -> list[list[str]]:
    """What each submission has to wait for. Refused before anything is written when one could never run; not one whose
    chosen id is known already, which answers what it is."""
    earlier: set[str] = set()
    found = []
    for submission in submissions:
        named = after.dependencies(submission.prompt)
        own = submission.job_id
        blocks: list[str] = []
        if named.all and not (own is not None and fs.exists(f"{ground.registry}/{own}")):
            blocks = after.blocking(named, lambda name: end_of(ground, name), earlier=earlier, own=own)
        found.append(blocks)
        if own is not None:
            earlier.add(own)
    return found


def staged(ground: Ground, path: str) -> list[str]:
    """What a job in staging was staged to wait for; nothing when it goes to its queue, or was published meanwhile."""
    try:
        if transitions.waits(folders.read_lifecycle(path)):
            return list(after.dependencies(folders.read_prompt(ground, path)).all)
    except FileNotFoundError:
        pass
    return []


def register(ground: Ground, job_id: str, blocks: Sequence[str]) -> list[str]:
    """Say that it waits for them; answers the folders that must be on the disk before the job is published."""
    home = index(ground)
    for dependency in blocks:
        fs.retried(partial(_enter, home, dependency, job_id), home, ground.clock.sleep)
    return [*(f"{home}/{dependency}" for dependency in blocks), home, ground.path("jobs")] if blocks else []


def _enter(home: str, dependency: str, job_id: str) -> None:
    for _ in range(_TRIES):
        for folder in (home, f"{home}/{dependency}"):
            with contextlib.suppress(FileExistsError):
                fs.mkdir(folder)
        try:
            fs.symlink(job_id, f"{home}/{dependency}/{job_id}")
        except FileExistsError:
            return
        except FileNotFoundError:
            continue  # whoever took the last entry out removed the folder
        return
    raise StorageTrouble(f"{home}/{dependency} vanishes again and again; nothing was queued, try again")


def forget(ground: Ground, job_id: str, dependencies: Sequence[str]) -> None:
    """It waits for them no more. What cannot be removed now is found by the next pass of recovery."""
    for dependency in dependencies:
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(f"{index(ground)}/{dependency}/{job_id}")
        drop_folder(ground, dependency)


def drop_folder(ground: Ground, dependency: str) -> None:
    """Remove a dependency's folder from the index, if nobody waits for it."""
    try:
        fs.rmdir(f"{index(ground)}/{dependency}")
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise


def awaited(ground: Ground, job_id: str) -> bool:
    return fs.exists(f"{index(ground)}/{job_id}")


def any_awaited(ground: Ground) -> bool:
    """Whether any job is: each has a folder in the index, and most filesystems count the folders of a folder among its
    links, beside its own two. Where they do not (btrfs: 1), it may be."""
    try:
        return fs.lstat(index(ground)).st_nlink != 2
    except FileNotFoundError:
        return False


def names(path: str) -> list[str]:
    """The ids in a folder of the index; none when it is gone."""
    try:
        return sorted(name for name in fs.listdir(path) if ids.is_job_id(name))
    except FileNotFoundError:
        return []


def coming(ground: Ground, role: str) -> int:
    """How many waiting jobs of that role may still enter its queue: all that they wait for is queued, running, over, or
    waits for such. What is stale, open after a failure or gone needs somebody's hand first."""
    roles: dict[str, str] = {}
    needs: dict[str, tuple[str, ...]] = {}
    for name in fs.subdirectories(ground.path(places.WAITING)):
        path = ground.path(places.WAITING, name)
        try:
            named: Dependencies = after.dependencies(folders.read_prompt(ground, path))
            life = folders.read_lifecycle(path)
            roles[name] = life.role
            needs[name] = () if transitions.waits_for_person(life) else named.all
        except (FarroError, OSError):
            continue  # gone on, or damaged
    if role not in roles.values():
        return 0
    stuck = {name for name, wanted in needs.items() if not wanted}  # it waits for a person
    for name in {name for wanted in needs.values() for name in wanted} - needs.keys():
        found = views.locate(ground, name)
        if (
            found is None
            or found.status is Status.STALE
            or (found.status is Status.FAILED and end_of(ground, name) is DependencyState.OPEN)
        ):
            stuck.add(name)
    dependents: dict[str, list[str]] = {}
    for name, wanted in needs.items():
        for dependency in wanted:
            dependents.setdefault(dependency, []).append(name)
    todo = list(stuck)
    while todo:
        for name in dependents.get(todo.pop(), ()):
            if name not in stuck:
                stuck.add(name)
                todo.append(name)
    return sum(1 for name, owner in roles.items() if owner == role and name not in stuck)
