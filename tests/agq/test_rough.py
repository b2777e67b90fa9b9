"""Failures between a pop and its end: forgotten workers, lost replies, a server that stops."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from agq.stage import Front, command, job, result
from farro.errors import StorageTrouble
from farro.jobs.states import Reason
from support import eventually

# --- workers ---


def test_a_job_that_a_worker_pops_again_takes_the_same_result_again(front: Front) -> None:
    """A workflow may bring a job back to the role whose worker ended it before."""
    client = front.client()
    client.client_setname("worker-7")
    client.lpush("queue:ready", job("a"))
    text = result("a")
    front.server.workers.named["worker-7"].posted["a"] = hashlib.sha256(text.encode()).digest()
    assert client.rpop("queue:ready") is not None
    assert client.set("job:a:result", text) is True
    assert front.status("a") == "succeeded"


def test_a_worker_that_expires_while_it_waits_still_gets_a_job(make_front: Callable[..., Front]) -> None:
    front = make_front(worker_ttl_s=60.0)
    raw, other = front.raw(), front.client()
    raw.send(command("CLIENT", "SETNAME", "worker-7") + command("BRPOP", "queue:ready", "0"))
    eventually(lambda: front.server.waiting().get("Runner") == 1, "it waits")
    before = front.server.workers.named["worker-7"]
    assert other.expire("worker:worker-7:alive", 0) == 1
    eventually(lambda: before.gone, "it is forgotten")
    other.lpush("queue:ready", job("a"))
    raw.rest_until(b"}\r\n")
    raw.send(command("SET", "job:a:result", result("a")))
    assert raw.line() == b"+OK\r\n"
    view = front.store.find("a")
    assert view is not None
    assert Reason.RELEASED not in [hop.reason for hop in view.lifecycle.hops]


def test_jobs_of_an_unwritten_reply_go_back_at_once(
    make_front: Callable[..., Front], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the worker has an id and may come back: it never learned of them."""
    front = make_front(worker_ttl_s=3600.0, remote_store=True)
    front.client().lpush("queue:ready", job("a"), job("b"))
    claims, go_on, claim = [], threading.Event(), front.store.claim

    def slow(agent: Any, limit: int) -> Any:
        claims.append(agent)
        if len(claims) == 2:
            assert go_on.wait(30)
        return claim(agent, limit)

    monkeypatch.setattr(front.store, "claim", slow)
    raw = front.raw()
    raw.send(command("CLIENT", "SETNAME", "worker-7") + command("RPOP", "queue:ready", "2"))
    eventually(lambda: len(claims) == 2, "the second one is under way")
    raw.close()
    eventually(lambda: not front.server.workers.named["worker-7"].connections, "it is gone")
    go_on.set()
    eventually(lambda: {front.status("a"), front.status("b")} == {"queued"}, "both are back")


def test_a_job_that_its_worker_never_names_goes_back(make_front: Callable[..., Front]) -> None:
    """The connection broke while the reply of a pop was on its way. The worker is back and works on: otherwise the job
    would be held as long as the worker lives."""
    front = make_front(worker_ttl_s=0.3)
    first, second = front.client(client_name="worker-7"), front.client(client_name="worker-7")
    first.lpush("queue:ready", job("a"))
    assert second.ping()
    first.rpop("queue:ready")
    first.close()
    popped = second.brpop("queue:ready", 20)
    assert popped is not None
    assert json.loads(popped[1])["id"] == "a"


def test_a_job_that_its_worker_names_stays_with_it(make_front: Callable[..., Front]) -> None:
    front = make_front(worker_ttl_s=0.5)
    first, second = front.client(client_name="worker-7"), front.client(client_name="worker-7")
    first.lpush("queue:ready", job("a"))
    assert second.ping()
    first.rpop("queue:ready")
    first.close()
    eventually(lambda: len(front.server.workers.named["worker-7"].connections) == 1, "the first one is gone")
    assert second.rpop("queue:ready") is None
    assert second.hget("job:a", "attempt") == "1"
    assert second.brpop("queue:ready", 2) is None
    assert second.set("job:a:result", result("a")) is True


# --- the server ---


@pytest.mark.parametrize("waits", [True, False], ids=["in a thread", "in the loop"])
def test_a_result_under_way_is_accepted_when_the_server_stops(
    make_front: Callable[..., Front], monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    front = make_front(remote_store=waits)
    began, go_on, commit = threading.Event(), threading.Event(), front.store.commit

    def slow(*args: Any) -> Any:
        began.set()
        assert go_on.wait(30)
        return commit(*args)

    monkeypatch.setattr(front.store, "commit", slow)
    raw = front.raw()
    front.client().lpush("queue:ready", job("a"))
    raw.send(command("RPOP", "queue:ready") + command("SET", "job:a:result", result("a")))
    assert began.wait(30)
    front.server.stop()
    if waits:  # otherwise it notices afterwards
        eventually(lambda: front.server.stopping, "it stops")
    front._thread.join(1.0)
    assert front._thread.is_alive(), "it waits for what is under way"
    go_on.set()
    front._thread.join(30)
    assert front.status("a") == "succeeded"
    assert not front.server.stuck
    assert raw.rest().endswith(b"\r\n+OK\r\n"), "and its worker got the reply"


def test_a_failed_heartbeat_does_not_stop_the_others(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    client = front.client()
    client.lpush("queue:ready", job("a"), job("b"), job("c"))
    client.rpop("queue:ready", 3)
    beaten, heartbeat = set(), front.store.heartbeat

    def failing(agent: Any, claim: Any = None) -> None:
        if claim is not None and claim.job_id == "a":
            raise StorageTrouble("its lease cannot be written")
        heartbeat(agent, claim)
        beaten.add(None if claim is None else claim.job_id)

    monkeypatch.setattr(front.store, "heartbeat", failing)
    eventually(lambda: {"b", "c"} <= beaten, "the others live")
    assert any(level == "error" for level, _, _ in front.log), "and it is logged"


def test_work_and_leases_go_on_during_slow_queries(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a hundred thousand jobs takes time. Neither pops nor heartbeats wait for it."""
    client = front.client()
    client.lpush("queue:ready", job("a"), job("b"))
    client.rpop("queue:ready")
    go_on, looks, beats = threading.Event(), [], []
    listing, heartbeat = front.store.list, front.store.heartbeat

    def slow(**wanted: Any) -> Any:
        looks.append(wanted)
        assert go_on.wait(60)
        return listing(**wanted)

    monkeypatch.setattr(front.store, "list", slow)
    monkeypatch.setattr(front.store, "heartbeat", lambda *args: (beats.append(args), heartbeat(*args)))
    words = [("JOB.LIST",), ("KEYS", "*"), ("LRANGE", "queue:ready", "0", "-1")]
    lookers = [front.raw() for _ in range(24)]
    for number, raw in enumerate(lookers):
        raw.send(command(*words[number % 3]))
    eventually(lambda: looks, "they look")
    try:
        before = len(beats)
        eventually(lambda: len(beats) > before + 1, "the heart goes on")
        assert client.rpop("queue:ready") is not None
        assert client.set("job:a:result", result("a")) is True
    finally:
        go_on.set()
    for raw in lookers:
        assert raw.line().startswith(b"*")


def test_a_feed_goes_on_after_an_unexpected_error(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    changes, broken = front.store.changes, []

    def breaking(*args: Any, **more: Any) -> Any:
        if not broken:
            broken.append(args)
            raise RuntimeError("unexpected")
        return changes(*args, **more)

    monkeypatch.setattr(front.store, "changes", breaking)
    waiting = front.raw()
    waiting.send(command("BRPOP", "queue:ready", "0"))
    eventually(lambda: broken, "it broke")
    front.client().lpush("queue:ready", job("a"))
    assert waiting.rest_until(b"}\r\n").startswith(b"*2\r\n")


@pytest.mark.parametrize(
    "more",
    [
        {"error": "\ud800"},
        {"error": {"category": "\ud800", "message": "\udfff\x00"}},
        {"error": {"category": ["x"], "message": "m"}},
        {"duration_s": 1e308, "plan_id": "\ud800"},
        {"step_results": [{"step_number": 1, "exit_code": 10**30, "success": False, "stdout": "\ud800\x00"}]},
        {"step_results": [{"step_number": 9, "exit_code": -1, "success": False, "error": "\ud800", "user_s": "x"}]},
        {"step_results": []},
    ],
)
def test_a_strange_result_ends_the_job_or_is_refused(front: Front, more: dict[str, Any]) -> None:
    raw = front.raw()
    front.client().lpush("queue:ready", job("a"))
    raw.send(command("RPOP", "queue:ready"))
    raw.rest_until(b"}\r\n")
    raw.send(command("SET", "job:a:result", json.dumps({**json.loads(result("a", success=False)), **more})))
    said = raw.line()
    assert b"internal error" not in said
    assert front.status("a") == ("failed" if said == b"+OK\r\n" else "in_progress"), said
    assert front.client().execute_command("JOB.GET", "a")


def test_a_job_whose_commit_breaks_goes_back_with_its_worker(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go_on, commit = threading.Event(), threading.Event(), front.store.commit

    def breaking(*args: Any) -> Any:
        if began.is_set():  # a release is a commit, too
            return commit(*args)
        began.set()
        assert go_on.wait(30)
        raise ZeroDivisionError

    monkeypatch.setattr(front.store, "commit", breaking)
    front.client().lpush("queue:ready", job("a"))
    raw = front.raw()
    raw.send(command("RPOP", "queue:ready") + command("SET", "job:a:result", result("a")))
    assert began.wait(30)
    raw.close()
    eventually(lambda: len(front.server.connections) == 1, "it is gone")
    go_on.set()
    eventually(lambda: front.status("a") == "queued", "it is back")


def test_a_long_pipeline_of_refused_results_is_answered_in_full(front: Front) -> None:
    raw = front.raw()
    raw.send(command("LPUSH", "queue:ready", job("mine")) + command("RPOP", "queue:ready"))
    assert raw.line() == b":1\r\n"
    raw.read(int(raw.line()[1:]) + 2)
    others = b"".join(command("SET", f"job:other-{number}:result", result("other")) for number in range(2000))
    raw.send(others + command("SET", "job:mine:result", result("mine")))
    assert {raw.line().split(b":")[0] for _ in range(2000)} == {b"-ERR claim lost"}
    assert raw.line() == b"+OK\r\n"
    assert front.status("mine") == "succeeded"
