"""What a root has besides jobs: its roles and how each is set up, and the plans that are kept.

What jobs do lives in `looking` and `acting`; what a kept plan is, in operations.library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from farro.config.settings import RoleSettings
from farro.lazy_dataclass import dataclass
from farro.queue import library
from farro.web import answers
from farro.web.endpoints import Asked, Endpoint, get, post
from farro.web.errors import Wrong
from farro.web.state import House


@dataclass(frozen=True, kw_only=True)
class RoleTold:
    role: str
    description: str
    cap: int | None
    provider: str | None
    model: str | None
    read_only: bool
    network: bool
    budget_usd: float | None


@dataclass(frozen=True, kw_only=True)
class Roles:
    roles: tuple[RoleTold, ...]


def listed_roles(house: House, asked: Asked) -> Any:
    return {"roles": [asdict(_role(house, role)) for role in house.store.roles()]}


def _role(house: House, role: str) -> RoleTold:
    own = house.settings.roles.get(role) or RoleSettings()
    return RoleTold(
        role=role,
        description=own.description,
        cap=house.settings.cap_of(role),
        provider=own.provider,
        model=own.model,
        read_only=own.read_only,
        network=own.network,
        budget_usd=own.budget_usd,
    )


@dataclass(frozen=True, kw_only=True)
class Plans:
    plans: tuple[library.PlanLine, ...]


def listed_plans(house: House, asked: Asked) -> Any:
    return {"plans": [asdict(line) for line in library.plans(house.library())]}


@dataclass(frozen=True, kw_only=True)
class PlanKept:
    plan: Mapping[str, Any]


def shown_plan(house: House, asked: Asked) -> Any:
    return {"plan": _kept(house, asked)}


def _kept(house: House, asked: Asked) -> Mapping[str, Any]:
    found = house.library().get("plan", asked.path["plan"])
    if found is None:
        raise Wrong(404, "unknown_plan", f"no plan {asked.path['plan']} is kept; GET /api/plans lists those that are")
    return found


@dataclass(frozen=True, kw_only=True)
class Submitted:
    id: str | None = None
    role: str | None = None
    force: bool = False


def submit_plan(house: House, asked: Asked) -> Any:
    body: Submitted = asked.body
    _kept(house, asked)
    made = library.submit_plan(
        house.store,
        house.library(),
        asked.path["plan"],
        job_id=body.id,
        role=body.role,
        gate=house.gate(body.force),
        contract=house.contract(),
    )
    return {"jobs": [made]}


ENDPOINTS: tuple[Endpoint, ...] = (
    get("/api/roles", listed_roles, "The roles, and how each is set up.", Roles, tag="overview"),
    get("/api/plans", listed_plans, "The plans that are kept.", Plans, keep_s=1.0, tag="plans"),
    get("/api/plans/{plan}", shown_plan, "A kept plan.", PlanKept, tag="plans"),
    post(
        "/api/plans/{plan}/submit",
        submit_plan,
        "Queue a kept plan.",
        answers.Queued,
        body=Submitted,
        status=201,
        tag="plans",
    ),
)
