"""Check the manager's other duties, and workers without a manager: fast path, degraded mode, auto-plan, hooks."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

import pytest

from agents.agent_root import CHANGE, REVIEW, AgentRoot, MakeRoot
from farro.agents import inbox
from farro.agents.auto_plan import AutoPlan
from farro.agents.manager import AbandonedJobs, Hooks
from farro.app import App
from farro.jobs.states import Reason, Status
from farro.queue.admission import Gate
from farro.store.leadership import AWAY_S, HEARTBEAT
from farro.worker.watchdog import Watchdog

ENGINEER, REVIEWER, WRITER = {"role": "SeniorEngineer"}, {"role": "CodeReviewer"}, {"role": "DocWriter"}
HUMAN = {"role": "human", "rubric": "Good?"}


def draft(**changes: Any) -> dict[str, Any]:
    return {"role": "SeniorEngineer", "rubric": "Do it.", "allowed_paths": ["src/a/"], "success": "Done.", **changes}


def answers(*drafts: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"role": "Architect", "answer": {"analysis": "So.", "prompts": list(drafts)}},
        {"role": "SeniorEngineer", "answer": CHANGE},
        {"role": "CodeReviewer", "answer": REVIEW},
        {"role": "DocWriter", "answer": {"summary": "Written."}},
    ]


def enqueue_task(agent_root: AgentRoot, **changes: Any) -> None:
    agent_root.enqueue(inputs={"task_id": "greet"}, routing={"mode": "manager"}, **changes)


def silent(agent_root: AgentRoot, seconds: float) -> None:
    """Set the manager's last heartbeat into the past."""
    agent_root.manage()
    then = agent_root.clock.now().timestamp() - seconds
    os.utime(agent_root.path / HEARTBEAT, (then, then))


def gone(agent_root: AgentRoot) -> None:
    """Let the watchdog collect the marked job, and the manager decide about it."""
    store = agent_root.store()
    dog = Watchdog(store=store, log=lambda *message: None)
    dog.run_once()
    dog.leave()
    store.close()


# --- the manager is away ---


@pytest.mark.parametrize("ever", [True, False])
def test_without_a_manager_finished_work_stays_stale_and_is_done_once(make: MakeRoot, ever: bool) -> None:
    agent_root = make()
    if ever:
        silent(agent_root, AWAY_S + 5)
    agent_root.enqueue(routing={"mode": "manager"})
    agent_root.work(handover=False)
    life = agent_root.life()
    assert life.status is Status.STALE
    assert life.hops[-1].reason is Reason.ROUTING_EXHAUSTED
    assert "in-progress" in str(agent_root.folder())
    said = (agent_root.folder() / "error.md").read_text()
    assert ("silent for" if ever else "start one with `farro manager`") in said
    assert sum("cannot hand one on" in message for _, message, _ in agent_root.log) == 3
    events = [line["event"] for line in agent_root.audit()]
    assert events == ["enqueued", "claimed", *["manager_away"] * 3, "routing_exhausted"]
    away = [line for line in agent_root.audit() if line["event"] == "manager_away"]
    assert [(line["attempt"], line["try"]) for line in away] == [(1, 1), (1, 2), (1, 3)]
    gone(agent_root)
    agent_root.manage()  # it is back, and queues it again
    for _ in range(100):
        if agent_root.life().role == "Manager":
            break
        agent_root.work(handover=False)
    assert agent_root.until_done().status is Status.SUCCEEDED
    assert len(agent_root.calls()) == 1  # no provider was asked twice
    assert not (agent_root.folder() / "error.md").exists()


def test_a_fresh_heartbeat_of_the_manager_is_enough(make: MakeRoot) -> None:
    agent_root = make()
    silent(agent_root, AWAY_S - 5)
    agent_root.enqueue(routing={"mode": "manager"})
    agent_root.work(handover=False)
    assert agent_root.life().role == "Manager"


def test_degraded_mode_bypasses_the_manager_and_audits_it(make: MakeRoot) -> None:
    agent_root = make(answers=answers(), routing={"degraded_bypass": True})
    agent_root.task(ENGINEER, WRITER)
    enqueue_task(agent_root)
    agent_root.work(handover=True)
    assert agent_root.life().role == "DocWriter"
    agent_root.work("DocWriter", handover=True)
    life = agent_root.life()
    assert (life.status, life.role) == (Status.SUCCEEDED, "DocWriter")
    lines = [line for line in agent_root.audit() if line.get("degraded_bypass")]
    assert [(line["event"], line.get("next")) for line in lines] == [("routed", "DocWriter"), ("committed", None)]


def test_degraded_mode_does_not_bypass_a_person(make: MakeRoot) -> None:
    agent_root = make(answers=answers(), routing={"degraded_bypass": True})
    agent_root.task(ENGINEER, HUMAN, WRITER)
    enqueue_task(agent_root)
    agent_root.work(handover=True)
    assert agent_root.folder().parent.name == "waiting"


def test_degraded_mode_counts_review_rounds_and_hands_on_the_findings(make: MakeRoot) -> None:
    louder = {"verdict": "changes_requested", "findings": [{"message": "say it louder"}]}
    entries = [{"role": "SeniorEngineer", "answer": CHANGE}, {"role": "CodeReviewer", "answer": louder}]
    agent_root = make(answers=entries, routing={"degraded_bypass": True})
    agent_root.task(ENGINEER, REVIEWER, review_rounds=2)
    enqueue_task(agent_root)
    for _ in range(10):
        agent_root.work(handover=True)
        agent_root.work("CodeReviewer", handover=True)
    life = agent_root.life()
    assert life.status is Status.STALE  # that it has failed is the manager's to say
    assert [hop.route["round"] for hop in life.hops if hop.route and "round" in hop.route] == [1, 2]
    asked = json.loads((agent_root.folder() / "attempts/0003/steps/1/calls/1.json").read_text())["asked"]
    assert "# What has to change\n\nCodeReviewer asks for changes (round 1 of 2):\n- say it louder" in asked
    gone(agent_root)
    agent_root.manage()
    agent_root.work("CodeReviewer", handover=False)
    life = agent_root.until_done()
    assert life.status is Status.FAILED
    assert life.error is not None
    assert "say it louder" in life.error["message"]


def test_degraded_mode_needs_permission_in_the_config(make: MakeRoot) -> None:
    agent_root = make()
    agent_root.enqueue(routing={"mode": "manager"})
    agent_root.work(handover=True)
    assert agent_root.life().status is Status.STALE


# --- fast path ---


def test_a_role_with_the_fast_path_hands_on_without_the_manager(make: MakeRoot) -> None:
    agent_root = make(
        answers=answers(), roles={"SeniorEngineer": {"fast_path": True}, "CodeReviewer": {"fast_path": True}}
    )
    agent_root.task(ENGINEER, REVIEWER, WRITER)
    enqueue_task(agent_root)
    agent_root.work(handover=False)  # no manager was ever here, and none is needed
    assert agent_root.life().role == "CodeReviewer"
    agent_root.work("CodeReviewer", handover=False)
    assert agent_root.life().role == "DocWriter"
    assert [hop.route for hop in agent_root.life().hops] == [
        {"code": "fast_path", "step": 1},
        {"code": "fast_path", "step": 2},
    ]
    assert agent_root.until_done().status is Status.SUCCEEDED  # the end is the manager's


def test_a_result_that_does_not_pass_takes_no_fast_path(make: MakeRoot) -> None:
    no = {"verdict": "changes_requested", "findings": [{"message": "no"}]}
    agent_root = make(
        answers=[{"role": "CodeReviewer", "answer": no}, *answers()], roles={"CodeReviewer": {"fast_path": True}}
    )
    agent_root.task(ENGINEER, REVIEWER, WRITER)
    enqueue_task(agent_root)
    agent_root.manage()
    agent_root.work(handover=False)
    agent_root.manage()
    agent_root.work("CodeReviewer", handover=False)
    assert agent_root.life().role == "Manager"


def test_an_architect_with_drafts_takes_no_fast_path(make: MakeRoot) -> None:
    agent_root = make(answers=answers(draft()), roles={"Architect": {"fast_path": True}})
    agent_root.task({"role": "Architect"}, ENGINEER)
    agent_root.manage()  # it lives
    enqueue_task(agent_root, role="Architect")
    agent_root.work("Architect", handover=False)
    plan(agent_root)
    assert [view.lifecycle.role for view in of_origin(agent_root)] == ["SeniorEngineer"]
    assert agent_root.life().role == "SeniorEngineer"


# --- auto-plan ---


def plan(agent_root: AgentRoot, turns: int = 1, **caps: Any) -> list[Any]:
    store = agent_root.store()
    gate = Gate.of(agent_root.settings, user="test", force=False)
    plans = AutoPlan(
        store=store,
        root=agent_root.root,
        settings=agent_root.settings,
        gate=gate,
        clock=agent_root.clock,
        log=agent_root._noted,
    )
    boss = agent_root.manager(store, auto_plan=plans)
    try:
        return [done for _ in range(turns) for done in boss.run_once()]
    finally:
        boss.leave()
        store.close()


def of_origin(agent_root: AgentRoot) -> list[Any]:
    store = agent_root.store()
    found = [view for view in store.list() if view.job_id != "one"]
    store.close()
    return found


def test_an_architects_drafts_become_jobs_with_their_origin(make: MakeRoot) -> None:
    agent_root = make(answers=answers(draft(), draft(role="DocWriter", rubric="Tell.")))
    agent_root.enqueue(role="Architect", routing={"mode": "manager"})
    agent_root.work("Architect")
    plan(agent_root)
    assert agent_root.life().status is Status.SUCCEEDED
    children = of_origin(agent_root)
    assert sorted(view.lifecycle.role for view in children) == ["DocWriter", "SeniorEngineer"]
    prompt = json.loads((agent_root.path / children[0].place / children[0].job_id / "prompt.json").read_text())
    assert prompt["metadata"] == {"origin": "auto-plan", "parent": "one"}
    assert prompt["routing"] == {"mode": "manager"}


def test_without_auto_plan_drafts_become_no_jobs(make: MakeRoot) -> None:
    agent_root = make(answers=answers(draft()))
    agent_root.enqueue(role="Architect", routing={"mode": "manager"})
    assert agent_root.until_done().status is Status.SUCCEEDED
    assert of_origin(agent_root) == []


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (draft(allowed_paths=["src/", "docs/"]), "would write docs/, beyond src/"),
        (draft(allowed_paths=["."]), "would write ., beyond src/"),
        (draft(allowed_paths=["src/../etc"]), "would write src/../etc"),
        (draft(role="Nobody"), "Nobody is not a role here"),
        (draft(inputs={"task_id": "big"}), "chooses a task of its own"),
    ],
)
def test_a_draft_that_may_write_more_than_its_parent_is_refused(
    make: MakeRoot, wrong: dict[str, Any], why: str
) -> None:
    agent_root = make(answers=answers(wrong, draft()))
    agent_root.enqueue(role="Architect", routing={"mode": "manager"})
    agent_root.work("Architect")
    plan(agent_root)
    assert len(of_origin(agent_root)) == 1
    note = agent_root.life().hops[-1].note
    assert note is not None
    assert why in note
    assert any(line["event"] == "auto_plan_refused" for line in agent_root.audit())


@pytest.mark.parametrize("sent", [False, True])
def test_drafts_of_an_architect_outside_the_workflow_are_limited_by_its_prompt(make: MakeRoot, sent: bool) -> None:
    agent_root = make(answers=answers(draft()))
    agent_root.task(ENGINEER)  # which may write src/
    enqueue_task(agent_root, role="SeniorEngineer" if sent else "Architect", allowed_paths=["docs/"])
    if sent:
        store = agent_root.store()
        inbox.reroute(store, "one", "Architect", by="test")
        store.close()
    agent_root.work("Architect")
    plan(agent_root)
    assert of_origin(agent_root) == []
    assert "would write src/a/, beyond docs/" in (agent_root.life().hops[-1].note or "")


def test_auto_plan_makes_no_more_jobs_than_its_limit(make: MakeRoot) -> None:
    agent_root = make(answers=answers(draft(), draft(), draft()), manager={"auto_plan_limit": 2})
    agent_root.enqueue(role="Architect", routing={"mode": "manager"})
    agent_root.work("Architect")
    plan(agent_root)
    assert len(of_origin(agent_root)) == 2
    assert "auto_plan_limit" in (agent_root.life().hops[-1].note or "")


def test_drafts_wait_while_a_role_is_nearly_full(make: MakeRoot) -> None:
    agent_root = make(answers=answers(draft()), capacity={"roles": {"DocWriter": 5}})
    agent_root.enqueue(role="Architect", routing={"mode": "manager"})
    agent_root.work("Architect")
    for number in range(4):
        agent_root.enqueue(f"full-{number}", role="DocWriter")
    plan(agent_root)
    life = agent_root.life()
    assert (life.status, life.hops[-1].route) == (Status.QUEUED, {"code": "paused"})
    assert life.not_before is not None
    assert any(line["event"] == "auto_plan_paused" for line in agent_root.audit())
    assert len([view for view in of_origin(agent_root) if view.lifecycle.role == "SeniorEngineer"]) == 0


def test_unstarted_tasks_become_jobs_once(make: MakeRoot) -> None:
    agent_root = make(answers=answers())
    agent_root.task(ENGINEER, WRITER)
    agent_root.task(WRITER, task_id="told")
    (agent_root.path / "tasks/words.md").write_text("no workflow\n")
    agent_root.enqueue(inputs={"task_id": "greet"}, routing={"mode": "manager"})
    agent_root.work()  # by hand: it is started
    assert [done for done in plan(agent_root) if isinstance(done, str)] == ["auto-told"]
    assert [done for done in plan(agent_root) if isinstance(done, str)] == []
    prompt = json.loads((agent_root.folder("auto-told") / "prompt.json").read_text())
    assert (prompt["role"], prompt["metadata"]) == ("DocWriter", {"origin": "auto-plan"})
    assert agent_root.until_done("auto-told").status is Status.SUCCEEDED


# --- hooks, and what goes on for too long ---


def hooked(agent_root: AgentRoot) -> None:
    settings = agent_root.settings
    store = agent_root.store()
    hooks = Hooks(
        store=store, root=agent_root.root, env=os.environ, roles=settings.roles, timeout_s=10.0, log=agent_root._noted
    )
    boss = agent_root.manager(store, hooks=hooks)
    boss.run_once()
    boss.leave()
    store.close()


def test_hooks_run_after_a_decision_and_get_it(make: MakeRoot) -> None:
    script = 'echo "$FARRO_JOB $FARRO_ROLE $FARRO_DECISION $FARRO_NEXT" >> hooked.txt; echo loud >&2'
    hook = [["sh", "-c", script]]
    agent_root = make(answers=answers(), roles={"SeniorEngineer": {"on_success": hook, "on_failure": [["false"]]}})
    agent_root.task(ENGINEER, WRITER)
    enqueue_task(agent_root)
    agent_root.work()
    hooked(agent_root)
    assert (agent_root.path / "hooked.txt").read_text() == "one SeniorEngineer next DocWriter\n"
    assert any(fields.get("event", {}).get("said") == "loud" for _, _, fields in agent_root.log)


def test_a_failing_hook_changes_nothing_and_is_logged(make: MakeRoot) -> None:
    agent_root = make(
        answers=[{"error": {"kind": "denied"}}], roles={"SeniorEngineer": {"on_failure": [["sh", "-c", "exit 7"]]}}
    )
    agent_root.enqueue(routing={"mode": "manager"})
    agent_root.work()
    hooked(agent_root)
    assert agent_root.life().finalized_at is not None
    assert any("exit code 7" in message for _, message, _ in agent_root.log)
    assert any(line["event"] == "hook_failed" for line in agent_root.audit())


class Later:
    """A clock that is a little more than two hours ahead."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock

    def now(self) -> Any:
        return self._clock.now() + timedelta(hours=2, minutes=1)

    def monotonic_s(self) -> float:
        return float(self._clock.monotonic_s())


def abandoned(agent_root: AgentRoot) -> list[Any]:
    return agent_root.manage(abandoning=AbandonedJobs(clock=Later(agent_root.clock), after_s=7200.0))  # type: ignore[arg-type]


def test_a_job_that_runs_too_long_is_abandoned_with_the_reason(make: MakeRoot) -> None:
    agent_root = make(answers=answers())
    agent_root.task(ENGINEER, WRITER)
    enqueue_task(agent_root)
    agent_root.work()
    agent_root.manage()
    abandoned(agent_root)
    life = agent_root.life()
    assert life.status is Status.KILLED
    assert life.error is not None
    assert "abandon_after_s" in life.error["message"]


def test_waiting_for_a_person_does_not_count_as_running(make: MakeRoot) -> None:
    agent_root = make(answers=answers())
    agent_root.task(ENGINEER, HUMAN)
    enqueue_task(agent_root)
    agent_root.until_done()
    assert abandoned(agent_root) == []
    assert agent_root.life().status is Status.QUEUED


def test_the_app_builds_a_manager_with_every_duty(make: MakeRoot) -> None:
    agent_root = make()
    store = agent_root.store()
    boss = App().manager(store, agent_root.settings, agent_root._noted, timetable=None, gate=Gate())  # type: ignore[arg-type]
    assert boss.run_once() == []
    boss.leave()
    store.close()
