"""A finished agent job once more, from its snapshots and recorded answers."""

from __future__ import annotations

import json

import pytest

from agents.stage import CHANGE, REVIEW, Make, Stage
from farro.agents.replay import ReplayedAttempt, replay_job
from farro.config.reader import load
from farro.errors import InputError

ANSWERS = [{"role": "SeniorEngineer", "answer": CHANGE}, {"role": "CodeReviewer", "answer": REVIEW}]


def replayed(stage: Stage, job_id: str = "one") -> list[ReplayedAttempt]:
    store = stage.store()
    try:
        return replay_job(store, stage.root, job_id, settings_of=load, clock=stage.clock)
    finally:
        store.close()


def finished(stage: Stage) -> Stage:
    stage.enqueue(context_md="prompt.md", narrative="Read this first.")
    stage.until_over()
    stage.until_over(role="CodeReviewer")
    return stage


def test_a_job_of_two_roles_replays_with_the_same_result_without_a_call(make: Make) -> None:
    stage = finished(make(answers=ANSWERS))
    (stage.path / "answers.json").unlink()  # nobody could answer
    before = sorted(str(path) for path in stage.path.rglob("*"))
    done = replayed(stage)
    assert [(one.attempt, one.role, one.calls, one.same) for one in done] == [
        (1, "SeniorEngineer", 1, True),
        (2, "CodeReviewer", 1, True),
    ]
    assert sorted(str(path) for path in stage.path.rglob("*")) == before
    assert len(stage.calls()) == 2


def test_repairs_are_replayed_too(make: Make) -> None:
    repaired = {"match": "could not be read", "answer": CHANGE}
    stage = make(answers=[repaired, {"answer": "I would rather chat."}])
    stage.enqueue(routing={"mode": "manager"})
    stage.work()
    (one,) = replayed(stage)
    assert (one.calls, one.same) == (2, True), one.difference


def test_later_changes_of_the_root_do_not_matter(make: Make) -> None:
    """Each attempt has its own snapshot."""
    stage = finished(make(answers=ANSWERS))
    (stage.path / "agents/SeniorEngineer/AGENTS-ROLE.md").write_text("---\nversion: 9.0.0\n---\nBe rude.\n")
    stage.configure(providers={"script": {"kind": "scripted", "file": "other.json"}})
    assert all(one.same for one in replayed(stage))


def test_a_changed_question_is_shown_with_its_lines(make: Make) -> None:
    stage = finished(make(answers=ANSWERS))
    (stage.folder() / "prompt.md").write_text("Read that first.")
    first, _ = replayed(stage)
    assert not first.same
    assert "call 1 asks something else" in first.difference
    assert "-Read this first." in first.difference
    assert "+Read that first." in first.difference


def test_an_answer_that_is_read_differently_is_shown(make: Make) -> None:
    stage = finished(make(answers=ANSWERS))
    path = stage.folder() / "attempts/0002/result.json"
    result = json.loads(path.read_text())
    result["agent"]["answer"]["verdict"] = "changes_requested"  # as another version of farro may have read it
    path.write_text(json.dumps(result))
    _, second = replayed(stage)
    assert not second.same
    assert "read otherwise" in second.difference


def test_a_plan_of_commands_is_not_replayed(make: Make) -> None:
    stage = make()
    none = dict.fromkeys(("rubric", "allowed_paths", "success", "routing"))
    stage.enqueue(**none, role="Runner", steps=[{"id": "a", "command": "true"}])
    stage.work("Runner")
    with pytest.raises(InputError, match="farro retry one"):
        replayed(stage)


def test_a_job_without_an_answer_is_not_replayed(make: Make) -> None:
    stage = make()
    stage.enqueue()
    with pytest.raises(InputError, match="no answer yet"):
        replayed(stage)
