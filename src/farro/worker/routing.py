"""Ask `roles.workflow` where a job goes next, with what it needs from the job's folder, and make the move.

The manager asks for every job; a worker asks if its role has the fast path, or if the manager is away and the config
allows bypassing it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farro.execution import task_snapshot
from farro.execution.progress import read_result
from farro.jobs.moves import Move
from farro.jobs.outcomes import ErrorInfo, Succeeded
from farro.jobs.states import Reason, Status
from farro.roles import answers, workflow
from farro.roles.task import WorkflowTask
from farro.roles.workflow import MANAGER, Position, RouteCode, RouteDecision
from farro.store.port import Claim


def job_folder(claim: Claim) -> str:
    return claim.folder.rsplit("/", 2)[0]


def previous(claim: Claim) -> tuple[tuple[str, str], ...]:
    """Return earlier hops: the role, and the folder with its result."""
    attempts = claim.place.rpartition("/")[0]
    found = workflow.worked_before(claim.envelope.lifecycle.hops)
    return tuple((role, f"{attempts}/{attempt:04d}") for role, attempt in found)


def task_of(folder: str) -> WorkflowTask | None:
    """Return the workflow that a job follows; None: it has none. BadDocument: it is invalid."""
    found = task_snapshot.kept(folder)
    return found if isinstance(found, WorkflowTask) else None


def of_worker(claim: Claim, outcome: Succeeded) -> RouteDecision:
    """Return what the manager would decide about this success."""
    task = task_of(job_folder(claim))
    life = claim.envelope.lifecycle
    at = workflow.position(life.hops, life.first_role, task)
    return workflow.decide(task, at, role=life.role, answer=_answer(outcome.report.result))


def of_manager(claim: Claim) -> tuple[RouteDecision, WorkflowTask | None, Position]:
    """Return what comes next for a job that the manager has claimed."""
    task = task_of(job_folder(claim))
    life = claim.envelope.lifecycle
    at = workflow.position(life.hops, life.first_role, task)
    worked = at.worked
    if worked is None:
        return workflow.decide(task, at, role=None, answer=None), task, at
    answer = _answer(result(claim, worked.attempt))
    return workflow.decide(task, at, role=worked.role, answer=answer), task, at


def result(claim: Claim, attempt: int) -> Mapping[str, Any]:
    """Read result.json of an earlier attempt."""
    return read_result(job_folder(claim), attempt)


def drafts(claim: Claim, at: Position) -> tuple[Any, ...]:
    """Return the prompts that an Architect's successful attempt proposes."""
    if at.worked is None or answers.shape_of(at.worked.role) is not answers.Analysis:
        return ()
    found = (_answer(result(claim, at.worked.attempt)) or {}).get("prompts")
    return tuple(found) if isinstance(found, list) else ()


def proposes(outcome: Succeeded) -> bool:
    """Return whether this success contains drafts."""
    return bool((_answer(outcome.report.result) or {}).get("prompts"))


def _answer(result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    agent = result.get("agent")
    answer = agent.get("answer") if isinstance(agent, Mapping) else None
    return answer if isinstance(answer, Mapping) else None


def move(decision: RouteDecision, *, role: str, route: Mapping[str, Any] | None = None) -> Move:
    """Return the decision as the store carries it out. `role`: the role that holds the job."""
    told = decision.route if route is None else route
    match decision.code:
        case RouteCode.COMPLETE:
            return Move(reason=Reason.COMMITTED, status=Status.SUCCEEDED, role=role, note=decision.note, route=told)
        case RouteCode.FAIL:
            error = ErrorInfo(category="workflow", message=decision.note)
            return Move(
                reason=Reason.COMMITTED, status=Status.FAILED, role=role, error=error, note=decision.note, route=told
            )
        case RouteCode.HUMAN:
            return Move(
                reason=Reason.ROUTED, status=Status.QUEUED, role=MANAGER, note=decision.note, route=told, waits=True
            )
        case _:
            assert decision.to is not None
            return Move(reason=Reason.ROUTED, status=Status.QUEUED, role=decision.to, note=decision.note, route=told)
