"""Keep jobs that run after others: the folder where they wait, and the index of which job waits for which.

    agents/Manager/waiting/<job>/            the job, with its role in job.json; claims never see it
    jobs/.after/<dependency>/<job> -> <job>  made before the job is published and removed after it has left, so that the
                                             process that ends the dependency finds the waiting job

A submitter registers, publishes, then checks again, because a dependency that ended in between found the entry but no
job, or not even the entry. If a process dies on the way, recovery finds the entry. [tests/crash/test_after.py]
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Sequence
from functools import partial

from farro.errors import FarroError, StorageTrouble
from farro.host import fs
from farro.jobs import ids, moves, places
from farro.jobs.states import Status
from farro.plans import after
from farro.plans.after import Dependencies, DependencyState
from farro.store.files import folder as folders
from farro.store.files import views
from farro.store.files.context import FilesContext
from farro.store.port import Submission

_TRIES = 8  # another process may remove the empty folder while we add an entry


def index(context: FilesContext) -> str:
    return f"{context.root}/jobs/.after"


def waits(submission: Submission) -> bool:
    return bool(after.dependencies(submission.prompt).all)


def end_of(context: FilesContext, job_id: str) -> DependencyState:
    """Return how the job ended, if it has. The path says so (R1), except for a failure that is not final."""
    if fs.exists(context.path(places.WAITING, job_id)):
        return DependencyState.OPEN
    found = views.locate(context, job_id)
    if found is None:
        return DependencyState.GONE
    if found.place == places.QUARANTINE or found.status is Status.KILLED:
        return DependencyState.FAILED
    if found.status is Status.SUCCEEDED:
        return DependencyState.SUCCEEDED
    if found.status is Status.FAILED:
        try:
            return DependencyState.FAILED if views.view(context, found).lifecycle.terminal else DependencyState.OPEN
        except FileNotFoundError:
            return DependencyState.OPEN  # on the move: not final
    return DependencyState.OPEN


def blocking(context: FilesContext, submissions: Sequence[Submission]) -> list[list[str]]:
    """Return the ids that each submission has to wait for. Raises before anything is written if one could never run,
    unless its chosen id is already registered: then the existing job is returned later."""
    earlier: set[str] = set()
    found = []
    for submission in submissions:
        named = after.dependencies(submission.prompt)
        own = submission.job_id
        blocks: list[str] = []
        if named.all and not (own is not None and fs.exists(f"{context.registry}/{own}")):
            blocks = after.blocking(named, lambda name: end_of(context, name), earlier=earlier, own=own)
        found.append(blocks)
        if own is not None:
            earlier.add(own)
    return found


def staged(context: FilesContext, path: str) -> list[str]:
    """Return the ids that a staged job waits for; empty if it goes to its queue or was published meanwhile."""
    try:
        if moves.waits(folders.read_lifecycle(path)):
            return list(after.dependencies(folders.read_prompt(context, path)).all)
    except FileNotFoundError:
        pass
    return []


def register(context: FilesContext, job_id: str, blocks: Sequence[str]) -> list[str]:
    """Add the job to the index. Returns the folders to sync before the job is published."""
    home = index(context)
    for dependency in blocks:
        fs.retried(partial(_enter, home, dependency, job_id), home, context.clock.sleep)
    return [*(f"{home}/{dependency}" for dependency in blocks), home, context.path("jobs")] if blocks else []


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
            continue  # another process took the last entry out and removed the folder
        return
    raise StorageTrouble(f"{home}/{dependency} keeps vanishing; nothing was queued, try again")


def forget(context: FilesContext, job_id: str, dependencies: Sequence[str]) -> None:
    """Remove the job from the index. The next recovery pass finds what cannot be removed now."""
    for dependency in dependencies:
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(f"{index(context)}/{dependency}/{job_id}")
        drop_folder(context, dependency)


def drop_folder(context: FilesContext, dependency: str) -> None:
    """Remove a dependency's folder from the index, if no job waits for it."""
    try:
        fs.rmdir(f"{index(context)}/{dependency}")
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise


def awaited(context: FilesContext, job_id: str) -> bool:
    return fs.exists(f"{index(context)}/{job_id}")


def any_awaited(context: FilesContext) -> bool:
    """Return whether any job is awaited, or may be. Each awaited job has a folder in the index, and most filesystems
    include subfolders in a folder's link count (2 without any). Where they do not (btrfs: 1), the answer is yes."""
    try:
        return fs.lstat(index(context)).st_nlink != 2
    except FileNotFoundError:
        return False


def names(path: str) -> list[str]:
    """Return the ids in a folder of the index; empty when it is gone."""
    try:
        return sorted(name for name in fs.listdir(path) if ids.is_job_id(name))
    except FileNotFoundError:
        return []


def coming(context: FilesContext, role: str) -> int:
    """Return how many waiting jobs of that role may still enter its queue by themselves: everything that they wait for
    is queued, running, ended, or waits for such jobs. A stale, missing or not finally failed job needs a decision
    first."""
    roles: dict[str, str] = {}
    needs: dict[str, tuple[str, ...]] = {}
    for name in fs.subdirectories(context.path(places.WAITING)):
        path = context.path(places.WAITING, name)
        try:
            named: Dependencies = after.dependencies(folders.read_prompt(context, path))
            life = folders.read_lifecycle(path)
            roles[name] = life.role
            needs[name] = () if moves.waits_for_person(life) else named.all
        except (FarroError, OSError):
            continue  # it has moved on, or is damaged
    if role not in roles.values():
        return 0
    stuck = {name for name, wanted in needs.items() if not wanted}  # it waits for a person
    for name in {name for wanted in needs.values() for name in wanted} - needs.keys():
        found = views.locate(context, name)
        if (
            found is None
            or found.status is Status.STALE
            or (found.status is Status.FAILED and end_of(context, name) is DependencyState.OPEN)
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
    return sum(1 for name, its_role in roles.items() if its_role == role and name not in stuck)
