"""Which worker holds a popped job: connections that die, workers that move, and waiting clients in order."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from agq.stage import PATIENCE_S, Front, command, connected, job, result
from farro.agq.changes import OwnPushes
from farro.agq.memo_jobs import _RELEASES
from farro.jobs.states import Status
from farro.store.port import Change, Changes, QueuePause, Submission
from support import eventually


def test_a_job_whose_connection_dies_comes_back_and_is_popped_again(front: Front) -> None:
    dying, other = front.client(), front.client()
    other.lpush("queue:ready", job("a"))
    assert dying.rpop("queue:ready") is not None
    dying.close()
    assert json.loads(other.brpop("queue:ready", 20)[1])["id"] == "a"
    other.set("job:a:result", result("a"))
    assert front.status("a") == "succeeded"


def test_a_result_is_accepted_only_from_the_holder_of_the_claim(front: Front) -> None:
    holder, other = front.client(), front.client()
    holder.lpush("queue:ready", job("a"))
    holder.rpop("queue:ready")
    for key in ("job:a:result", "job:a:status", "job:a:stdout"):
        with pytest.raises(redis.ResponseError, match=r"^claim lost: a is not held by this connection's worker"):
            other.set(key, result("a"))
    with pytest.raises(redis.ResponseError, match="claim lost"):
        other.set("job:none:result", result("none"))
    assert front.status("a") == "in_progress"
    assert holder.set("job:a:result", result("a")) is True


def test_a_worker_id_may_move_to_a_new_connection(make_front: Callable[..., Front]) -> None:
    front = make_front(worker_ttl_s=60.0)
    first, second = front.client(), front.client()
    first.lpush("queue:ready", job("a"), job("b"))
    first.rpop("queue:ready")
    first.execute_command("PING", "worker-7")  # its earlier jobs belong to that worker, too
    first.rpop("queue:ready")
    first.close()
    second.client_setname("worker-7")
    assert second.set("job:a:result", result("a")) is True
    assert second.set("job:b:result", result("b")) is True
    assert json.loads(second.get("job:a:result"))["worker"] == "worker-7"


def test_a_worker_that_stays_away_loses_its_jobs(make_front: Callable[..., Front]) -> None:
    front = make_front(worker_ttl_s=0.3)
    first, second = front.client(), front.client()
    first.execute_command("PING", "worker-7")
    first.lpush("queue:ready", job("a"))
    first.rpop("queue:ready")
    later_s = front.server.now_s() + 1000
    assert front.server.workers.named["worker-7"].remaining_s(later_s) > 0, "with a connection it may be silent"
    first.close()
    assert json.loads(second.brpop("queue:ready", 20)[1])["id"] == "a"
    late = front.client()
    late.execute_command("PING", "worker-7")
    with pytest.raises(redis.ResponseError, match="claim lost"):
        late.set("job:a:result", result("a"))


def test_a_worker_that_quits_gives_its_jobs_back_at_once(make_front: Callable[..., Front]) -> None:
    front = make_front(worker_ttl_s=3600.0)
    raw, other = front.raw(), front.client()
    other.lpush("queue:ready", job("a"))
    raw.send(command("PING", "worker-7") + command("RPOP", "queue:ready"))
    raw.rest_until(b"}\r\n")
    raw.send(command("QUIT"))
    assert json.loads(other.brpop("queue:ready", 20)[1])["id"] == "a"


def test_a_job_that_was_killed_is_lost_to_its_worker(front: Front) -> None:
    holder, person = front.client(), front.client()
    holder.lpush("queue:ready", job("a"), job("b"))
    holder.rpop("queue:ready", 2)
    assert person.execute_command("JOB.CANCEL", "a") == "killed"
    with pytest.raises(redis.ResponseError, match=r"^claim lost"):
        holder.set("job:a:result", result("a"))
    person.execute_command("JOB.CANCEL", "b")
    eventually(lambda: holder.llen("queue:processing") == 0, "the heartbeat tells")
    assert front.status("a") == "killed"


def test_a_job_that_loses_worker_after_worker_ends(front: Front) -> None:
    pusher = front.client()
    pusher.lpush("queue:ready", job("a"))
    for _ in range(_RELEASES):
        dying = front.client()
        assert dying.brpop("queue:ready", 20) is not None
        dying.close()
        eventually(lambda: front.status("a") == "queued", "it comes back")
    dying = front.client()
    dying.brpop("queue:ready", 20)
    dying.close()
    eventually(lambda: front.status("a") != "in_progress", "it is decided")
    view = front.store.find("a")
    assert view is not None
    assert view.lifecycle.hops[-1].reason in ("retried", "committed"), "from here on attempts are counted"


# --- blocking pops ---


def test_a_blocking_pop_is_woken_by_any_push(front: Front) -> None:
    waiting = front.client()
    came: list[Any] = []
    thread = threading.Thread(target=lambda: came.append(waiting.brpop(["queue:Architect", "queue:ready"], 0)))
    thread.start()
    eventually(lambda: front.server.waiting().get("Runner"), "it waits")
    prompt = json.loads(job("a"))
    front.store.enqueue(Submission(role="Runner", prompt=prompt, job_id="a"))  # not through this server
    thread.join(20)
    (answer,) = came
    assert answer[0] == "queue:ready"
    assert json.loads(answer[1])["id"] == "a"
    assert front.server.waiting() == {"Architect": 0, "Runner": 0}


def test_a_waiting_client_is_woken_by_others_pushes_among_own_ones(front: Front) -> None:
    waiting, client = front.client(), front.client()
    for number in range(20):
        client.lpush("queue:ready", job(f"own-{number}"))
        theirs = json.loads(job(f"theirs-{number}"))
        front.store.enqueue(Submission(role="Runner", prompt=theirs, job_id=theirs["id"]))
        popped = {json.loads(waiting.brpop("queue:ready", 30)[1])["id"] for _ in range(2)}
        assert popped == {f"own-{number}", f"theirs-{number}"}


def test_an_own_push_is_expected_once() -> None:
    own = OwnPushes()
    own.expect(["a", "b"])
    assert own.covers(changes_of("a"))
    assert not own.covers(changes_of("a")), "it came back: another process sent it"
    assert not own.covers(changes_of("b", "another's"))
    assert not own.covers(changes_of("b"))
    own.expect(["a"])
    assert not own.covers(changes_of("a", gap=True)), "a lost change may be another's"
    assert not own.covers(changes_of()), "nothing came for long: look anyway"


def changes_of(*job_ids: str, gap: bool = False) -> Changes:
    items = tuple(Change(job_id=job_id, role="Runner", status=Status.QUEUED) for job_id in job_ids)
    return Changes(cursor=1, items=items, gap=gap)


def test_a_client_waiting_for_a_paused_queue_is_woken_on_resume(front: Front) -> None:
    front.store.pause("Runner", QueuePause(by="ann", at="now"))
    client, found = front.client(), []
    client.lpush("queue:ready", job("a"))
    assert json.loads(client.execute_command("QUEUE.STATS", "queue:ready"))["queues"]["queue:ready"]["paused"] is True
    assert client.rpop("queue:ready") is None
    waiter = front.client()
    thread = threading.Thread(target=lambda: found.append(waiter.brpop("queue:ready", 0)))
    thread.start()
    front.client().ping()
    assert front.status("a") == "queued"
    front.store.resume("Runner")
    thread.join(PATIENCE_S)
    assert json.loads(found[0][1])["id"] == "a"


@pytest.mark.parametrize("timeout", [0.05, 1])
def test_a_blocking_pop_ends_with_nothing_after_its_time(front: Front, timeout: float) -> None:
    client = front.client()
    assert client.brpop("queue:ready", timeout) is None
    assert client.blmove("queue:ready", "queue:processing", timeout) is None
    raw = front.raw()
    raw.send(command("BRPOP", "queue:ready", "0.01") + command("HELLO", "3") + command("BRPOP", "queue:ready", "0.01"))
    assert raw.line() == b"*-1\r\n"
    assert raw.rest_until(b"_\r\n").startswith(b"%7\r\n")


@pytest.mark.parametrize("timeout", ["-1", "soon", "nan", "inf", "1e300"])
def test_an_invalid_timeout_is_refused(front: Front, timeout: str) -> None:
    with pytest.raises(redis.ResponseError, match="timeout"):
        front.client().execute_command("BRPOP", "queue:ready", timeout)


def test_clients_are_served_in_the_order_in_which_they_came(front: Front) -> None:
    raws = [front.raw() for _ in range(5)]
    for number, raw in enumerate(raws):
        raw.send(command("BRPOP", "queue:ready", "0"))
        eventually(lambda count=number + 1: front.server.waiting().get("Runner") == count, "it waits")
    pusher = front.client()
    for number in range(5):
        pusher.lpush("queue:ready", job(f"j{number}"))
    for number, raw in enumerate(raws):
        raw.rest_until(b"queue:ready\r\n")
        raw.line()
        assert json.loads(raw.line())["id"] == f"j{number}"


def test_a_client_that_went_away_while_it_waited_gets_no_job(front: Front) -> None:
    gone, stays = front.raw(), front.client()
    gone.send(command("BRPOP", "queue:ready", "0"))
    eventually(lambda: front.server.waiting().get("Runner") == 1, "it waits")
    gone.close()
    eventually(lambda: front.server.waiting().get("Runner") == 0, "it left")
    stays.lpush("queue:ready", job("a"))
    assert json.loads(stays.brpop("queue:ready", 20)[1])["id"] == "a"
    view = front.store.find("a")
    assert view is not None
    assert view.lifecycle.attempt == 1


def test_a_delayed_job_wakes_a_waiting_client_when_it_is_due(front: Front) -> None:
    from datetime import UTC, datetime, timedelta

    due = datetime.now(UTC) + timedelta(seconds=0.5)
    front.store.enqueue(Submission(role="Runner", prompt=json.loads(job("a")), job_id="a", not_before=due))
    assert json.loads(front.client().brpop("queue:ready", 20)[1])["id"] == "a"
    assert datetime.now(UTC) >= due


@pytest.mark.parametrize("waits", [False, True], ids=["loop batcher", "thread batchers"])
def test_a_client_that_waits_for_two_queues_costs_nothing(make_front: Callable[..., Front], waits: bool) -> None:
    """Both queues are empty: neither must make the other one look again."""
    front = make_front(remote_store=waits)
    claims: list[Any] = []
    calls = front.server.workers._calls
    claim = calls._claim
    calls._claim = lambda request: (claims.append(request), claim(request))[1]  # type: ignore[method-assign]
    client = front.client()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(client.blpop(["queue:ready", "queue:CodeReviewer"], 0)))
    thread.start()
    eventually(lambda: len(claims) >= 2, "both are looked at")
    front.client().ping()
    before = len(claims)
    for _ in range(50):
        front.client().ping()
    assert len(claims) <= before + 2, "and then no claim is tried until a job comes"
    front.client().lpush("queue:CodeReviewer", job("a"))
    thread.join(PATIENCE_S)
    assert [name for name, _ in found] == ["queue:CodeReviewer"]


def test_waiting_clients_need_no_thread_each(front: Front) -> None:
    raws = [front.raw() for _ in range(100)]
    for raw in raws:
        raw.send(command("BRPOP", "queue:ready", "0"))
    eventually(lambda: front.server.waiting().get("Runner") == 100, "all wait")
    assert threading.active_count() < 40
    client = front.client()
    assert client.info("clients")["blocked_clients"] == 100
    client.lpush("queue:ready", *(job(f"j{number}") for number in range(100)))
    got = set()
    for raw in raws:
        raw.rest_until(b"queue:ready\r\n")
        raw.line()
        got.add(json.loads(raw.line())["id"])
    assert len(got) == 100


def test_many_clients_work_a_queue_and_every_job_ends_once(front: Front) -> None:
    total, ends = 60, []
    pusher = front.client()

    def work() -> None:
        client = connected(front.port)
        try:
            while (popped := client.brpop("queue:ready", 1)) is not None:
                name = json.loads(popped[1])["id"]
                client.set(f"job:{name}:result", result(name))
                ends.append(name)
        finally:
            client.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(total):
        pusher.lpush("queue:ready", job(f"j{number}"))
    for thread in threads:
        thread.join(60)
    assert sorted(ends) == sorted(f"j{number}" for number in range(total))
    assert {front.status(f"j{number}") for number in range(total)} == {"succeeded"}
