"""Check that a finished agent job replays from its snapshots and recorded answers."""

from __future__ import annotations

import json

import pytest

from agents.agent_root import CHANGE, REVIEW, AgentRoot, MakeRoot
from farro.agents.replay import ReplayedAttempt, replay_job
from farro.config.reader import load
from farro.errors import InputError

ANSWERS = [{"role": "SeniorEngineer", "answer": CHANGE}, {"role": "CodeReviewer", "answer": REVIEW}]


def replayed(agent_root: AgentRoot, job_id: str = "one") -> list[ReplayedAttempt]:
    store = agent_root.store()
    try:
        return replay_job(store, job_id, settings_of=load, clock=agent_root.clock)
    finally:
        store.close()


def finished(agent_root: AgentRoot) -> AgentRoot:
    agent_root.enqueue(context_md="prompt.md", narrative="Read this first.")
    agent_root.until_over()
    agent_root.until_over(role="CodeReviewer")
    return agent_root


def test_a_job_of_two_roles_replays_with_the_same_result_without_a_call(make: MakeRoot) -> None:
    agent_root = finished(make(answers=ANSWERS))
    (agent_root.path / "answers.json").unlink()  # no provider could answer
    before = sorted(str(path) for path in agent_root.path.rglob("*"))
    done = replayed(agent_root)
    assert [(one.attempt, one.role, one.calls, one.same) for one in done] == [
        (1, "SeniorEngineer", 1, True),
        (2, "CodeReviewer", 1, True),
    ]
    assert sorted(str(path) for path in agent_root.path.rglob("*")) == before
    assert len(agent_root.calls()) == 2


def test_repairs_are_replayed_too(make: MakeRoot) -> None:
    repaired = {"match": "could not be read", "answer": CHANGE}
    agent_root = make(answers=[repaired, {"answer": "I would rather chat."}])
    agent_root.enqueue(routing={"mode": "manager"})
    agent_root.work()
    (one,) = replayed(agent_root)
    assert (one.calls, one.same) == (2, True), one.difference


def test_later_changes_of_the_root_do_not_matter(make: MakeRoot) -> None:
    """Each attempt has its own snapshot."""
    agent_root = finished(make(answers=ANSWERS))
    (agent_root.path / "agents/SeniorEngineer/AGENTS-ROLE.md").write_text("---\nversion: 9.0.0\n---\nBe rude.\n")
    agent_root.configure(providers={"script": {"kind": "scripted", "file": "other.json"}})
    assert all(one.same for one in replayed(agent_root))


def test_a_changed_question_is_shown_with_its_lines(make: MakeRoot) -> None:
    agent_root = finished(make(answers=ANSWERS))
    (agent_root.folder() / "prompt.md").write_text("Read that first.")
    first, _ = replayed(agent_root)
    assert not first.same
    assert "call 1 asks something else" in first.difference
    assert "-Read this first." in first.difference
    assert "+Read that first." in first.difference


def test_an_answer_that_is_read_differently_is_shown(make: MakeRoot) -> None:
    agent_root = finished(make(answers=ANSWERS))
    path = agent_root.folder() / "attempts/0002/result.json"
    result = json.loads(path.read_text())
    result["agent"]["answer"]["verdict"] = "changes_requested"  # as another version of farro may have read it
    path.write_text(json.dumps(result))
    _, second = replayed(agent_root)
    assert not second.same
    assert "read otherwise" in second.difference


def test_a_plan_of_commands_is_not_replayed(make: MakeRoot) -> None:
    agent_root = make()
    none = dict.fromkeys(("rubric", "allowed_paths", "success", "routing"))
    agent_root.enqueue(**none, role="Runner", steps=[{"id": "a", "command": "true"}])
    agent_root.work("Runner")
    with pytest.raises(InputError, match="farro retry one"):
        replayed(agent_root)


def test_a_job_without_an_answer_is_not_replayed(make: MakeRoot) -> None:
    agent_root = make()
    agent_root.enqueue()
    with pytest.raises(InputError, match="no answer yet"):
        replayed(agent_root)
