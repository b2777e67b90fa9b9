"""Check plans, and list, show and submit the plans of the library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from farro.jobs.request import JobRequest
from farro.lazy_dataclass import dataclass
from farro.queue import library, plan_check
from farro.queue.submit import submit
from farro.web import responses
from farro.web.errors import HttpError
from farro.web.request_handling import ApiRequest, Routes, WebState

routes = Routes("plans")


@dataclass(frozen=True, kw_only=True)
class PlanCheckBody:
    plan: Any


@dataclass(frozen=True, kw_only=True)
class PlanCheckResponse:
    ok: bool
    steps: int | None
    longest_chain: int | None
    together: int | None
    parallel: int | None
    timeout_s: float | None
    tools: tuple[str, ...]
    problems: tuple[responses.ProblemData, ...]
    warnings: tuple[responses.ProblemData, ...]


@routes.post(
    "/api/plans/check", "Check a plan.", PlanCheckResponse, body=PlanCheckBody, changes_nothing=True, tag="jobs"
)
def check_plan(state: WebState, request: ApiRequest) -> Any:
    assert request.document is not None
    checked = plan_check.check(request.document.inside("plan"), state.plan_context())
    nothing = dict.fromkeys(("steps", "longest_chain", "together", "parallel", "timeout_s"))
    return {
        "ok": checked.measure is not None,
        **(asdict(checked.measure) if checked.measure is not None else {**nothing, "tools": ()}),
        "problems": checked.problems,
        "warnings": checked.warnings,
    }


@dataclass(frozen=True, kw_only=True)
class PlansResponse:
    plans: tuple[library.PlanLine, ...]


@routes.get("/api/plans", "The plans of the library.", PlansResponse, cache_s=1.0)
def list_plans(state: WebState, request: ApiRequest) -> Any:
    return {"plans": library.plans(state.library())}


@dataclass(frozen=True, kw_only=True)
class StoredPlanResponse:
    plan: Mapping[str, Any]


@routes.get("/api/plans/{plan}", "A plan of the library.", StoredPlanResponse)
def show_plan(state: WebState, request: ApiRequest) -> Any:
    return {"plan": _find_plan(state, request)}


def _find_plan(state: WebState, request: ApiRequest) -> Mapping[str, Any]:
    name = request.path["plan"]
    found = state.library().get("plan", name)
    if found is None:
        raise HttpError(404, "unknown_plan", f"no plan {name} is stored; GET /api/plans lists the stored plans")
    return found


@dataclass(frozen=True, kw_only=True)
class SubmitPlanBody:
    id: str | None = None
    role: str | None = None
    force: bool = False


@routes.post(
    "/api/plans/{plan}/submit",
    "Queue a plan of the library.",
    responses.EnqueueResponse,
    body=SubmitPlanBody,
    status=201,
)
def submit_plan(state: WebState, request: ApiRequest) -> Any:
    body: SubmitPlanBody = request.body
    _find_plan(state, request)
    document = library.plan_document(state.library(), request.path["plan"])
    asked = JobRequest(document=document, id=body.id, role=body.role, force=body.force)
    return {"jobs": [job.id for job in submit(state.store, [asked], state.policy)]}
