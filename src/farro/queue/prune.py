"""Remove finished jobs slowly: choose them, and delete them in small batches.

Why slowly: on a filesystem that deletes many files, every create waits (ext4: ten to forty times as long). So a job
first leaves completed/ by one rename, and its files are deleted in small batches with pauses, longer ones while any
queue has work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime

from farro.errors import Refused, StorageTrouble
from farro.host.clock import Clock
from farro.jobs.states import Status
from farro.jobs.times import moment_or_none
from farro.lazy_dataclass import dataclass, field
from farro.queue import find_job, tree
from farro.queue.explain import named_dependencies
from farro.queue.jobs import operator
from farro.store.files import FilesStore
from farro.store.files.prune import size
from farro.store.fleet import Fleet
from farro.store.port import Agent, Store

TOGETHER = 200  # renames between two pauses
BATCH, PAUSE_S = 20, 0.02  # folders that are removed between two pauses
BUSY_BATCH, BUSY_PAUSE_S = 5, 0.1  # the same while jobs are queued or running


@dataclass(frozen=True, kw_only=True, slots=True)
class PruneFilter:
    """The finished jobs to remove: those older than the age for their status, except the newest `keep` of all."""

    ages_s: Mapping[Status, float | None] = field(default_factory=lambda: dict.fromkeys(tree.FINISHED))
    """A status that is not here is not touched; None: of any age."""
    keep: int | None = None
    roles: Collection[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PruneCandidate:
    """A job that may be removed."""

    job_id: str
    place: str
    role: str
    status: Status
    finalized_at: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruned:
    """The result of a prune."""

    jobs: int
    bytes: int
    debris: int  # folders that an earlier prune left behind
    left: tuple[str, ...] = ()  # what could not be removed, and why: one line for each job

    def check(self) -> None:
        """Raise StorageTrouble if something could not be removed."""
        if self.left:
            more = "" if len(self.left) == 1 else f". And {len(self.left) - 1} more like it"
            raise StorageTrouble(f"could not be removed: {self.left[0]}{more}")


def candidates(store: Store, choice: PruneFilter, *, now: datetime) -> list[PruneCandidate]:
    """Return what would be removed, oldest first. Changes nothing; `prune` checks again."""
    roles = find_job.roles(store, choice.roles)
    wanted = _waited_for(store)
    found: list[tuple[datetime, PruneCandidate]] = []
    for entry in tree.entries(store, choice.ages_s.keys(), roles=roles):
        life = entry.lifecycle()
        ended = None if life is None else moment_or_none(life.finalized_at)
        if entry.role is None or life is None or ended is None or not life.terminal or entry.job_id in wanted:
            continue
        found.append(
            (
                ended,
                PruneCandidate(
                    job_id=entry.job_id,
                    place=entry.place,
                    role=entry.role,
                    status=entry.status,
                    finalized_at=str(life.finalized_at),
                ),
            )
        )
    found.sort(key=lambda pair: (pair[0], pair[1].job_id))
    if choice.keep is not None:
        found = found[: max(0, len(found) - choice.keep)]
    return [job for ended, job in found if _old_enough(choice.ages_s[job.status], now, ended)]


def _old_enough(age_s: float | None, now: datetime, ended: datetime) -> bool:
    return age_s is None or (now - ended).total_seconds() > age_s


def measured(store: Store, chosen: Sequence[PruneCandidate]) -> int | None:
    """Return the bytes that these jobs occupy; None if the store cannot say without reading them all."""
    if not isinstance(store, FilesStore):
        return None
    return sum(size(f"{store.root}/{job.place}/{job.job_id}") for job in chosen)


def prune(
    store: Store,
    chosen: Sequence[PruneCandidate],
    *,
    by: str,
    clock: Clock,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Pruned:
    """Remove the jobs. Stopped or killed at any point: each job still exists, or the next prune removes it."""
    if not isinstance(store, FilesStore):
        return _remove_from_fleet(store, chosen, by, progress)
    with store.trash() as trash:
        debris = set(trash.names())
        taken = 0
        for count, job in enumerate(chosen, start=1):
            taken += trash.take(job.job_id, job.place)
            if count % TOGETHER == 0:
                clock.sleep(PAUSE_S)
        held = 0
        left: dict[str, str] = {}
        names = trash.names()
        for done, name in enumerate(_gently(store, names, clock), start=1):
            try:
                held += trash.remove(name)
            except StorageTrouble as error:  # another user's files: without this, one such folder blocked all after it
                left[name] = str(error)
            progress(done, len(names))
    again = len(debris & left.keys())
    return Pruned(jobs=taken - (len(left) - again), bytes=held, debris=len(debris) - again, left=tuple(left.values()))


def _remove_from_fleet(
    store: Store, chosen: Sequence[PruneCandidate], by: str, progress: Callable[[int, int], None]
) -> Pruned:
    """Remove jobs from a store without folders: at once, since there are no files to delete slowly."""
    if not isinstance(store, Fleet):
        raise Refused("the jobs of this store cannot be removed one by one")
    taken = 0
    with operator(store, by) as agent:
        for start in range(0, len(chosen), BATCH):
            taken += len(store.remove(agent, [job.job_id for job in chosen[start : start + BATCH]]))
            progress(min(start + BATCH, len(chosen)), len(chosen))
    return Pruned(jobs=taken, bytes=0, debris=0)


def remove_one(store: Store, agent: Agent, job_id: str, place: str) -> bool:
    """Remove one final job now. False: it is not final, or something still refers to it."""
    if isinstance(store, FilesStore):
        with store.trash() as trash:
            if not trash.take(job_id, place):
                return False
            for name in trash.names():
                if name.split(".", 1)[0] == job_id:  # not what an earlier prune left behind
                    trash.remove(name)
            return True
    return isinstance(store, Fleet) and store.remove(agent, [job_id]) == [job_id]


def _gently(store: FilesStore, names: Sequence[str], clock: Clock) -> Iterator[str]:
    """Yield the names in batches with pauses between them."""
    left = list(reversed(names))
    while left:
        batch, pause_s = (BUSY_BATCH, BUSY_PAUSE_S) if tree.has_work(store) else (BATCH, PAUSE_S)
        for _ in range(min(batch, len(left))):
            yield left.pop()
        if left:
            clock.sleep(pause_s)


def _waited_for(store: Store) -> set[str]:
    """Return the jobs that others wait for: their result must stay available."""
    found: set[str] = set()
    for entry in tree.waiting(store):
        prompt = entry.prompt(store)
        for key in ("after", "after_any"):
            found.update(named_dependencies(prompt, key))
    return found
