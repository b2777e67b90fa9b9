"""Decide what comes next for a job that the manager routes, from its task, its hops and its last result. Pure.

The rules (DESIGN §6):

- Without a workflow the job is complete when its one role has succeeded.
- A role that succeeded hands on to the next step of the workflow; after the last step the job is complete.
- A review that asks for changes sends the job back to the last engineer before it, at most `review_rounds` times for
  each review; then the job fails.
- A `human` step waits for a person. Approved or edited, the job goes on. Refused, it goes back with the person's note
  to the role before it; if that is a review, to the role that makes the changes for that review, because a reviewer
  that has approved has nothing to change. If no role worked before, the job fails.
- A role outside the workflow, to which a person sent the job, takes one turn. Then the job continues with the step
  where it was, or with the next one if that step was done. Findings of such a role, if it reviews, go to the role that
  worked last.

[tests/roles/test_workflow.py]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any

from farro.jobs.envelope import Hop
from farro.jobs.states import Reason
from farro.lazy_dataclass import dataclass
from farro.roles import answers, names
from farro.roles.task import HUMAN, WorkflowTask

MANAGER = names.MANAGER
MAX_NOTE = 4000
_DECIDES = frozenset({Reason.ROUTED, Reason.REROUTED, Reason.ANSWERED})


class RouteCode(StrEnum):
    """What was decided. Written to hops[] and to the audit log."""

    NEXT = "next"
    CHANGES = "changes"  # back, with the findings of a review
    HUMAN = "human"  # a person decides
    COMPLETE = "complete"
    FAIL = "fail"
    PAUSED = "paused"  # the manager postpones it: the queues are too full (auto-plan)
    # decided by others than the manager:
    FAST_PATH = "fast_path"
    DEGRADED_BYPASS = "degraded_bypass"
    OVERRIDE = "override"
    APPROVED = "approved"
    REFUSED = "refused"
    EDITED = "edited"


_NOTE_IS_FOR_THE_ROLE = frozenset({RouteCode.CHANGES, RouteCode.OVERRIDE})


@dataclass(frozen=True, kw_only=True, slots=True)
class RouteDecision:
    """A decision of the manager about one job."""

    code: RouteCode
    note: str  # for people and for the next role
    to: str | None = None  # the next role; None if the job ends or waits
    step: int | None = None  # the step of the workflow that the job goes to
    review: int | None = None  # the step whose review sent it back
    round: int | None = None

    @property
    def route(self) -> dict[str, Any]:
        """Return the decision as a hop records it."""
        fields = {"code": str(self.code), "step": self.step, "review": self.review, "round": self.round}
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Where a job is in its workflow, by its hops. `step` is None until it has entered the workflow."""

    step: int | None
    rounds: Mapping[int, int]  # keyed by the step of the review
    last: Hop | None  # the last hop that decided where the job goes
    over: bool = False  # whether the work of `step` is done

    @property
    def answered(self) -> RouteCode | None:
        """Return what a person decided, if that is the last decision."""
        if self.last is None or self.last.reason is not Reason.ANSWERED:
            return None
        return RouteCode((self.last.route or {}).get("code", RouteCode.APPROVED))

    @property
    def asked(self) -> bool:
        """Return whether the job left the wait for a person without an answer, because of a crash."""
        return self.last is not None and _decided(self.last) == RouteCode.HUMAN

    @property
    def worked(self) -> Hop | None:
        """Return the hop of a role that has just succeeded."""
        last = self.last
        if last is None or last.reason is not Reason.ROUTED or last.role == MANAGER or self.asked:
            return None
        return last


def position(hops: Sequence[Hop], first_role: str, task: WorkflowTask | None) -> Position:
    """Compute the position of a job from its hops."""
    step = 0 if task is not None and task.workflow[0].role == first_role else None
    rounds: dict[int, int] = {}
    last = None
    over = False
    for hop in hops:
        route = hop.route or {}
        own = task is not None and step is not None and task.workflow[step].role == hop.role
        over = over or hop.reason is Reason.ANSWERED or (hop.reason is Reason.ROUTED and own)
        if isinstance(target := route.get("step"), int) and (task is None or 0 <= target < len(task.workflow)):
            step, over = target, over and hop.reason is Reason.ANSWERED
        if _decided(hop) == RouteCode.CHANGES and isinstance(review := route.get("review"), int):
            rounds[review] = rounds.get(review, 0) + 1
        if hop.reason in _DECIDES:
            last = hop
    return Position(step=step, rounds=rounds, last=last, over=over)


def worked_before(hops: Sequence[Hop]) -> tuple[tuple[str, int], ...]:
    """List which role worked in which attempt.

    The manager only hands results on. A result that a person edited is listed beside the one it was made of.
    """
    found: list[tuple[str, int]] = []
    for hop in hops:
        edited = hop.reason is Reason.ANSWERED and (hop.route or {}).get("code") == RouteCode.EDITED
        if edited or (hop.reason is Reason.ROUTED and hop.role != MANAGER):
            found.append(("a person" if edited else hop.role, hop.attempt))
    return tuple(found)


def sent_to(hops: Sequence[Hop]) -> int | None:
    """Return the step of the workflow that the job was sent to; None if it was sent to none yet."""
    return position(hops, "", None).step


def asked_changes(hops: Sequence[Hop]) -> str:
    """Return why the job was sent to its present role, if that role has to know."""
    last = position(hops, "", None).last
    return (last.note or "") if last is not None and _decided(last) in _NOTE_IS_FOR_THE_ROLE else ""


def _decided(hop: Hop) -> str | None:
    """Return the code of a hop's decision.

    A bypass of the manager counts as the decision that the manager would have made.
    """
    route = hop.route or {}
    code = route.get("code")
    found = route.get("decided") if code == RouteCode.DEGRADED_BYPASS else code
    return found if isinstance(found, str) else None


def decide(
    task: WorkflowTask | None, at: Position, *, role: str | None, answer: Mapping[str, Any] | None
) -> RouteDecision:
    """Decide what comes next.

    `role` and `answer` are the role that has just succeeded and its typed answer. With None, a person has answered or
    no role has worked yet.
    """
    if at.asked and role is None and task is not None and at.step is not None:
        return _entered(task, at.step, "asked again")
    if at.answered is not None and role is None:
        return _after_person(task, at, at.answered)
    if role is None:
        if task is None:
            why = f"a prompt for the {MANAGER} needs a task with a workflow: inputs.task_id names one in tasks/"
            return RouteDecision(code=RouteCode.FAIL, note=why)
        return _entered(task, at.step or 0, f"task {task.id} begins")
    if task is None:
        return RouteDecision(code=RouteCode.COMPLETE, note=f"{role} succeeded")
    if at.step is not None and wants_changes(role, answer):
        return _sent_back(task, at, at.step, role, answer or {})
    if at.step is not None and not approved(role, answer):
        why = f"the verdict of {role} cannot be read in its result.json; an unreadable verdict is no approval"
        return RouteDecision(code=RouteCode.FAIL, step=at.step, note=why)
    why = f"{role} {_approval(role)}"
    if at.step is not None and _beside(task, at.step, role) and not at.over:
        return _entered(task, at.step, why)
    return _onward(task, at.step, why)


def _beside(task: WorkflowTask, step: int, role: str) -> bool:
    """Tell whether a person sent the job to this role, which the workflow does not have at that step."""
    return task.workflow[step].role != role


def possible(decision: RouteDecision, roles: Collection[str]) -> RouteDecision:
    """Return the decision if the root has its role; else the decision that the workflow cannot be followed.

    A task is checked when it is enqueued and may have changed when the job is claimed; a job that names a task in its
    inputs is not checked at all.
    """
    message = None if decision.to is None else names.fault_of(decision.to, roles)
    if message is None:
        return decision
    return RouteDecision(
        code=RouteCode.FAIL, note=f"its task cannot be followed: {message}"[:MAX_NOTE], step=decision.step
    )


def wants_changes(role: str, answer: Mapping[str, Any] | None) -> bool:
    """Tell whether the answer is a review that asks for changes."""
    return answers.shape_of(role) is answers.Review and (answer or {}).get("verdict") == "changes_requested"


def approved(role: str, answer: Mapping[str, Any] | None) -> bool:
    """Tell whether a review approves; a role that does not review has nothing to approve."""
    return answers.shape_of(role) is not answers.Review or (answer or {}).get("verdict") == "approve"


def _approval(role: str) -> str:
    return "approved" if answers.shape_of(role) is answers.Review else "succeeded"


def _onward(task: WorkflowTask, step: int | None, why: str) -> RouteDecision:
    following = 0 if step is None else step + 1
    if following >= len(task.workflow):
        return RouteDecision(code=RouteCode.COMPLETE, note=f"{why}; that was the last step of {task.id}", step=step)
    return _entered(task, following, why)


def _entered(task: WorkflowTask, step: int, why: str) -> RouteDecision:
    hop = task.workflow[step]
    if hop.role == HUMAN:
        return RouteDecision(code=RouteCode.HUMAN, step=step, note=f"{why}; a person is asked: {hop.rubric}"[:MAX_NOTE])
    note = f"{why}; step {step + 1} of {len(task.workflow)} of {task.id} is {hop.role}'s"
    return RouteDecision(code=RouteCode.NEXT, to=hop.role, step=step, note=note)


def _sent_back(task: WorkflowTask, at: Position, review: int, role: str, answer: Mapping[str, Any]) -> RouteDecision:
    findings = _findings(answer)
    done = at.rounds.get(review, 0)
    back = worker_before(task, review + _beside(task, review, role))
    if back is None:
        why = f"{role} asks for changes, and no step before it could make them"
        return RouteDecision(code=RouteCode.FAIL, step=review, note=f"{why}:\n{findings}"[:MAX_NOTE])
    if done >= task.review_rounds:
        why = f"{role} asks for changes again after {done} rounds, which is the most that {task.id} allows"
        return RouteDecision(code=RouteCode.FAIL, step=review, note=f"{why}:\n{findings}"[:MAX_NOTE])
    note = f"{role} asks for changes (round {done + 1} of {task.review_rounds}):\n{findings}"
    return RouteDecision(
        code=RouteCode.CHANGES,
        to=task.workflow[back].role,
        step=back,
        review=review,
        round=done + 1,
        note=note[:MAX_NOTE],
    )


def _after_person(task: WorkflowTask | None, at: Position, said: RouteCode) -> RouteDecision:
    words = (at.last.note if at.last is not None else None) or ""
    if task is None or at.step is None:
        code = RouteCode.FAIL if said is RouteCode.REFUSED else RouteCode.COMPLETE
        return RouteDecision(code=code, note=f"a person {said} it{f': {words}' if words else ''}")
    if said is not RouteCode.REFUSED:
        return _onward(task, at.step, f"a person {said} it")
    back = _refused_to(task, at.step)
    note = f"a person refused it: {words}"[:MAX_NOTE]
    if back is None:
        return RouteDecision(code=RouteCode.FAIL, step=at.step, note=f"{note}; no role worked before it")
    return RouteDecision(code=RouteCode.CHANGES, to=task.workflow[back].role, step=back, note=note)


def _refused_to(task: WorkflowTask, step: int) -> int | None:
    """Return the step that works again after a person's refusal at `step`.

    [test_a_persons_refusal_goes_to_the_role_that_would_get_a_reviews_findings]
    """
    before = _before(task, step, lambda role: role != HUMAN)
    if before is None or answers.shape_of(task.workflow[before].role) is not answers.Review:
        return before
    worker = worker_before(task, before)
    return before if worker is None else worker  # reviews only: the last of them reviews again


def worker_before(task: WorkflowTask, step: int) -> int | None:
    """Return the step that makes the changes for the review at `step`.

    It is the last engineer before it, else the last role that does not review.
    """
    engineer = _before(task, step, lambda role: answers.shape_of(role) is answers.CodeChange)
    if engineer is not None:
        return engineer
    return _before(task, step, lambda role: role != HUMAN and answers.shape_of(role) is not answers.Review)


def _before(task: WorkflowTask, step: int, fits: Any) -> int | None:
    return next((index for index in range(step - 1, -1, -1) if fits(task.workflow[index].role)), None)


def step_of(task: WorkflowTask | None, at: Position, role: str) -> int | None:
    """Return the step that an override to `role` means: the next one from here on, else the last before.

    None: the role is not part of the workflow; when it is done, the workflow continues from its present step.
    """
    if task is None:
        return None
    steps = [index for index, hop in enumerate(task.workflow) if hop.role == role]
    later = [index for index in steps if index >= (at.step or 0)]
    return later[0] if later else steps[-1] if steps else None


def _findings(answer: Mapping[str, Any]) -> str:
    found = answer.get("findings")
    lines = [answer["summary"]] if isinstance(answer.get("summary"), str) else []
    for one in found if isinstance(found, Sequence) and not isinstance(found, str) else ():
        if isinstance(one, Mapping) and isinstance(one.get("message"), str):
            place = f"{one['path']}{':' + str(one['line']) if one.get('line') else ''}: " if one.get("path") else ""
            lines.append(f"- {place}{one['message']}")
    return "\n".join(lines)
