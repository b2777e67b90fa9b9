"""Choose finished jobs that are no longer needed, and remove them from the store."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from farro.errors import StorageTrouble
from farro.jobs.states import FINISHED, Status
from farro.jobs.times import moment_or_none
from farro.lazy_dataclass import dataclass, field
from farro.queue import find_job
from farro.queue.explain import named_dependencies
from farro.store.port import Removed, Store


@dataclass(frozen=True, kw_only=True, slots=True)
class PruneFilter:
    """The finished jobs to remove: those older than the age for their status, except the newest `keep` of all."""

    ages_s: Mapping[Status, float | None] = field(default_factory=lambda: dict.fromkeys(FINISHED))
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


def candidates(store: Store, choice: PruneFilter, *, now: datetime) -> list[PruneCandidate]:
    """Return what would be removed, oldest first. Changes nothing; `prune` checks again."""
    roles = find_job.roles(store, choice.roles)
    wanted = _waited_for(store)
    found: list[tuple[datetime, PruneCandidate]] = []
    for entry in store.entries(roles=roles, statuses=choice.ages_s.keys()):
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


def check(removed: Removed) -> None:
    """Raise StorageTrouble if something could not be removed."""
    if removed.left:
        more = "" if len(removed.left) == 1 else f". And {len(removed.left) - 1} more like it"
        raise StorageTrouble(f"could not be removed: {removed.left[0]}{more}")


def _waited_for(store: Store) -> set[str]:
    """Return the jobs that others wait for: their result must stay available."""
    found: set[str] = set()
    for prompt in store.prompts(store.waiting()).values():
        for key in ("after", "after_any"):
            found.update(named_dependencies(prompt, key))
    return found
