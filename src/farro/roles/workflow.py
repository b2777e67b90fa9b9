"""What comes next for a job that the manager routes: one decision from its task, its hops and its last result. Pure.

Carrying it out lives in services (manager, routing); the task's shape lives in task, the answers' in answers.

The rules (DESIGN §6):
- without a workflow the job is complete once its one role has succeeded;
- a role that succeeded hands on to the next step of the workflow; after the last step the job is complete;
- a review that asks for changes sends the job back to the last engineer before it, at most `review_rounds` times for
  each review; then the job has failed;
- a `human` step waits for a person: approved or edited, it goes on; refused, it goes back with the person's words to
  the role before it, and where that is a review, to who makes the changes that the review asks for: a reviewer that has
  approved has nothing to change. Where no role worked before, the job has failed;
- a role that the workflow does not have, to which a person sent the job, takes a turn: then comes the step at which the
  job was, or the one after it where that was over. Its findings, if it reviews, are for who worked last.
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
    """What was decided. Stands in hops[] and in the audit log."""

    NEXT = "next"
    CHANGES = "changes"  # back, with a review's findings
    HUMAN = "human"  # a person is asked
    COMPLETE = "complete"
    FAIL = "fail"
    PAUSED = "paused"  # the manager waits with it: too much is queued (auto-plan)
    # … by others than the manager
    FAST_PATH = "fast_path"
    DEGRADED_BYPASS = "degraded_bypass"
    OVERRIDE = "override"
    APPROVED = "approved"
    REFUSED = "refused"
    EDITED = "edited"


_TELLS = frozenset({RouteCode.CHANGES, RouteCode.OVERRIDE})


@dataclass(frozen=True, kw_only=True, slots=True)
class RouteDecision:
    code: RouteCode
    note: str  # for people, and for the next role
    to: str | None = None  # a role; None where the job ends or waits
    step: int | None = None  # of the workflow, that it goes to
    review: int | None = None  # the step whose review sent it back
    round: int | None = None

    @property
    def route(self) -> dict[str, Any]:
        """As a hop keeps it."""
        told = {"code": str(self.code), "step": self.step, "review": self.review, "round": self.round}
        return {name: value for name, value in told.items() if value is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Where a job is, by its hops. `step` is None while it has not entered the workflow."""

    step: int | None
    rounds: Mapping[int, int]  # by the step of the review
    last: Hop | None  # the last that decided where it goes
    over: bool = False  # whether the work of `step` is done

    @property
    def answered(self) -> RouteCode | None:
        """What a person said, where that is the last word."""
        if self.last is None or self.last.reason is not Reason.ANSWERED:
            return None
        return RouteCode((self.last.route or {}).get("code", RouteCode.APPROVED))

    @property
    def asked(self) -> bool:
        """Whether a person was asked, and somebody took the job from there without an answer (a crash)."""
        return self.last is not None and _decided(self.last) == RouteCode.HUMAN

    @property
    def worked(self) -> Hop | None:
        """The hop of a role that has just succeeded."""
        last = self.last
        if last is None or last.reason is not Reason.ROUTED or last.role == MANAGER or self.asked:
            return None
        return last


def position(hops: Sequence[Hop], first_role: str, task: WorkflowTask | None) -> Position:
    step = 0 if task is not None and task.workflow[0].role == first_role else None
    rounds: dict[int, int] = {}
    last = None
    over = False
    for hop in hops:
        route = hop.route or {}
        own = task is not None and step is not None and task.workflow[step].role == hop.role
        over = over or hop.reason is Reason.ANSWERED or (hop.reason is Reason.ROUTED and own)
        if isinstance(told := route.get("step"), int) and (task is None or 0 <= told < len(task.workflow)):
            step, over = told, over and hop.reason is Reason.ANSWERED
        if _decided(hop) == RouteCode.CHANGES and isinstance(review := route.get("review"), int):
            rounds[review] = rounds.get(review, 0) + 1
        if hop.reason in _DECIDES:
            last = hop
    return Position(step=step, rounds=rounds, last=last, over=over)


def worked_before(hops: Sequence[Hop]) -> tuple[tuple[str, int], ...]:
    """Who worked, and in which attempt. The manager only hands results on; what a person edited stands beside what it
    was made of."""
    found: list[tuple[str, int]] = []
    for hop in hops:
        edited = hop.reason is Reason.ANSWERED and (hop.route or {}).get("code") == RouteCode.EDITED
        if edited or (hop.reason is Reason.ROUTED and hop.role != MANAGER):
            found.append(("a person" if edited else hop.role, hop.attempt))
    return tuple(found)


def sent_to(hops: Sequence[Hop]) -> int | None:
    """The step of the workflow that somebody sent the job to; None: nobody has yet."""
    return position(hops, "", None).step


def asked_changes(hops: Sequence[Hop]) -> str:
    """Why the job was sent to its present role, where that role has to know."""
    last = position(hops, "", None).last
    return (last.note or "") if last is not None and _decided(last) in _TELLS else ""


def _decided(hop: Hop) -> str | None:
    """What was decided there: who went past the manager decided as the manager would have, and it counts the same."""
    route = hop.route or {}
    code = route.get("code")
    found = route.get("decided") if code == RouteCode.DEGRADED_BYPASS else code
    return found if isinstance(found, str) else None


def decide(
    task: WorkflowTask | None, at: Position, *, role: str | None, answer: Mapping[str, Any] | None
) -> RouteDecision:
    """What comes next. `role` and `answer`: who has just succeeded, and its typed answer; None: a person has spoken, or
    nobody has worked yet."""
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
        why = f"the verdict of {role} cannot be read in its result.json; what nobody can read is no approval"
        return RouteDecision(code=RouteCode.FAIL, step=at.step, note=why)
    why = f"{role} {_approval(role)}"
    if at.step is not None and _beside(task, at.step, role) and not at.over:
        return _entered(task, at.step, why)
    return _onward(task, at.step, why)


def _beside(task: WorkflowTask, step: int, role: str) -> bool:
    """Whether a person sent the job to that role, which the workflow does not have there."""
    return task.workflow[step].role != role


def possible(decision: RouteDecision, roles: Collection[str]) -> RouteDecision:
    """It, where the root has the role that it names; else that the workflow cannot be followed. A task is judged when
    it is enqueued, and may be another when it is claimed; a job that names it in its inputs is not asked."""
    message = None if decision.to is None else names.fault_of(decision.to, roles)
    if message is None:
        return decision
    return RouteDecision(
        code=RouteCode.FAIL, note=f"its task cannot be followed: {message}"[:MAX_NOTE], step=decision.step
    )


def wants_changes(role: str, answer: Mapping[str, Any] | None) -> bool:
    return answers.shape_of(role) is answers.Review and (answer or {}).get("verdict") == "changes_requested"


def approved(role: str, answer: Mapping[str, Any] | None) -> bool:
    """Whether a review says so; whoever does not review has nothing to approve."""
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
    """Who works again after the refusal of the person at `step`. [test_a_refusal_goes_where_a_reviews_findings_go]"""
    before = _before(task, step, lambda role: role != HUMAN)
    if before is None or answers.shape_of(task.workflow[before].role) is not answers.Review:
        return before
    worker = worker_before(task, before)
    return before if worker is None else worker  # reviews only: the last of them looks again


def worker_before(task: WorkflowTask, step: int) -> int | None:
    """Who makes the changes that the review at `step` asks for: the last engineer before it, else the last role that
    does not review."""
    engineer = _before(task, step, lambda role: answers.shape_of(role) is answers.CodeChange)
    if engineer is not None:
        return engineer
    return _before(task, step, lambda role: role != HUMAN and answers.shape_of(role) is not answers.Review)


def _before(task: WorkflowTask, step: int, fits: Any) -> int | None:
    return next((index for index in range(step - 1, -1, -1) if fits(task.workflow[index].role)), None)


def step_of(task: WorkflowTask | None, at: Position, role: str) -> int | None:
    """The step that an override to `role` means: the nearest at or after the present one, else the last before it.
    None: the workflow has no such role, and goes on from where it is when that role is done."""
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
