"""Check the rules of routing: from a task, hops and the last result to one decision. Every path ends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farro.agents import auto_plan
from farro.documents import Document
from farro.jobs.envelope import Hop
from farro.jobs.states import Reason
from farro.roles import paths, workflow
from farro.roles import task as tasks
from farro.roles.task import TaskText, WorkflowTask
from farro.roles.workflow import RouteCode, RouteDecision

WORKERS = ("Architect", "SeniorEngineer", "JuniorEngineer", "CodeReviewer", "DocWriter")
NO = {"verdict": "changes_requested", "findings": [{"message": "louder", "path": "src/a.py", "line": 3}]}
YES = {"verdict": "approve", "findings": []}


def task(*roles: str, rounds: int = 3) -> WorkflowTask:
    hops = [{"role": role, "rubric": f"What {role} does."} for role in roles]
    data = {"id": "t", "title": "T", "workflow": hops, "allowed_paths": ["src/"], "success": "s"}
    return tasks.load(Document({**data, "review_rounds": rounds}, "t"))


class Life:
    """A job that the rules route, with its hops."""

    def __init__(self, task: WorkflowTask | None, first: str) -> None:
        self.task = task
        self.first = first
        self.role = first
        self.hops: list[Hop] = []
        self.decisions: list[RouteDecision] = []

    def _hop(self, role: str, reason: Reason, to: str, route: dict[str, Any] | None, note: str | None = None) -> None:
        self.hops.append(
            Hop(at="", role=role, attempt=len(self.hops) + 1, reason=reason, to=to, by="x", note=note, route=route)
        )

    def decide(self, role: str | None, answer: dict[str, Any] | None) -> RouteDecision:
        at = workflow.position(self.hops, self.first, self.task)
        decision = workflow.decide(self.task, at, role=role, answer=answer)
        self.decisions.append(decision)
        self._hop("Manager", Reason.ROUTED, decision.to or "", decision.route, decision.note)
        self.role = decision.to or "Manager"
        return decision

    def works(self, answer: dict[str, Any] | None = None) -> RouteDecision:
        role = self.role
        self._hop(role, Reason.ROUTED, "agents/Manager/incoming", None)
        return self.decide(role, answer)

    def says(self, code: RouteCode, note: str = "") -> RouteDecision:
        step = self.decisions[-1].step
        self._hop("Manager", Reason.ANSWERED, "agents/Manager/incoming", {"code": str(code), "step": step}, note)
        return self.decide(None, None)


def test_a_job_without_a_task_is_complete_after_its_one_role() -> None:
    assert Life(None, "SeniorEngineer").works().code is RouteCode.COMPLETE
    assert Life(None, "CodeReviewer").works(NO).code is RouteCode.COMPLETE  # its verdict is its result


def test_roles_follow_each_other_and_the_job_completes_after_the_last() -> None:
    life = Life(task("SeniorEngineer", "CodeReviewer", "DocWriter"), "SeniorEngineer")
    assert (life.works().to, life.works(YES).to, life.works().code) == ("CodeReviewer", "DocWriter", RouteCode.COMPLETE)
    assert [decision.step for decision in life.decisions] == [1, 2, 2]


def test_a_prompt_for_another_role_comes_before_the_workflow() -> None:
    life = Life(task("SeniorEngineer", "DocWriter"), "Architect")
    assert (life.works().to, life.decisions[0].step) == ("SeniorEngineer", 0)


def test_a_prompt_for_the_manager_needs_a_workflow() -> None:
    assert Life(task("DocWriter"), "Manager").decide(None, None).to == "DocWriter"
    assert Life(None, "Manager").decide(None, None).code is RouteCode.FAIL


def test_findings_go_back_to_the_engineer_not_to_the_writer_between() -> None:
    life = Life(task("SeniorEngineer", "DocWriter", "CodeReviewer"), "SeniorEngineer")
    life.works()
    life.works()
    back = life.works(NO)
    assert (back.code, back.to, back.step, back.review, back.round) == (RouteCode.CHANGES, "SeniorEngineer", 0, 2, 1)
    assert "- src/a.py:3: louder" in back.note


def test_findings_go_to_a_writer_where_no_engineer_worked() -> None:
    life = Life(task("DocWriter", "CodeReviewer"), "DocWriter")
    life.works()
    assert life.works(NO).to == "DocWriter"


@pytest.mark.parametrize(
    ("roles", "to"),
    [
        (("SeniorEngineer", "CodeReviewer", "human"), "SeniorEngineer"),
        (("SeniorEngineer", "CodeReviewer", "human", "human"), "SeniorEngineer"),
        (("DocWriter", "CodeReviewer", "human"), "DocWriter"),
        (("SeniorEngineer", "CodeReviewer", "DocWriter", "human"), "DocWriter"),  # it is the documents that he refuses
        (("SeniorEngineer", "DocWriter", "CodeReviewer", "human"), "SeniorEngineer"),
        (("CodeReviewer", "human"), "CodeReviewer"),
    ],
)
def test_a_persons_refusal_goes_to_the_role_that_would_get_a_reviews_findings(roles: tuple[str, ...], to: str) -> None:
    """Not to the reviewer, which would approve again at once."""
    life = Life(task(*roles), roles[0])
    for role in roles:
        if role == "human":
            break
        life.works(YES if role == "CodeReviewer" else None)
    for _ in range(roles.count("human") - 1):
        life.says(RouteCode.APPROVED)
    assert life.decisions[-1].code is RouteCode.HUMAN
    back = life.says(RouteCode.REFUSED, "no tests for empty names")
    assert (back.code, back.to) == (RouteCode.CHANGES, to)
    assert workflow.asked_changes(life.hops) == "a person refused it: no tests for empty names"


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_a_review_fails_the_job_after_its_last_round(rounds: int) -> None:
    life = Life(task("SeniorEngineer", "CodeReviewer", rounds=rounds), "SeniorEngineer")
    for _ in range(rounds):
        life.works()
        assert life.works(NO).code is RouteCode.CHANGES
    life.works()
    end = life.works(NO)
    assert end.code is RouteCode.FAIL
    assert f"after {rounds} rounds" in end.note
    assert "louder" in end.note


@pytest.mark.parametrize("answer", [None, {}, {"verdict": "perhaps"}])
def test_an_unreadable_verdict_is_no_approval(answer: dict[str, Any] | None) -> None:
    life = Life(task("SeniorEngineer", "CodeReviewer", "DocWriter"), "SeniorEngineer")
    life.works()
    assert life.works(answer).code is RouteCode.FAIL


def test_a_review_without_a_role_before_it_fails_the_job() -> None:
    assert Life(task("CodeReviewer", "DocWriter"), "CodeReviewer").works(NO).code is RouteCode.FAIL


def test_a_person_is_asked_and_the_answer_is_followed() -> None:
    life = Life(task("SeniorEngineer", "human", "DocWriter"), "SeniorEngineer")
    asked = life.works()
    assert (asked.code, asked.to, asked.step) == (RouteCode.HUMAN, None, 1)
    back = life.says(RouteCode.REFUSED, "too loud")
    assert (back.code, back.to) == (RouteCode.CHANGES, "SeniorEngineer")
    assert "too loud" in back.note
    assert life.works().code is RouteCode.HUMAN
    assert life.says(RouteCode.EDITED).to == "DocWriter"


def test_a_person_whose_answer_was_lost_in_a_crash_is_asked_again() -> None:
    life = Life(task("SeniorEngineer", "human"), "SeniorEngineer")
    life.works()
    assert life.decide(None, None).code is RouteCode.HUMAN


def test_a_person_asked_in_degraded_mode_is_asked_again_after_a_crash() -> None:
    life = Life(task("SeniorEngineer", "human", "DocWriter"), "SeniorEngineer")
    route = {"code": "degraded_bypass", "decided": "human", "step": 1}
    life._hop("SeniorEngineer", Reason.ROUTED, "agents/Manager/waiting", route)
    at = workflow.position(life.hops, life.first, life.task)
    assert at.worked is None
    assert life.decide(None, None).code is RouteCode.HUMAN


def test_an_override_goes_to_the_nearest_step_of_that_role() -> None:
    long = task("SeniorEngineer", "CodeReviewer", "SeniorEngineer", "DocWriter")
    at = workflow.Position(step=1, rounds={}, last=None)
    assert workflow.step_of(long, at, "SeniorEngineer") == 2
    assert workflow.step_of(long, workflow.Position(step=3, rounds={}, last=None), "SeniorEngineer") == 2
    assert workflow.step_of(long, at, "Architect") is None
    assert workflow.step_of(None, at, "Architect") is None


class Sent(Life):
    """A job that a person sends to a role outside of its workflow."""

    def sent(self, role: str) -> None:
        self._hop(self.role, Reason.REROUTED, f"agents/{role}/incoming", {"code": "override"})
        self.role = role


def test_a_role_outside_the_workflow_skips_no_step() -> None:
    life = Sent(task("SeniorEngineer", "human", "DocWriter"), "SeniorEngineer")
    life.sent("Architect")
    assert life.works().to == "SeniorEngineer"  # which has not worked yet
    assert life.works().code is RouteCode.HUMAN
    life.sent("Architect")
    assert life.works().code is RouteCode.HUMAN  # who has said nothing yet
    life.says(RouteCode.APPROVED)
    assert life.role == "DocWriter"


def test_a_role_outside_the_workflow_repeats_no_step() -> None:
    life = Sent(task("SeniorEngineer", "DocWriter"), "SeniorEngineer")
    life._hop("SeniorEngineer", Reason.ROUTED, "agents/Manager/incoming", None)  # it has worked, and nobody decided
    life.sent("Architect")
    assert life.works().to == "DocWriter"


def test_findings_of_a_review_outside_the_workflow_go_to_the_engineer_of_the_present_step() -> None:
    life = Sent(task("SeniorEngineer", "DocWriter"), "SeniorEngineer")
    life._hop("SeniorEngineer", Reason.ROUTED, "agents/Manager/incoming", None)
    life.sent("CodeReviewer")
    back = life.works(NO)
    assert (back.code, back.to, back.step) == (RouteCode.CHANGES, "SeniorEngineer", 0)


@given(
    roles=st.lists(st.sampled_from([*WORKERS, "human"]), min_size=1, max_size=8),
    rounds=st.integers(0, 3),
    first=st.sampled_from([*WORKERS, "Manager"]),
    verdicts=st.lists(st.booleans(), max_size=400),
    refusals=st.lists(st.booleans(), max_size=5),
)
@settings(max_examples=300, deadline=None)
def test_every_sequence_of_answers_ends_the_job_within_the_rounds_of_each_review(
    roles: list[str], rounds: int, first: str, verdicts: list[bool], refusals: list[bool]
) -> None:
    life = Life(task(*roles, rounds=rounds), first)
    answers, people = iter(verdicts), iter(refusals)
    decision = life.decide(None, None) if first == "Manager" else life.works(NO if next(answers, True) else YES)
    # A person refuses five times at the most; each review at most three times: never more hops than these.
    bound = (len(roles) + 1) * (len(roles) * 3 + 5 + 2)
    for _ in range(bound):
        if decision.code in (RouteCode.COMPLETE, RouteCode.FAIL):
            break
        if decision.code is RouteCode.HUMAN:
            decision = life.says(RouteCode.REFUSED if next(people, False) else RouteCode.APPROVED, "no")
        else:
            assert decision.to in WORKERS
            decision = life.works(NO if next(answers, True) else YES)
    assert decision.code in (RouteCode.COMPLETE, RouteCode.FAIL)
    for review in {each.review for each in life.decisions if each.review is not None}:
        assert sum(each.review == review for each in life.decisions) <= rounds
    if decision.code is RouteCode.FAIL:
        assert decision.note


# --- tasks as files ---


def test_a_markdown_task_has_its_fields_in_the_header_and_its_description_after_it() -> None:
    text = b"---\nid: t\ntitle: T\nworkflow: [{role: human, rubric: Well?}]\n---\n# Why\n\nBecause.\n"
    found = tasks.read(text, "tasks/t.md", name="t")
    assert isinstance(found, WorkflowTask)
    assert (found.description, found.workflow[0].role) == ("# Why\n\nBecause.", "human")
    assert tasks.read(b"only words\n", "t.md") == TaskText(text="only words\n")


def test_a_mistake_in_a_header_is_reported_with_its_line() -> None:
    from farro.errors import BadDocument

    with pytest.raises(BadDocument, match=r"t\.md:3:\d+: titel: "):
        tasks.read(b"---\nid: t\ntitel: T\nworkflow: [{role: human, rubric: Well?}]\n---\n", "t.md")
    with pytest.raises(BadDocument, match="has no end"):
        tasks.read(b"---\nid: t\n", "t.md")


def test_the_manager_cannot_be_a_step_of_a_workflow() -> None:
    from farro.errors import BadDocument

    with pytest.raises(BadDocument, match="follows the workflow itself"):
        task("Manager")


# --- auto-plan ---


@pytest.mark.parametrize(
    ("before", "fullest", "after"),
    [(False, 0.79, False), (False, 0.8, True), (True, 0.79, True), (True, 0.61, True), (True, 0.6, False)],
)
def test_auto_plan_pauses_at_80_percent_and_resumes_at_60(before: bool, fullest: float, after: bool) -> None:
    assert auto_plan.is_paused(before, [0.1, fullest], pause=0.8, resume=0.6) is after


@pytest.mark.parametrize(
    ("path", "allowed", "held"),
    [
        ("src/a/", ["src/"], True),
        ("src", ["src/"], True),
        ("src2/", ["src/"], False),
        ("src/../docs", ["src/"], False),
        ("docs/a.md", ["src/", "docs"], True),
        ("anything", ["."], True),
        ("../out", ["."], False),
        ("/etc", ["."], False),
        (".", ["src/"], False),
    ],
)
def test_a_path_is_within_the_folders_above_it(path: str, allowed: list[str], held: bool) -> None:
    assert paths.within(path, allowed) is held
