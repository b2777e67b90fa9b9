"""Check that the manager takes a task from role to role, with real stores, snapshots and scripted answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agents.agent_root import CHANGE, REVIEW, AgentRoot, MakeRoot
from farro.agents import replay
from farro.config.reader import load
from farro.errors import Refused
from farro.jobs.states import Reason, Status
from farro.store.leadership import BEAT_S, FileLeadership

ENGINEER, REVIEWER, WRITER = {"role": "SeniorEngineer"}, {"role": "CodeReviewer"}, {"role": "DocWriter"}
ANSWERS: list[dict[str, Any]] = [
    {"role": "Architect", "answer": {"analysis": "Say please."}},
    {"role": "SeniorEngineer", "answer": CHANGE},
    {"role": "CodeReviewer", "answer": REVIEW},
    {"role": "DocWriter", "answer": {"summary": "It is written down."}},
]
TWICE: list[dict[str, Any]] = [
    {"role": "SeniorEngineer", "match": "src/greeting.txt:1: say please", "answer": {"summary": "Now it does."}},
    {"role": "CodeReviewer", "match": "Now it does.", "answer": REVIEW},
    {
        "role": "CodeReviewer",
        "answer": {
            "verdict": "changes_requested",
            "findings": [{"message": "say please", "path": "src/greeting.txt", "line": 1}],
        },
    },
    *ANSWERS,
]


def enqueue_task(agent_root: AgentRoot, **changes: Any) -> None:
    agent_root.enqueue(inputs={"task_id": "greet"}, routing={"mode": "manager"}, **changes)


def way(agent_root: AgentRoot) -> list[tuple[str, str]]:
    """Return each decision, and which role it was about."""
    return [(hop.role, str((hop.route or {}).get("code", hop.reason))) for hop in agent_root.life().hops]


def test_a_task_goes_through_its_roles_in_order_and_is_complete(make: MakeRoot) -> None:
    agent_root = make(answers=ANSWERS)
    agent_root.task({"role": "Architect"}, ENGINEER, REVIEWER, WRITER)
    enqueue_task(agent_root, role="Architect")
    life = agent_root.until_done()
    assert life.status is Status.SUCCEEDED
    assert life.finalized_at is not None
    assert [hop.role for hop in life.hops if hop.role != "Manager"] == [
        "Architect",
        "SeniorEngineer",
        "CodeReviewer",
        "DocWriter",
    ]
    assert [code for role, code in way(agent_root) if role == "Manager"] == ["next", "next", "next", "complete"]
    assert agent_root.folder().parent.parent.parent.name == "Manager"
    top = (agent_root.folder() / "result.md").read_text()
    assert "It is written down." in top
    assert "Manager (complete)" in top
    assert not (agent_root.folder() / "error.md").exists()


def test_each_role_gets_the_rubric_of_its_step_and_the_earlier_results(make: MakeRoot) -> None:
    agent_root = make(providers={"script": {"kind": "cli", "command": ["cat"]}}, roles={"Poet": {}, "Critic": {}})
    from farro.doctor.root import init

    init(agent_root.root, agent_root.settings)
    agent_root.task(
        {"role": "Poet", "rubric": "Rhyme."},
        {"role": "Critic", "rubric": "Judge the rhyme.", "success": "It is judged.", "allowed_paths": ["docs/"]},
        description="For a birthday.",
    )
    enqueue_task(agent_root, role="Poet")
    assert agent_root.until_done().status is Status.SUCCEEDED
    attempts = [
        hop.attempt for hop in agent_root.life().hops if hop.role in ("Poet", "Critic") and hop.reason is Reason.ROUTED
    ]
    poet, critic = ((agent_root.folder() / f"attempts/{n:04d}/result.md").read_text() for n in attempts)
    assert "MakeRoot the greeting polite." in poet  # the prompt is the first role's
    assert "Rhyme." in poet
    assert "For a birthday." in poet
    task = critic.split("# It is a success when")[0]
    assert "Judge the rhyme." in task
    assert "MakeRoot the greeting polite." not in task
    assert "- docs/" in critic
    assert "It is judged." in critic
    assert "What Poet found before you" in critic


def test_a_review_that_asks_for_changes_sends_the_job_back_with_its_findings(make: MakeRoot) -> None:
    agent_root = make(answers=TWICE)
    agent_root.task(ENGINEER, REVIEWER, WRITER)
    enqueue_task(agent_root)
    life = agent_root.until_done()
    assert life.status is Status.SUCCEEDED
    assert [code for role, code in way(agent_root) if role == "Manager"] == [
        "next",
        "changes",
        "next",
        "next",
        "complete",
    ]
    back = next(hop for hop in life.hops if (hop.route or {}).get("code") == "changes")
    assert back.route == {"code": "changes", "step": 0, "review": 1, "round": 1}
    assert back.note is not None
    assert "- src/greeting.txt:1: say please" in back.note


def test_a_job_fails_with_the_reason_after_the_last_review_round(make: MakeRoot) -> None:
    never = {"role": "CodeReviewer", "answer": TWICE[2]["answer"]}
    agent_root = make(answers=[never, ANSWERS[1]])
    agent_root.task(ENGINEER, REVIEWER, review_rounds=2)
    enqueue_task(agent_root)
    life = agent_root.until_done()
    assert life.status is Status.FAILED
    assert life.finalized_at is not None
    assert life.error is not None
    assert life.error["category"] == "workflow"
    assert "after 2 rounds" in life.error["message"]
    assert "say please" in (agent_root.folder() / "error.md").read_text()
    assert sum(code == "changes" for _, code in way(agent_root)) == 2


def test_a_job_without_a_task_is_complete_when_its_one_role_has_succeeded(make: MakeRoot) -> None:
    agent_root = make()
    agent_root.enqueue(routing={"mode": "manager"})
    life = agent_root.until_done()
    assert (life.status, life.role) == (Status.SUCCEEDED, "Manager")
    assert way(agent_root) == [("SeniorEngineer", "routed"), ("Manager", "complete")]
    assert agent_root.result(attempt=2)["agent"]["answer"] == {**CHANGE, "patch": None, "tests": None}


def test_a_role_that_fails_ends_the_task_and_only_the_manager_makes_that_final(make: MakeRoot) -> None:
    agent_root = make(answers=[{"error": {"kind": "denied", "message": "no such model"}}])
    agent_root.task(ENGINEER, REVIEWER)
    enqueue_task(agent_root)
    agent_root.work()
    assert (agent_root.life().status, agent_root.life().finalized_at) == (Status.FAILED, None)
    agent_root.manage()
    life = agent_root.life()
    assert life.finalized_at is not None
    assert life.error is not None
    assert life.error["category"] == "provider_refused"
    assert life.hops[-1].reason is Reason.FINALIZED
    assert agent_root.manage() == []


def test_a_prompt_for_the_manager_starts_its_task(make: MakeRoot) -> None:
    agent_root = make(answers=ANSWERS)
    agent_root.task(ENGINEER, WRITER)
    enqueue_task(agent_root, role="Manager")
    assert agent_root.until_done().status is Status.SUCCEEDED
    assert [role for role, _ in way(agent_root)] == ["Manager", "SeniorEngineer", "Manager", "DocWriter", "Manager"]


def test_a_task_that_changes_meanwhile_does_not_affect_the_job(make: MakeRoot) -> None:
    agent_root = make(answers=ANSWERS)
    agent_root.task(ENGINEER, WRITER)
    enqueue_task(agent_root)
    agent_root.work()
    agent_root.task(ENGINEER, REVIEWER, WRITER)
    assert agent_root.until_done().status is Status.SUCCEEDED
    assert "CodeReviewer" not in [role for role, _ in way(agent_root)]


def test_a_task_may_be_markdown_with_its_workflow_in_the_header(make: MakeRoot) -> None:
    agent_root = make(answers=ANSWERS)
    (agent_root.path / "tasks").mkdir(exist_ok=True)
    (agent_root.path / "tasks/greet.md").write_text(
        "---\nid: greet\ntitle: A greeting\nallowed_paths: [src/]\nsuccess: It greets.\nworkflow:\n"
        "  - {role: SeniorEngineer, rubric: Write it.}\n  - {role: DocWriter, rubric: Tell of it.}\n---\n# Greeting\n"
    )
    enqueue_task(agent_root)
    assert agent_root.until_done().status is Status.SUCCEEDED
    assert [role for role, _ in way(agent_root)] == ["SeniorEngineer", "Manager", "DocWriter", "Manager"]


def test_a_task_without_a_workflow_is_given_to_the_role_as_text(make: MakeRoot) -> None:
    agent_root = make(answers=[{"match": "Say please, said grandmother.", "answer": CHANGE}])
    (agent_root.path / "tasks").mkdir(exist_ok=True)
    (agent_root.path / "tasks/greet.md").write_text("Say please, said grandmother.\n")
    enqueue_task(agent_root)
    assert agent_root.until_done().status is Status.SUCCEEDED


def test_a_missing_task_fails_the_job_with_the_reason(make: MakeRoot) -> None:
    agent_root = make()
    enqueue_task(agent_root)
    agent_root.work()
    error = agent_root.life().error
    assert error is not None
    assert error["category"] == "bad_task"
    assert "tasks/greet.json" in error["message"]


@pytest.mark.parametrize("role", ["Plumber", "Runner"])
@pytest.mark.parametrize("fast", [False, True])
def test_a_workflow_with_an_unknown_role_fails_the_job_with_the_reason(make: MakeRoot, role: str, fast: bool) -> None:
    agent_root = make(answers=ANSWERS, roles={"SeniorEngineer": {"fast_path": fast}})
    agent_root.task(ENGINEER, {"role": role})
    agent_root.manage()  # it lives
    enqueue_task(agent_root)
    agent_root.work(handover=False)
    life = agent_root.until_done(turns=2)
    assert life.status is Status.FAILED
    assert life.error is not None
    assert life.error["message"].startswith("its task cannot be followed: ")
    assert role in life.error["message"]


def test_two_managers_never_both_act(make: MakeRoot) -> None:
    agent_root = make()
    store = agent_root.store()
    first = agent_root.manager(store)
    first.run_once()
    agent_root.enqueue(routing={"mode": "manager"})
    agent_root.work()
    other = agent_root.manager(store)
    with pytest.raises(Refused, match="another manager acts"):
        other.run_once()
    assert agent_root.life().status is Status.QUEUED
    first.leave()
    assert [life.status for life in other.run_once()] == [Status.SUCCEEDED]
    other.leave()
    store.close()


def test_the_manager_is_shown_as_alive(make: MakeRoot) -> None:
    agent_root = make()
    agent_root.manage()
    heartbeat = json.loads((agent_root.path / "agents/Manager/.heartbeat").read_text())
    assert heartbeat["name"] == "manager"


def test_a_resting_manager_is_shown_as_alive(make: MakeRoot) -> None:
    agent_root = make()
    store = agent_root.store()
    boss = agent_root.manager(store)
    boss.run_once()
    heartbeat = agent_root.path / "agents/Manager/.heartbeat"
    heartbeat.unlink()
    boss.rest(0.01)
    assert not heartbeat.exists()  # every ten seconds, not at every look
    assert isinstance(boss._leadership, FileLeadership)
    boss._leadership._beat_s -= BEAT_S
    boss.rest(0.01)
    assert heartbeat.exists()
    boss.leave()
    store.close()


def test_every_hop_of_a_task_replays_with_the_same_result(make: MakeRoot) -> None:
    agent_root = make(answers=TWICE)
    agent_root.task(ENGINEER, REVIEWER, WRITER)
    enqueue_task(agent_root)
    assert agent_root.until_done().status is Status.SUCCEEDED
    store = agent_root.store()
    done = replay.replay_job(store, "one", settings_of=load, clock=agent_root.clock)
    store.close()
    assert [(one.role, one.same, one.difference) for one in done] == [
        (role, True, "") for role in ("SeniorEngineer", "CodeReviewer", "SeniorEngineer", "CodeReviewer", "DocWriter")
    ]
