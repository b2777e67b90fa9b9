"""Requests that may take a while: wait, replay, tools, policy lock, provider test."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from farro.web import long_requests, request_handling
from http_stage import ManualWorker, WebStage, submission
from support import eventually


def test_wait_returns_when_jobs_have_ended(any_front: WebStage) -> None:
    front = any_front
    first, second = (front.store.enqueue(submission()) for _ in range(2))
    told = front.get(f"/api/wait?job={first}&timeout_s=0").json
    assert told == {"jobs": [], "waiting": [first], "timed_out": True}
    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(front.get, f"/api/wait?job={first}&job={second}&any=true&timeout_s=60")
        both = threads.submit(front.get, f"/api/wait?job={second}&job={first}&job={first}&timeout_s=60")
        hands = ManualWorker(front.store)
        eventually(lambda: hands.one() is not None)
        came = one.result().json
        assert len(came["jobs"]) >= 1
        assert came["timed_out"] is False
        eventually(lambda: hands.one(fail="no") is not None)
        told = both.result().json
        hands.leave()
    assert {(end["job_id"], end["good"], end["life"]["status"]) for end in told["jobs"]} == {
        (first, True, "succeeded"),
        (second, False, "failed"),
    }
    assert (told["waiting"], told["timed_out"]) == ([], False)


def test_wait_without_jobs_or_for_too_long_is_refused(front: WebStage) -> None:
    assert front.get("/api/wait").status == 422
    assert front.get(f"/api/wait?job=x&timeout_s={long_requests.MAX_WAIT_S + 1}").status == 422
    assert front.get("/api/wait?job=nope").code == "unknown_job"


def test_waiting_requests_block_neither_queries_nor_shutdown(make_front: Callable[..., WebStage]) -> None:
    front = make_front()
    job_id = front.store.enqueue(submission())
    answers: list[int] = []

    def wait() -> None:
        answers.append(front.get(f"/api/wait?job={job_id}&timeout_s=60").status)

    waiting = [threading.Thread(target=wait) for _ in range(request_handling.SLOW_THREADS + 4)]
    for thread in waiting:
        thread.start()
    eventually(lambda: len(answers) == 4)
    assert answers == [503] * 4, "more requests than threads"
    assert front.get(f"/api/jobs/{job_id}").status == 200
    began_s = time.monotonic()
    front.web.stop()
    for thread in waiting:
        thread.join()
    assert answers[4:] == [200] * request_handling.SLOW_THREADS
    assert time.monotonic() - began_s < 55, "they are dropped, not waited for"


def test_command_plan_cannot_be_replayed(front: WebStage) -> None:
    job_id = front.store.enqueue(submission())
    answer = front.post(f"/api/jobs/{job_id}/replay")
    assert answer.status == 400
    assert "farro retry" in answer.json["error"]["message"]


def test_registered_tools_are_listed(make_front: Callable[..., WebStage]) -> None:
    front = make_front(
        config_of={"tools": {"sums": {"python": "statistics:mean"}, "gone": {"command": "/nowhere/gone"}}}
    )
    told = {tool["name"]: tool for tool in front.get("/api/tools").json["tools"]}
    assert {"unix", "function", "sums", "gone"} <= told.keys()
    assert told["sums"]["comes_from"] == "config"
    assert told["gone"]["usable"] is False


def test_policy_lock_is_written_and_compared(front: WebStage) -> None:
    path = front.root / "policy.lock.json"
    path.unlink()  # `farro init` made it
    assert front.get("/api/policy/lock").json == {"file": "policy.lock.json", "locked": False, "differences": []}
    assert front.post("/api/policy/lock").json == {"file": "policy.lock.json", "changed": True}
    assert front.post("/api/policy/lock").json["changed"] is False
    path.write_text(json.dumps({**json.loads(path.read_text()), "lock_version": "0"}))
    eventually(lambda: front.get("/api/policy/lock").json["locked"])  # an answer is cached for a second
    eventually(lambda: front.get("/api/policy/lock").json["differences"])
    told = front.get("/api/policy/lock").json
    assert [(one["path"], one["locked"]) for one in told["differences"]] == [("lock_version", "0")]


def test_provider_test_returns_the_answer_or_the_failure(make_front: Callable[..., WebStage]) -> None:
    providers = {
        "play": {"kind": "scripted", "file": "answers.json"},
        "away": {"kind": "openai", "base_url": "http://127.0.0.1:9", "api_key": "${NOBODYS_KEY}"},
    }
    front = make_front(config_of={"providers": providers})
    (front.root / "answers.json").write_text(json.dumps({"answers": [{"answer": "ready"}]}))
    told = front.post("/api/provider-test", {"provider": "play"}).json
    assert (told["ok"], told["provider"], told["answer"]) == (True, "play", "ready")
    away = front.post("/api/provider-test", {"provider": "away"}).json
    assert away["ok"] is False
    assert away["error"]["message"]
    assert front.post("/api/provider-test", {}).status == 400
    assert front.post("/api/provider-test", {"provider": "nobody"}).status == 400
    assert list((front.root / "jobs" / ".staging").iterdir()) == [], "nothing is left behind"
