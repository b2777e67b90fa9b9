"""What the manager does beside routing, and what workers do without it: fast path, degraded mode, auto-plan, hooks."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

import pytest

from agents.stage import CHANGE, REVIEW, Make, Stage
from farro.agents import inbox
from farro.agents.manager.abandoned import AbandonedJobs
from farro.agents.manager.auto_plan import AutoPlan
from farro.agents.manager.hooks import Hooks
from farro.app import App
from farro.jobs.states import Reason, Status
from farro.queue.admission import Gate
from farro.worker.leader import AWAY_S, HEARTBEAT
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


def begun(stage: Stage, **changes: Any) -> None:
    stage.enqueue(inputs={"task_id": "greet"}, routing={"mode": "manager"}, **changes)


def silent(stage: Stage, seconds: float) -> None:
    """The manager lived so long ago."""
    stage.manage()
    then = stage.clock.now().timestamp() - seconds
    os.utime(stage.path / HEARTBEAT, (then, then))


def gone(stage: Stage) -> None:
    """The watchdog collects what was marked; the manager decides it."""
    store = stage.store()
    dog = Watchdog(store=store, log=lambda *told: None)
    dog.run_once()
    dog.leave()
    store.close()


# --- the manager is away ---


@pytest.mark.parametrize("ever", [True, False])
def test_without_a_manager_finished_work_stays_stale_and_is_done_once(make: Make, ever: bool) -> None:
    stage = make()
    if ever:
        silent(stage, AWAY_S + 5)
    stage.enqueue(routing={"mode": "manager"})
    stage.work(handover=False)
    life = stage.life()
    assert life.status is Status.STALE
    assert life.hops[-1].reason is Reason.ROUTING_EXHAUSTED
    assert "in-progress" in str(stage.folder())
    said = (stage.folder() / "error.md").read_text()
    assert ("silent for" if ever else "start one with `farro manager`") in said
    assert sum("cannot hand one on" in message for _, message, _ in stage.log) == 3
    assert sum(line["event"] == "manager_away" for line in stage.audit()) == 3
    gone(stage)
    stage.manage()  # it is back, and queues it again
    for _ in range(100):
        if stage.life().role == "Manager":
            break
        stage.work(handover=False)
    assert stage.until_done().status is Status.SUCCEEDED
    assert len(stage.calls()) == 1  # nobody was asked twice
    assert not (stage.folder() / "error.md").exists()


def test_a_fresh_heartbeat_of_the_manager_is_enough(make: Make) -> None:
    stage = make()
    silent(stage, AWAY_S - 5)
    stage.enqueue(routing={"mode": "manager"})
    stage.work(handover=False)
    assert stage.life().role == "Manager"


def test_degraded_mode_bypasses_the_manager_and_audits_it(make: Make) -> None:
    stage = make(answers=answers(), routing={"degraded_bypass": True})
    stage.task(ENGINEER, WRITER)
    begun(stage)
    stage.work(handover=True)
    assert stage.life().role == "DocWriter"
    stage.work("DocWriter", handover=True)
    life = stage.life()
    assert (life.status, life.role) == (Status.SUCCEEDED, "DocWriter")
    told = [line for line in stage.audit() if line.get("degraded_bypass")]
    assert [(line["event"], line.get("next")) for line in told] == [("routed", "DocWriter"), ("committed", None)]


def test_degraded_mode_does_not_bypass_a_person(make: Make) -> None:
    stage = make(answers=answers(), routing={"degraded_bypass": True})
    stage.task(ENGINEER, HUMAN, WRITER)
    begun(stage)
    stage.work(handover=True)
    assert stage.folder().parent.name == "waiting"


def test_degraded_mode_counts_review_rounds_and_hands_on_the_findings(make: Make) -> None:
    louder = {"verdict": "changes_requested", "findings": [{"message": "say it louder"}]}
    told = [{"role": "SeniorEngineer", "answer": CHANGE}, {"role": "CodeReviewer", "answer": louder}]
    stage = make(answers=told, routing={"degraded_bypass": True})
    stage.task(ENGINEER, REVIEWER, review_rounds=2)
    begun(stage)
    for _ in range(10):
        stage.work(handover=True)
        stage.work("CodeReviewer", handover=True)
    life = stage.life()
    assert life.status is Status.STALE  # that it has failed is the manager's to say
    assert [hop.route["round"] for hop in life.hops if hop.route and "round" in hop.route] == [1, 2]
    asked = json.loads((stage.folder() / "attempts/0003/steps/1/calls/1.json").read_text())["asked"]
    assert "# What has to change\n\nCodeReviewer asks for changes (round 1 of 2):\n- say it louder" in asked
    gone(stage)
    stage.manage()
    stage.work("CodeReviewer", handover=False)
    life = stage.until_done()
    assert life.status is Status.FAILED
    assert life.error is not None
    assert "say it louder" in life.error["message"]


def test_degraded_mode_needs_permission_in_the_config(make: Make) -> None:
    stage = make()
    stage.enqueue(routing={"mode": "manager"})
    stage.work(handover=True)
    assert stage.life().status is Status.STALE


# --- fast path ---


def test_a_role_with_the_fast_path_hands_on_without_the_manager(make: Make) -> None:
    stage = make(answers=answers(), roles={"SeniorEngineer": {"fast_path": True}, "CodeReviewer": {"fast_path": True}})
    stage.task(ENGINEER, REVIEWER, WRITER)
    begun(stage)
    stage.work(handover=False)  # no manager was ever here, and none is needed
    assert stage.life().role == "CodeReviewer"
    stage.work("CodeReviewer", handover=False)
    assert stage.life().role == "DocWriter"
    assert [hop.route for hop in stage.life().hops] == [
        {"code": "fast_path", "step": 1},
        {"code": "fast_path", "step": 2},
    ]
    assert stage.until_done().status is Status.SUCCEEDED  # the end is the manager's


def test_a_result_that_does_not_pass_takes_no_fast_path(make: Make) -> None:
    no = {"verdict": "changes_requested", "findings": [{"message": "no"}]}
    stage = make(
        answers=[{"role": "CodeReviewer", "answer": no}, *answers()], roles={"CodeReviewer": {"fast_path": True}}
    )
    stage.task(ENGINEER, REVIEWER, WRITER)
    begun(stage)
    stage.manage()
    stage.work(handover=False)
    stage.manage()
    stage.work("CodeReviewer", handover=False)
    assert stage.life().role == "Manager"


def test_an_architect_with_drafts_takes_no_fast_path(make: Make) -> None:
    stage = make(answers=answers(draft()), roles={"Architect": {"fast_path": True}})
    stage.task({"role": "Architect"}, ENGINEER)
    stage.manage()  # it lives
    begun(stage, role="Architect")
    stage.work("Architect", handover=False)
    plan(stage)
    assert [view.lifecycle.role for view in of_origin(stage)] == ["SeniorEngineer"]
    assert stage.life().role == "SeniorEngineer"


# --- auto-plan ---


def plan(stage: Stage, turns: int = 1, **caps: Any) -> list[Any]:
    store = stage.store()
    gate = Gate.of(stage.settings, user="test", force=False)
    plans = AutoPlan(
        store=store, root=stage.root, settings=stage.settings, gate=gate, clock=stage.clock, log=stage._noted
    )
    boss = stage.manager(store, auto_plan=plans)
    try:
        return [done for _ in range(turns) for done in boss.run_once()]
    finally:
        boss.leave()
        store.close()


def of_origin(stage: Stage) -> list[Any]:
    store = stage.store()
    found = [view for view in store.list() if view.job_id != "one"]
    store.close()
    return found


def test_an_architects_drafts_become_jobs_with_their_origin(make: Make) -> None:
    stage = make(answers=answers(draft(), draft(role="DocWriter", rubric="Tell.")))
    stage.enqueue(role="Architect", routing={"mode": "manager"})
    stage.work("Architect")
    plan(stage)
    assert stage.life().status is Status.SUCCEEDED
    children = of_origin(stage)
    assert sorted(view.lifecycle.role for view in children) == ["DocWriter", "SeniorEngineer"]
    prompt = json.loads((stage.path / children[0].place / children[0].job_id / "prompt.json").read_text())
    assert prompt["metadata"] == {"origin": "auto-plan", "parent": "one"}
    assert prompt["routing"] == {"mode": "manager"}


def test_without_auto_plan_drafts_become_no_jobs(make: Make) -> None:
    stage = make(answers=answers(draft()))
    stage.enqueue(role="Architect", routing={"mode": "manager"})
    assert stage.until_done().status is Status.SUCCEEDED
    assert of_origin(stage) == []


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
def test_a_draft_that_may_write_more_than_its_parent_is_refused(make: Make, wrong: dict[str, Any], why: str) -> None:
    stage = make(answers=answers(wrong, draft()))
    stage.enqueue(role="Architect", routing={"mode": "manager"})
    stage.work("Architect")
    plan(stage)
    assert len(of_origin(stage)) == 1
    note = stage.life().hops[-1].note
    assert note is not None
    assert why in note
    assert any(line["event"] == "auto_plan_refused" for line in stage.audit())


@pytest.mark.parametrize("sent", [False, True])
def test_drafts_of_an_architect_outside_the_workflow_are_limited_by_its_prompt(make: Make, sent: bool) -> None:
    stage = make(answers=answers(draft()))
    stage.task(ENGINEER)  # which may write src/
    begun(stage, role="SeniorEngineer" if sent else "Architect", allowed_paths=["docs/"])
    if sent:
        store = stage.store()
        inbox.reroute(store, stage.root, "one", "Architect", by="test")
        store.close()
    stage.work("Architect")
    plan(stage)
    assert of_origin(stage) == []
    assert "would write src/a/, beyond docs/" in (stage.life().hops[-1].note or "")


def test_auto_plan_makes_no_more_jobs_than_its_limit(make: Make) -> None:
    stage = make(answers=answers(draft(), draft(), draft()), manager={"auto_plan_limit": 2})
    stage.enqueue(role="Architect", routing={"mode": "manager"})
    stage.work("Architect")
    plan(stage)
    assert len(of_origin(stage)) == 2
    assert "auto_plan_limit" in (stage.life().hops[-1].note or "")


def test_drafts_wait_while_a_role_is_nearly_full(make: Make) -> None:
    stage = make(answers=answers(draft()), capacity={"roles": {"DocWriter": 5}})
    stage.enqueue(role="Architect", routing={"mode": "manager"})
    stage.work("Architect")
    for number in range(4):
        stage.enqueue(f"full-{number}", role="DocWriter")
    plan(stage)
    life = stage.life()
    assert (life.status, life.hops[-1].route) == (Status.QUEUED, {"code": "paused"})
    assert life.not_before is not None
    assert any(line["event"] == "auto_plan_paused" for line in stage.audit())
    assert len([view for view in of_origin(stage) if view.lifecycle.role == "SeniorEngineer"]) == 0


def test_unstarted_tasks_become_jobs_once(make: Make) -> None:
    stage = make(answers=answers())
    stage.task(ENGINEER, WRITER)
    stage.task(WRITER, task_id="told")
    (stage.path / "tasks/words.md").write_text("no workflow\n")
    stage.enqueue(inputs={"task_id": "greet"}, routing={"mode": "manager"})
    stage.work()  # by hand: it is started
    assert [done for done in plan(stage) if isinstance(done, str)] == ["auto-told"]
    assert [done for done in plan(stage) if isinstance(done, str)] == []
    prompt = json.loads((stage.folder("auto-told") / "prompt.json").read_text())
    assert (prompt["role"], prompt["metadata"]) == ("DocWriter", {"origin": "auto-plan"})
    assert stage.until_done("auto-told").status is Status.SUCCEEDED


# --- hooks, and what goes on for too long ---


def hooked(stage: Stage) -> None:
    settings = stage.settings
    store = stage.store()
    hooks = Hooks(store=store, root=stage.root, env=os.environ, roles=settings.roles, timeout_s=10.0, log=stage._noted)
    boss = stage.manager(store, hooks=hooks)
    boss.run_once()
    boss.leave()
    store.close()


def test_hooks_run_after_a_decision_and_get_it(make: Make) -> None:
    script = 'echo "$FARRO_JOB $FARRO_ROLE $FARRO_DECISION $FARRO_NEXT" >> hooked.txt; echo loud >&2'
    hook = [["sh", "-c", script]]
    stage = make(answers=answers(), roles={"SeniorEngineer": {"on_success": hook, "on_failure": [["false"]]}})
    stage.task(ENGINEER, WRITER)
    begun(stage)
    stage.work()
    hooked(stage)
    assert (stage.path / "hooked.txt").read_text() == "one SeniorEngineer next DocWriter\n"
    assert any(fields.get("event", {}).get("said") == "loud" for _, _, fields in stage.log)


def test_a_failing_hook_changes_nothing_and_is_logged(make: Make) -> None:
    stage = make(
        answers=[{"error": {"kind": "refused"}}], roles={"SeniorEngineer": {"on_failure": [["sh", "-c", "exit 7"]]}}
    )
    stage.enqueue(routing={"mode": "manager"})
    stage.work()
    hooked(stage)
    assert stage.life().finalized_at is not None
    assert any("exit code 7" in message for _, message, _ in stage.log)
    assert any(line["event"] == "hook_failed" for line in stage.audit())


class Later:
    """Two hours and a bit from now."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock

    def now(self) -> Any:
        return self._clock.now() + timedelta(hours=2, minutes=1)

    def monotonic_s(self) -> float:
        return float(self._clock.monotonic_s())


def abandoned(stage: Stage) -> list[Any]:
    return stage.manage(abandoning=AbandonedJobs(clock=Later(stage.clock), after_s=7200.0))  # type: ignore[arg-type]


def test_a_job_that_runs_too_long_is_abandoned_with_the_reason(make: Make) -> None:
    stage = make(answers=answers())
    stage.task(ENGINEER, WRITER)
    begun(stage)
    stage.work()
    stage.manage()
    abandoned(stage)
    life = stage.life()
    assert life.status is Status.KILLED
    assert life.error is not None
    assert "abandon_after_s" in life.error["message"]


def test_waiting_for_a_person_does_not_count_as_running(make: Make) -> None:
    stage = make(answers=answers())
    stage.task(ENGINEER, HUMAN)
    begun(stage)
    stage.until_done()
    assert abandoned(stage) == []
    assert stage.life().status is Status.QUEUED


def test_the_app_builds_a_manager_with_every_duty(make: Make) -> None:
    stage = make()
    store = stage.store()
    boss = App().manager(store, stage.settings, stage._noted, timetable=None, gate=Gate())  # type: ignore[arg-type]
    assert boss.run_once() == []
    boss.leave()
    store.close()
