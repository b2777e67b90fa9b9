"""Queries beyond jobs: statistics, history, tasks, inbox, plans, swarms, metrics; and a store that does not answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib import resources
from itertools import permutations
from typing import Any

import pytest

from farro.app import App
from farro.errors import StorageTrouble
from farro.jobs.moves import Move
from farro.jobs.outcomes import Report, Succeeded
from farro.jobs.states import Reason, Status
from farro.queue import time_travel as past
from farro.roles.workflow import RouteCode
from farro.store.port import Store, Submission
from farro.swarm.files import DesiredState, SwarmFiles
from farro.swarm.lifecycle import SwarmState
from http_stage import REPORT, ManualWorker, WebStage, submission
from one_job import claim_one, commit_one
from support import eventually


def test_series_statistics_and_metrics_count_ended_jobs(any_front: WebStage) -> None:
    any_front.store.enqueue_many([submission() for _ in range(3)])
    hands = ManualWorker(any_front.store)
    hands.one()
    hands.one(fail="no")
    eventually(lambda: len(any_front.listed("?status=failed")) == 1 and len(any_front.listed("?status=succeeded")) == 1)
    drawn = any_front.get("/api/series?window_s=600&points=10").json
    runner = drawn["roles"]["Runner"]
    assert drawn["points"] == len(runner["succeeded"]) == 10
    assert (sum(runner["enqueued"]), sum(runner["succeeded"]), sum(runner["failed"])) == (3, 1, 1)
    assert [value for value in runner["latency_p95_s"] if value is not None]
    assert drawn["roles"]["*"] == runner
    stats = any_front.get("/api/stats?since=1h").json["stats"]
    assert {line["role"]: line["succeeded"] for line in stats}["Runner"] == 1
    (worker,) = any_front.get("/api/workers").json["workers"]
    assert (worker["role"], worker["alive"], worker["job"]) == ("Runner", True, None)
    text = any_front.get("/metrics").body.decode()
    assert 'farro_jobs{role="Runner",state="queued"} 1.0' in text
    assert 'farro_jobs_ended_total{role="Runner",status="failed"} 1.0' in text
    assert 'farro_workers{role="Runner",state="idle"} 1.0' in text
    hands.leave()


def test_support_processes_are_not_counted_as_workers(any_front: WebStage) -> None:
    keeper = any_front.store.join("manager", role="Manager")
    hands = ManualWorker(any_front.store)
    eventually(lambda: any_front.get("/api/queues").json["total"]["workers"] == 1)
    told = any_front.get("/api/queues").json["queues"]
    assert {line["role"]: line["workers"] for line in told if line["workers"]} == {"Runner": 1}
    assert len(any_front.get("/api/workers").json["workers"]) == 1
    hands.leave()
    any_front.store.leave(keeper)


def test_queue_is_paused_with_a_reason_and_resumed(any_front: WebStage) -> None:
    (job_id,) = any_front.post("/api/jobs", {"command": ["true"]}).json["jobs"]
    stream = any_front.events()
    assert next(iter(stream))[0] == "hello"
    done = any_front.post("/api/queues/Runner/pause", {"why": "the disk is full"})
    assert (done.status, done.json["changed"]) == (200, True)
    paused = done.json["paused"]
    assert (paused["by"], paused["why"]) == ("web-tester", "the disk is full")
    hands = ManualWorker(any_front.store)
    assert hands.one() is None

    def told(kind: str, data: Any) -> bool:
        return kind == "counts" and {line["role"]: line["paused"] for line in data["queues"]}["Runner"] == paused

    stream.until(told)  # though no job changed
    stream.close()
    lines = any_front.get("/api/queues").json
    assert {line["role"]: line["paused"] for line in lines["queues"] if line["paused"]} == {"Runner": paused}
    assert lines["total"]["paused"] is None
    why = any_front.get(f"/api/jobs/{job_id}/explain").json
    assert why["reason"] == "paused"
    assert "the disk is full" in why["message"]
    again = any_front.post("/api/queues/Runner/pause", {"why": "another"}).json
    assert (again["changed"], again["paused"]) == (False, paused)
    assert any_front.post("/api/queues/Runner/resume").json == {"role": "Runner", "changed": True, "paused": None}
    assert any_front.post("/api/queues/Runner/resume").json["changed"] is False
    assert hands.one() == job_id
    hands.leave()
    assert any_front.post("/api/queues/Nobody/pause").code == "unknown_role"
    assert any_front.post("/api/queues/Runner/pause", {"why": "x" * 501}).status == 422


def test_history_shows_the_queues_of_a_moment(any_front: WebStage) -> None:
    (job_id,) = any_front.post("/api/jobs", {"command": ["true"]}).json["jobs"]
    hands = ManualWorker(any_front.store)
    eventually(lambda: hands.one() == job_id)
    hands.leave()
    any_front.store.note("told")  # and write the buffered lines
    lines: list[dict[str, Any]] = []

    def whole() -> bool:
        lines[:] = any_front.get(f"/api/audit?job={job_id}").json["lines"]
        return {line["event"] for line in lines} >= {"enqueued", "claimed", "committed"}

    eventually(whole)
    at = {line["event"]: line["ts"] for line in lines}
    assert [line["ts"] for line in lines] == sorted((line["ts"] for line in lines), reverse=True)
    then = any_front.get(f"/api/history?at={at['enqueued']}").json
    assert then["queues"]["Runner"]["queued"] + then["queues"]["Runner"]["in_progress"] == 1
    now = any_front.get(f"/api/history?at={at['committed']}").json
    assert now["queues"]["Runner"] == {**dict.fromkeys(then["queues"]["Runner"], 0), "succeeded": 1}
    assert [job["job_id"] for job in now["jobs"]] == [job_id]
    before = any_front.get("/api/history?at=2020-01-01T00:00:00Z").json
    assert (before["queues"], before["jobs"]) == ({}, [])
    points = any_front.get("/api/history/series?points=5").json["points"]
    assert points[-1]["succeeded"] == 1
    assert sum(point["events"] for point in points) >= 1
    assert any_front.get("/api/history?at=yesterday").status == 422


def test_audit_pages_list_every_line_once(front: WebStage) -> None:
    front.store.enqueue_many([submission() for _ in range(50)])
    front.store.note("told")
    eventually(lambda: len(front.get("/api/audit?limit=1000").json["lines"]) >= 51)
    everything = front.get("/api/audit?limit=1000").json["lines"]
    seen: list[dict[str, Any]] = []
    cursor = ""
    while cursor is not None:
        page = front.get("/api/audit?limit=7" + (f"&before={cursor}" if cursor else "")).json
        seen += page["lines"]
        cursor = page["next"]
    assert sorted(map(json.dumps, seen)) == sorted(map(json.dumps, everything))
    assert front.get("/api/audit?before=%21%21").status == 400
    bound = everything[10]["ts"]
    assert all(line["ts"] <= bound for line in front.get(f"/api/audit?until={bound}").json["lines"])


def test_queue_history_follows_the_audit_log_and_reports_missing_lines(front: WebStage) -> None:
    past = front.web._state.queue_history
    log = front.root / "logs/audit.log"
    line = {"ts": "2026-01-01T00:00:00.000Z", "event": "claimed", "actor": "a", "job_id": "old", "role": "Runner"}
    log.parent.mkdir(exist_ok=True)
    log.write_text(json.dumps({**line, "from": "queued", "status": "in_progress"}) + "\n{torn")
    past.refresh()
    told = past.at(1_767_225_600_000, limit=10)
    assert told.queues["Runner"]["in_progress"] == 1
    assert not past.whole
    assert past.at(0, limit=10).queues["Runner"]["queued"] == 1  # the state before its first line
    with log.open("a") as file:
        file.write("\n" + json.dumps({**line, "event": "committed", "status": "succeeded"}) + "\n")
    past.refresh()
    assert past.range().lines == 2
    assert past.at(1_767_225_600_000, limit=10).queues["Runner"]["succeeded"] == 1


TOLD = {
    "enqueued": {"status": "queued", "attempt": 0, "actor": "cli"},
    "claimed": {"from": "queued", "status": "in_progress", "actor": "w.0"},
    "routed": {"from": "in_progress", "status": "queued", "next": "Manager", "actor": "w.0"},
    "committed": {"from": "in_progress", "status": "succeeded", "actor": "w.0"},
}


def audit_line(ms: int, event: str, attempt: int = 1, *, role: str = "Runner", job: str = "quick") -> str:
    """Build an audit line of 1 January 2026, `ms` milliseconds after midnight."""
    at = f"2026-01-01T00:00:{ms // 1000:02d}.{ms % 1000:03d}Z"
    told = {"ts": at, "event": event, "job_id": job, "role": role, "attempt": attempt, **TOLD[event]}
    return json.dumps(told) + "\n"


MIDNIGHT = 1_767_225_600_000
# A quick worker logs its claim before the client logs the enqueue; a router may log after the next claim.
CROSSED = (
    audit_line(100, "claimed"),
    audit_line(103, "enqueued"),
    audit_line(109, "claimed", 2, role="Manager"),
    audit_line(112, "routed"),
    audit_line(150, "committed", 2, role="Manager"),
)


@pytest.mark.parametrize("at_once", [True, False])
def test_job_is_absent_from_history_before_it_was_enqueued(front: WebStage, at_once: bool) -> None:
    front.store.close()
    log = front.root / "logs/audit.log"
    log.parent.mkdir(exist_ok=True)
    for order in permutations(CROSSED):
        log.write_text("")
        seen = past.QueueHistory(front.store)
        for line in order:
            with log.open("a") as file:
                file.write(line)
            if not at_once:  # each writer appends its own lines later
                seen.refresh()
        seen.refresh()
        assert (seen.whole, seen.range().lines) == (True, 5)
        assert seen.at(MIDNIGHT + 99, limit=10).jobs == ()
        (job,) = seen.at(MIDNIGHT + 105, limit=10).jobs
        assert (job.status, job.since) == ("in_progress", "2026-01-01T00:00:00.100Z")
        (job,) = seen.at(MIDNIGHT + 130, limit=10).jobs
        assert (job.status, job.role, job.since) == ("in_progress", "Manager", "2026-01-01T00:00:00.109Z")
        (job,) = seen.at(MIDNIGHT + 150, limit=10).jobs
        assert job.status == "succeeded"
        points = seen.curve(MIDNIGHT, MIDNIGHT + 200, 20)
        assert [point["queued"] for point in points] == [0] * 20
        assert [point["in_progress"] for point in points] == [0] * 9 + [1] * 5 + [0] * 6


def test_enqueue_line_logged_a_minute_late_still_comes_first(front: WebStage) -> None:
    seen = front.web._state.queue_history
    log = front.root / "logs/audit.log"
    log.parent.mkdir(exist_ok=True)
    log.write_text(audit_line(100, "claimed") + audit_line(200, "committed"))
    seen.refresh()
    assert not seen.whole  # as far as the log shows by then
    with log.open("a") as file:
        file.write(audit_line(58_000, "enqueued"))
    seen.refresh()
    assert seen.whole
    assert seen.at(MIDNIGHT + 99, limit=10).jobs == ()
    assert [job.status for job in seen.at(MIDNIGHT + 60_000, limit=10).jobs] == ["succeeded"]


def test_job_history_is_in_chronological_order(front: WebStage) -> None:
    front.store.enqueue(submission(job_id="quick"))
    front.store.close()
    log = front.root / "logs/audit.log"
    own = [audit_line(ms, event, n) for ms, event, n in ((6, "claimed", 1), (8, "enqueued", 0), (9, "committed", 1))]
    log.write_text("".join(reversed(own)))
    told = [line["event"] for line in front.get("/api/jobs/quick/history").json["audit"]]
    assert told == ["enqueued", "claimed", "committed"]


def test_task_shows_its_route_and_the_diff(front: WebStage) -> None:
    (front.root / "tasks").mkdir(exist_ok=True)
    task = {
        "id": "T-1",
        "title": "Mend it",
        "allowed_paths": ["src/"],
        "success": "it works",
        "workflow": [{"role": "SeniorEngineer", "rubric": "mend"}, {"role": "human", "rubric": "good?"}],
    }
    (front.root / "tasks/T-1.json").write_text(json.dumps(task))
    (front.root / "tasks/T-2.json").write_text("{}")
    job_id = front.store.enqueue(
        Submission(role="SeniorEngineer", prompt={"rubric": "mend", "inputs": {"task_id": "T-1"}})
    )
    agent = front.store.join("hands", role="SeniorEngineer")
    claim = claim_one(front.store, agent)
    assert claim is not None
    (front.root / claim.folder / "steps/1").mkdir(parents=True)
    (front.root / claim.folder / "steps/1/diff.patch").write_text("--- a\n+++ b\n")
    commit_one(front.store, claim, Succeeded(report=Report(result={"success": True}, markdown="mended\n")))
    front.store.leave(agent)
    eventually(lambda: front.listed("?task=T-1"))
    lines = {line["id"]: line for line in front.get("/api/tasks").json["tasks"]}
    assert lines["T-1"]["roles"] == ["SeniorEngineer", "human"]
    assert lines["T-2"]["problems"]
    whole = front.get("/api/tasks/T-1").json
    assert (whole["title"], whole["workflow"][0]["rubric"]) == ("Mend it", "mend")
    (job,) = whole["jobs"]
    assert job["job_id"] == job_id
    assert [hop["result"] for hop in job["way"]] == ["mended\n"]
    assert job["diff"] == "--- a\n+++ b\n"
    assert front.get("/api/tasks/nothing").status == 404


def test_inbox_accepts_the_answers_of_a_person(front: WebStage) -> None:
    assert front.get("/api/inbox").json == {"waiting": [], "accounts": []}
    jobs = [job.id for job in front.store.enqueue_many([submission(role="Manager") for _ in range(3)])]
    agent = front.store.join("hands", role="Manager")
    asked = {"reason": Reason.ROUTED, "status": Status.QUEUED, "role": "Manager", "note": "good?"}
    for _ in jobs:
        claim = claim_one(front.store, agent)
        assert claim is not None
        move = Move(**asked, waits=True, route={"code": str(RouteCode.HUMAN)})
        commit_one(front.store, claim, Succeeded(report=REPORT), move)
    front.store.leave(agent)
    eventually(lambda: len(front.get("/api/inbox").json["waiting"]) == 3)
    assert {row["job_id"] for row in front.listed("?person=true")} == set(jobs)
    assert {one["question"] for one in front.get("/api/inbox").json["waiting"]} == {"good?"}
    assert front.post(f"/api/inbox/{jobs[0]}/refuse", {}).status == 422
    for job_id, (verb, body) in zip(
        jobs, (("approve", {}), ("refuse", {"note": "no"}), ("edit", {"text": "x"})), strict=True
    ):
        answer = front.post(f"/api/inbox/{job_id}/{verb}", body)
        assert (answer.status, answer.json["hops"][-1]["by"].split(".")[0]) == (200, "web-tester"), answer.body
        assert front.post(f"/api/inbox/{job_id}/{verb}", body).code == "illegal_transition"
    eventually(lambda: front.get("/api/inbox").json == {"waiting": [], "accounts": []})


def test_plan_is_drawn_checked_and_explained(front: WebStage) -> None:
    plan = {"steps": [{"id": "a", "command": "true"}, {"id": "b", "command": "true", "needs": ["a"]}]}
    checked = front.post("/api/plans/check", {"plan": plan}).json
    assert (checked["ok"], checked["steps"], checked["problems"]) == (True, 2, [])
    assert front.post("/api/plans/check", {"plan": {"steps": 1}}).json["ok"] is False
    (job_id,) = front.post("/api/jobs", {"plan": plan}).json["jobs"]
    told = front.get(f"/api/jobs/{job_id}/plan").json
    assert [(step["id"], step["level"], step["state"]) for step in told["steps"]] == [
        ("a", 1, "waiting"),
        ("b", 2, "waiting"),
    ]
    assert front.get(f"/api/jobs/{job_id}/plan.svg").headers["content-type"] == "image/svg+xml"
    assert front.get(f"/api/jobs/{job_id}/explain").json["reason"]
    assert front.get(f"/api/jobs/{job_id[:22]}").json["job_id"] == job_id


def test_swarm_command_is_stored_for_the_orchestrator(front: WebStage) -> None:
    assert front.get("/api/swarms").json == {"swarms": [], "orchestrator": False}
    made = front.post("/api/swarms/demo/create")
    assert made.status == 202
    assert set(made.json) == {"correlationId", "idempotencyKey", "watch", "timeoutMs"}
    wishes = list((front.root / "swarms/orchestrator/wishes").iterdir())
    assert len(wishes) == 1
    assert made.json["correlationId"] in wishes[0].name
    assert front.post("/api/swarms/demo/create", {"idempotencyKey": "no"}).status == 400
    assert front.post("/api/swarms/Bad_Name/start").status == 422
    assert front.get("/api/swarms/nobody").code == "unknown_swarm"
    assert front.post("/api/components/worker/x/config", {}).status == 400


def test_swarm_plan_includes_later_configuration(front: WebStage) -> None:
    place = SwarmFiles(f"{front.root}/swarms")
    place.make()
    place.make_swarm("demo")
    at = "2026-01-01T00:00:00.000Z"
    place.write_desired(
        DesiredState(swarm="demo", state=SwarmState.RUNNING, controller="demo-marshal", created_at=at, changed_at=at)
    )
    plan = {"id": "demo", "bees": [{"role": "sink", "command": ["true"], "config": {"limit": 1}}]}
    place.write_plan("demo", plan)
    assert front.get("/api/swarms/demo/plan").json == {"plan": plan, "configured": {}}
    kept = front.root / "swarms/demo/controller.json"
    kept.write_text(json.dumps({"configured": {"demo-sink-1": {"limit": 5}}}))
    assert front.get("/api/swarms/demo/plan").json["configured"] == {"demo-sink-1": {"limit": 5}}
    kept.write_text("{torn")
    assert front.get("/api/swarms/demo/plan").json == {"plan": plan, "configured": {}}


def test_costs_alerts_schedules_and_doctor_respond(front: WebStage) -> None:
    assert front.get("/api/costs?since=7d&by=day").json["total"]["calls"] == 0
    assert front.get("/api/alerts").json["firing"] == 0
    assert front.get("/api/schedules").json == {"schedules": []}
    assert front.post("/api/schedules/nightly/run").code == "unknown_schedule"
    (front.root / "schedules").mkdir(exist_ok=True)
    (front.root / "schedules/nightly.json").write_text(
        json.dumps({"cron": "@daily", "plan": {"steps": [{"id": "a", "command": "true"}]}})
    )
    assert front.post("/api/schedules/nightly/run").status == 201
    assert front.get("/api/doctor").json["passed"] is True


class Away:
    """A store that can be made unreachable."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.away = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found) or name in ("wake", "close"):
            return found

        def told(*args: Any, **more: Any) -> Any:
            if self.away:
                raise StorageTrouble("the disk says no; look at it")
            return found(*args, **more)

        return told


def test_unreachable_store_returns_503_and_the_server_recovers(
    make_front: Callable[..., WebStage],
) -> None:
    between: list[Away] = []

    def put(store: Store) -> Any:
        between.append(Away(store))
        return between[0]

    front = make_front(change_store=put)
    job_id = front.store.enqueue(submission())
    eventually(front.listed)
    between[0].away = True
    for path in ("/api/jobs/" + job_id, "/api/workers", "/api/stats", f"/api/jobs/{job_id}/logs", "/api/inbox"):
        answer = front.get(path)
        assert (answer.status, answer.code) == (503, "storage_trouble"), path
        assert "the disk says no" in answer.json["error"]["message"]
        assert answer.headers["retry-after"]
    assert front.post("/api/jobs", {"command": ["true"]}).status == 503
    assert front.get("/healthz").status == 503
    between[0].away = False
    eventually(lambda: front.get("/healthz").status == 200)
    more = front.store.enqueue(submission())
    eventually(lambda: more in [row["job_id"] for row in front.listed()])


def test_defect_returns_500_without_details(front: WebStage, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret words")

    monkeypatch.setattr("farro.queue.queues.listed", broken)
    answer = front.get("/api/workers")
    assert (answer.status, answer.code) == (500, "internal")
    assert b"secret" not in answer.body
    assert any("secret words" in str(fields) for _, _, fields in front.log)


def test_page_files_have_an_etag_and_no_other_file_is_served(front: WebStage) -> None:
    page = front.get("/")
    assert page.status == 200
    assert page.headers["content-type"].startswith("text/html")
    again = front.get("/", headers={"If-None-Match": page.headers.get("etag", "x")})
    assert again.status in (200, 304)
    for name in ("../app.py", "..%2fapp.py", "%2e%2e/app.py", "/etc/passwd", "app.py", "nothing.js", "a%00.js"):
        assert front.get(f"/page/{name}").status == 404, name


def test_page_files_name_no_other_host(front: WebStage) -> None:
    home = resources.files("farro.web").joinpath("page")
    page = front.get("/").body.decode()
    for source in re.findall(r'(?:src|href)="([^"]*)"', page):
        assert source.startswith(("/", "#", "data:")), source
        if source.startswith("/page/"):
            assert home.joinpath(source.removeprefix("/page/")).is_file(), source


def test_roles_and_library_plans_are_listed_and_a_plan_is_enqueued(any_front: WebStage) -> None:
    front = any_front
    roles = {line["role"]: line for line in front.get("/api/roles").json["roles"]}
    assert roles["Runner"]["cap"] == front.settings.cap_of("Runner")
    assert front.get("/api/plans").json == {"plans": []}
    kept = {"plan_id": "build", "steps": [{"step_number": 1, "command": "true"}]}
    App().library(str(front.root), front.settings).put("plan", "build", kept)
    assert front.get("/api/plans/build").json == {"plan": kept}
    made = front.post("/api/plans/build/submit", {"id": "built"})
    assert (made.status, made.json) == (201, {"jobs": ["built"]})
    eventually(lambda: [row["plan_id"] for row in front.listed()] == ["build"])
    for name, status in (("nothing", 404), ("..%2f..%2fx", 404), ("a%00", 422), ("-x", 422)):
        assert front.get(f"/api/plans/{name}").status == status, name
        assert front.post(f"/api/plans/{name}/submit").status == status, name


def test_reading_a_long_log_blocks_no_other_thread(front: WebStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "WAIT_S", 0.05)
    with front.web._state.queue_history._lock:
        for path in ("/api/history/range", "/api/history?at=2026-01-01T00:00:00Z", "/api/history/series"):
            answer = front.get(path)
            assert (answer.status, answer.code) == (503, "try_again"), path
            assert answer.headers["retry-after"]
    assert front.get("/api/history/range").status == 200


def test_log_read_in_batches_gives_the_same_history(front: WebStage, monkeypatch: pytest.MonkeyPatch) -> None:
    hands = ManualWorker(front.store)
    front.store.enqueue_many([submission() for _ in range(10)])
    while hands.one():
        pass
    hands.leave()
    front.store.close()  # writes the buffered lines
    whole = past.QueueHistory(front.store)
    whole.refresh()
    monkeypatch.setattr(past, "BATCH", 3)
    lots = past.QueueHistory(front.store)
    lots.refresh()
    assert whole.range() == lots.range()
    assert whole.range().lines >= 20
    moment = 4_000_000_000_000
    assert whole.at(moment, limit=100).queues == lots.at(moment, limit=100).queues
    assert lots.at(moment, limit=100).queues["Runner"]["succeeded"] == 10


def test_archived_jobs_are_shown_as_before(front: WebStage) -> None:
    front.store.enqueue_many([submission("echo") for _ in range(2)])
    hands = ManualWorker(front.store)
    done = [str(hands.one()), str(hands.one(fail="no"))]
    hands.leave()
    eventually(lambda: len(front.listed("?status=failed")) == 1 and len(front.listed("?status=succeeded")) == 1)
    pages = [f"/api/jobs/{job_id}{page}" for job_id in done for page in ("", "/history", "/explain")]
    before = [front.get(page).json for page in pages]
    listed = front.listed()

    assert front.store.archive(list(front.store.entries())).jobs == 2
    fresh = WebStage(front.root)  # a server that starts now, and has seen no job in its folder
    try:
        for server in (front, fresh):
            assert [server.get(page).json for page in pages] == before
            assert server.listed() == listed
            assert server.get("/api/queues").json["total"]["succeeded"] == 1
    finally:
        fresh.close()
