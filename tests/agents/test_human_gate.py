"""Check a person's step in a workflow: what waits in the inbox, and what approve, refuse and edit do."""

from __future__ import annotations

from typing import Any

import pytest

from agents.agent_root import CHANGE, REVIEW, AgentRoot, MakeRoot
from farro.agents import inbox
from farro.errors import IllegalTransition, InputError
from farro.jobs.moves import waits_for_person
from farro.jobs.states import Status
from farro.queue.explain import explain

ANSWERS: list[dict[str, Any]] = [
    {"role": "SeniorEngineer", "match": "a person refused it: too loud", "answer": {"summary": "Softer."}},
    {"role": "SeniorEngineer", "answer": CHANGE},
    {"role": "CodeReviewer", "answer": REVIEW},
    {"role": "DocWriter", "match": "Somebody wrote this by hand.", "answer": {"summary": "As it was edited."}},
    {"role": "DocWriter", "answer": {"summary": "It is written down."}},
]
HUMAN = {"role": "human", "rubric": "Is it polite enough?"}
ENGINEER, WRITER = {"role": "SeniorEngineer"}, {"role": "DocWriter"}


@pytest.fixture
def asked(make: MakeRoot) -> AgentRoot:
    """Make a job that waits for a person."""
    agent_root = make(answers=ANSWERS)
    agent_root.task(ENGINEER, HUMAN, WRITER)
    agent_root.enqueue(inputs={"task_id": "greet"}, routing={"mode": "manager"})
    assert agent_root.until_done().status is Status.QUEUED
    return agent_root


def say(agent_root: AgentRoot, verb: Any, *args: Any, **more: Any) -> None:
    store = agent_root.store()
    try:
        verb(store, "one", *args, by="cli-ann", **more)
    finally:
        store.close()


def codes(agent_root: AgentRoot) -> list[str]:
    return [str((hop.route or {}).get("code")) for hop in agent_root.life().hops if hop.route]


def test_a_job_waits_for_a_person_and_the_inbox_shows_the_question(asked: AgentRoot) -> None:
    assert asked.folder().parent == asked.path / "agents/Manager/waiting"
    store = asked.store()
    (waiting,) = inbox.list_inbox(store)
    assert (waiting.job_id, waiting.question, waiting.role) == ("one", "Is it polite enough?", "SeniorEngineer")
    assert "It says please now." in waiting.result
    _, found = explain(store, "one", now=asked.clock.now())
    assert (found.reason, found.fix) == ("human", "farro approve one")
    store.close()
    assert asked.manage() == []  # it waits on


def test_an_approved_job_goes_on(asked: AgentRoot) -> None:
    say(asked, inbox.approve, note="fine")
    life = asked.until_done()
    assert life.status is Status.SUCCEEDED
    assert codes(asked) == ["human", "approved", "next", "complete"]
    answer = next(hop for hop in life.hops if (hop.route or {}).get("code") == "approved")
    assert answer.by.startswith("cli-ann.")
    assert answer.note == "fine"
    assert any(line.get("decision") == "approved" for line in asked.audit())
    assert "fine" not in (asked.path / "logs/audit.log").read_text()  # codes only


def test_a_refused_job_goes_back_to_the_role_before_with_the_reason_and_is_asked_about_again(asked: AgentRoot) -> None:
    say(asked, inbox.refuse, note="too loud")
    assert asked.until_done().status is Status.QUEUED
    assert codes(asked) == ["human", "refused", "changes", "human"]
    store = asked.store()
    assert "Softer." in inbox.inbox_item(store, "one").result
    store.close()


def test_a_refusal_after_a_review_gives_the_engineer_the_reason(make: MakeRoot) -> None:
    agent_root = make(answers=ANSWERS)
    agent_root.task(ENGINEER, {"role": "CodeReviewer"}, HUMAN)
    agent_root.enqueue(inputs={"task_id": "greet"}, routing={"mode": "manager"})
    agent_root.until_done()
    say(agent_root, inbox.refuse, note="too loud")
    agent_root.until_done()
    worked = [hop.role for hop in agent_root.life().hops if hop.reason == "routed" and hop.role != "Manager"]
    assert worked == ["SeniorEngineer", "CodeReviewer", "SeniorEngineer", "CodeReviewer"]
    results = [agent_root.result(attempt=hop.attempt) for hop in agent_root.life().hops if hop.role == "SeniorEngineer"]
    assert results[1]["agent"]["answer"]["summary"] == "Softer."  # the role got the person's note


def test_a_refusal_without_a_role_before_it_fails_the_job(make: MakeRoot) -> None:
    agent_root = make(answers=ANSWERS)
    agent_root.task(HUMAN, ENGINEER)
    agent_root.enqueue(role="Manager", inputs={"task_id": "greet"}, routing={"mode": "manager"})
    agent_root.until_done()
    say(agent_root, inbox.refuse, note="not now")
    life = agent_root.until_done()
    assert life.status is Status.FAILED
    assert life.error is not None
    assert "not now" in life.error["message"]


def test_an_edited_text_becomes_the_result_and_the_original_is_kept(asked: AgentRoot) -> None:
    before = (asked.folder() / "attempts/0001/result.md").read_text()
    say(asked, inbox.edit, "Somebody wrote this by hand.\n")
    assert (asked.folder() / "result.md").read_text() == "Somebody wrote this by hand.\n"
    assert asked.until_done().status is Status.SUCCEEDED
    assert "As it was edited." in (asked.folder() / "result.md").read_text()  # the next role got of it
    assert (asked.folder() / "attempts/0001/result.md").read_text() == before


def test_a_second_answer_changes_nothing(asked: AgentRoot) -> None:
    say(asked, inbox.approve)
    before = (asked.folder() / "job.json").read_bytes()
    with pytest.raises(IllegalTransition, match="does not wait for a person"):
        say(asked, inbox.refuse, note="no")
    assert (asked.folder() / "job.json").read_bytes() == before


def test_a_refusal_needs_a_reason(asked: AgentRoot) -> None:
    with pytest.raises(InputError, match="needs its reason"):
        say(asked, inbox.refuse, note=" ")


def test_a_person_may_send_a_job_elsewhere_and_the_workflow_goes_on_from_there(asked: AgentRoot) -> None:
    say(asked, inbox.reroute, "DocWriter", note="nobody needs to look")
    assert asked.life().role == "DocWriter"
    life = asked.until_done()
    assert life.status is Status.SUCCEEDED
    assert codes(asked) == ["human", "override", "complete"]
    assert any(line.get("decision") == "override" and line.get("next") == "DocWriter" for line in asked.audit())


def test_agent_work_cannot_be_sent_to_the_role_that_runs_commands(asked: AgentRoot) -> None:
    with pytest.raises(InputError, match="Runner runs command plans, no agents"):
        say(asked, inbox.reroute, "Runner")
    assert waits_for_person(asked.life())


def test_a_role_outside_of_the_workflow_takes_a_turn_and_hands_back(asked: AgentRoot) -> None:
    say(asked, inbox.reroute, "CodeReviewer")
    assert waits_for_person(asked.until_done())  # sending it elsewhere approves nothing
    say(asked, inbox.approve)
    assert asked.until_done().status is Status.SUCCEEDED
    assert codes(asked) == ["human", "override", "human", "approved", "next", "complete"]
