"""Jobs that have a name, and removing those that are finished.

Naming lives in operations.named, what may go and how gently in operations.prune; single jobs in `looking` and `acting`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from farro.air import service as air
from farro.config.fields import Lasting
from farro.documents.constraints import Bounds
from farro.errors import InputError
from farro.jobs.states import Status
from farro.jobs.times import parse_duration
from farro.lazy_dataclass import dataclass
from farro.queue import prune
from farro.web.endpoints import Asked, Endpoint, get, post
from farro.web.state import House

# --- names ---


@dataclass(frozen=True, kw_only=True)
class NamedJob:
    name: str
    job_id: str


@dataclass(frozen=True, kw_only=True)
class Names:
    names: tuple[NamedJob, ...]


def listed(house: House, asked: Asked) -> Any:
    return {"names": [{"name": name, "job_id": job_id} for name, job_id in house.store.names().items()]}


def shown(house: House, asked: Asked) -> Any:
    name = asked.path["name"]
    return {"name": name, "job_id": air.named_job_id(house.store, house.root, name)}


@dataclass(frozen=True, kw_only=True)
class Resetting:
    force: bool = False  # end it first, where it is worked on


def reset(house: House, asked: Asked) -> Any:
    force: bool = asked.body.force
    told = air.reset_named_job(
        house.store, house.root, asked.path["name"], by=house.person, force=force, gate=house.gate(False)
    )
    return asdict(told)


# --- what is finished ---


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """At least one of `older_than` and `keep`: a request that names nothing removes nothing."""

    older_than: Lasting | None = None
    keep: Annotated[int, Bounds(at_least=0)] | None = None  # the newest so many of those that are chosen stay
    status: tuple[Literal["succeeded", "failed", "killed"], ...] = ()
    role: tuple[str, ...] = ()
    limit: Annotated[int, Bounds(at_least=1, at_most=1000)] = 1000
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class PrunedTold:
    """`jobs` went, or would go, the oldest first; `left` more may, at the next request."""

    jobs: tuple[str, ...]
    left: int
    dry_run: bool


def pruned(house: House, asked: Asked) -> Any:
    body: Pruning = asked.body
    if body.older_than is None and body.keep is None:
        raise InputError("say what may go: older_than, such as 7d, or keep, or both")
    wanted = [Status.parse(one) for one in body.status] or [Status.SUCCEEDED, Status.FAILED, Status.KILLED]
    age_s = None if body.older_than is None else parse_duration(body.older_than)
    choice = prune.PruneFilter(ages_s=dict.fromkeys(wanted, age_s), keep=body.keep, roles=body.role)
    found = prune.candidates(house.store, choice, now=house.clock.now())
    chosen = found[: body.limit]
    if not body.dry_run:
        prune.prune(house.store, chosen, by=house.person, clock=house.clock).check()
    return {
        "jobs": [job.job_id for job in chosen],
        "left": len(found) - len(chosen),
        "dry_run": body.dry_run,
    }


ENDPOINTS: tuple[Endpoint, ...] = (
    get("/api/names", listed, "The jobs that have a name.", Names, keep_s=0.5, tag="names"),
    get("/api/names/{name}", shown, "Which job has that name.", NamedJob, tag="names"),
    post("/api/names/{name}/reset", reset, "Put it back to its start.", air.ResetResult, body=Resetting, tag="names"),
    post("/api/prune", pruned, "Remove finished jobs for good.", PrunedTold, body=Pruning),
)
