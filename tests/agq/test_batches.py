"""Batches of jobs: JOB.TAKE, JOB.DONE and JOB.RETURN, and batches with one bad job. Each job is as safe as a single
one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from agq.stage import Front, command, job, result
from farro.agq.client import AgqStore
from farro.agq.client.connection import AgqAddress
from farro.errors import AgentLost, Lost, StorageTrouble
from farro.host.clock import SystemClock
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Report, Succeeded
from farro.store.port import AttemptResult, Claim, Commits
from farro.store.redis.workspace import LocalWorkspace
from one_job import claim_one, commit_all, release_one
from stage import QuickClock
from support import eventually


@pytest.fixture(params=[False, True], ids=["loop batcher", "thread batchers"])
def front(request: pytest.FixtureRequest, make_front: Callable[..., Front]) -> Front:
    """Run in front of files, and as in front of a remote store."""
    return make_front(remote_store=request.param)


def taken(client: redis.Redis, count: int = 16, *seconds: float) -> dict[str, int]:
    """Return job → attempt."""
    said = client.execute_command("JOB.TAKE", "queue:ready", count, *seconds) or []
    return {json.loads(text)["id"]: attempt for attempt, text in zip(said[::2], said[1::2], strict=True)}


def push(client: redis.Redis, *names: str) -> None:
    for name in names:
        client.lpush("queue:ready", job(name))


def test_a_batch_is_taken_and_ended_in_two_commands(front: Front) -> None:
    client = front.client()
    push(client, "a", "b", "c")
    batch = taken(client)
    assert batch == {"a": 1, "b": 1, "c": 1}
    assert client.llen("queue:processing") == 3
    assert client.execute_command("JOB.TAKE", "queue:ready", 4) is None
    said = client.execute_command("JOB.DONE", *(word for name in batch for word in (name, result(name))))
    assert said == ["OK", "OK", "OK"]
    assert [front.status(name) for name in batch] == ["succeeded"] * 3
    assert client.get("job:b:stdout") == "out\n"
    assert client.llen("queue:processing") == 0


def test_each_result_of_a_batch_is_accepted_or_refused_separately(front: Front) -> None:
    client, person = front.client(), front.client()
    push(client, "a", "b", "c", "d")
    assert len(taken(client)) == 4
    person.execute_command("JOB.CANCEL", "b")
    words = ["a", result("a"), "b", result("b"), "c", '{"success": 1}', "d", result("d"), "e", result("e")]
    said = client.execute_command("JOB.DONE", *words)
    assert (said[0], said[3]) == ("OK", "OK")
    assert str(said[1]).startswith("claim lost")
    assert str(said[2]).startswith("invalid result: success: ")
    assert str(said[4]).startswith("claim lost: e is not held by this connection's worker")
    assert [front.status(name) for name in "abcd"] == ["succeeded", "killed", "in_progress", "succeeded"]
    assert client.execute_command("JOB.DONE", "c", result("c")) == ["OK"], "it is still held"


def test_an_error_with_one_result_concerns_no_other(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    client = front.client()
    push(client, "a", "b", "c")
    assert len(taken(client)) == 3
    calls = front.server.workers._calls
    commit = front.store.commit

    def torn(ended: Sequence[AttemptResult]) -> Commits:
        answers = iter(commit([one for one in ended if one.claim.job_id != "b"]).answers)
        full = StorageTrouble("no room on the disk")
        return Commits([full if one.claim.job_id == "b" else next(answers) for one in ended], [])

    monkeypatch.setattr(calls._store, "commit", torn)
    words = ["JOB.DONE", "a", result("a"), "b", result("b"), "c", result("c")]
    said = client.execute_command(*words)
    assert (said[0], said[2]) == ("OK", "OK")
    assert "no room on the disk" in str(said[1])
    monkeypatch.undo()
    assert client.execute_command(*words) == ["OK", "OK", "OK"], "it is still held, and taken now"
    assert [front.status(name) for name in "abc"] == ["succeeded"] * 3


def test_a_result_of_a_batch_is_accepted_once(front: Front) -> None:
    client = front.client()
    push(client, "a", "b")
    taken(client)
    words = ["JOB.DONE", "a", result("a"), "b", result("b")]
    assert client.execute_command(*words) == ["OK", "OK"]
    assert client.execute_command(*words) == ["OK", "OK"], "after an answer that was lost"
    assert client.execute_command("JOB.TAKE", "queue:ready", 1) is None
    assert [str(error)[:10] for error in client.execute_command(*words)] == ["claim lost"] * 2, "it has taken more"


def test_a_connection_that_dies_with_several_jobs_loses_none(front: Front) -> None:
    dying, other = front.client(), front.client()
    push(other, "a", "b", "c")
    assert len(taken(dying)) == 3
    assert dying.execute_command("JOB.DONE", "b", result("b")) == ["OK"]
    dying.close()
    found: dict[str, int] = {}
    while len(found) < 2:
        found |= taken(other, 8, 20)
    assert set(found) == {"a", "c"}
    said = other.execute_command("JOB.DONE", "a", result("a"), "c", result("c"))
    assert said == ["OK", "OK"]
    assert front.status("b") == "succeeded"


def test_a_batch_for_a_client_that_left_goes_back(front: Front) -> None:
    raw, other = front.raw(), front.client()
    raw.send(command("JOB.TAKE", "queue:ready", "8", "0"))
    eventually(lambda: front.server.waiting().get("Runner"), "it waits")
    raw.close()
    push(other, "a", "b")
    found: dict[str, int] = {}
    while len(found) < 2:
        found |= taken(other, 8, 20)
    assert set(found) == {"a", "b"}


def test_returned_jobs_go_back_to_their_positions(front: Front) -> None:
    client, other = front.client(), front.client()
    push(client, "a", "b", "c")
    assert list(taken(client)) == ["a", "b", "c"]
    push(client, "d")
    assert client.execute_command("JOB.RETURN", "b", "c", "none") == 2
    assert client.llen("queue:processing") == 1
    found: dict[str, int] = {}
    while len(found) < 3:
        found |= taken(other, 8, 20)
    assert list(found) == ["b", "c", "d"], "before what came later"
    assert other.execute_command("JOB.RETURN", "a") == 0, "it is held by another worker"


def test_a_waiting_worker_gets_a_batch_as_soon_as_there_is_a_job(front: Front) -> None:
    waiting, pusher = front.client(), front.client()
    came: list[Any] = []
    thread = threading.Thread(target=lambda: came.append(taken(waiting, 16, 0)))
    thread.start()
    eventually(lambda: front.server.waiting().get("Runner"), "it waits")
    push(pusher, "a")
    thread.join(30)
    assert came == [{"a": 1}]
    assert taken(waiting, 4, 0.01) == {}, "its time is over"


def test_a_long_job_of_a_batch_is_shown_as_running(front: Front) -> None:
    client = front.client()
    push(client, "a")
    taken(client)

    def agent() -> object:
        view = front.store.find("a")
        return view is not None and view.lifecycle.agent

    eventually(agent, "its agent is visible")
    assert client.hget("job:a", "status") == "in_progress"
    assert client.execute_command("JOB.RETURN", "a") == 1
    eventually(lambda: front.status("a") == "queued", "and it can go back all the same")


def test_batches_are_taken_between_multi_and_exec(front: Front) -> None:
    client = front.client()
    push(client, "a")
    pipe = client.pipeline(transaction=True)
    pipe.execute_command("JOB.TAKE", "queue:ready", 4, 0)
    pipe.execute_command("JOB.DONE", "a", result("a"))
    pipe.execute_command("JOB.TAKE", "queue:ready", 4, 0)
    said = pipe.execute()
    assert said[0][0] == 1
    assert said[1:] == [["OK"], None], "nothing blocks"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["JOB.TAKE", "queue:ready", "0"], "must be between 1 and 16"),
        (["JOB.TAKE", "queue:ready", "17"], "must be between 1 and 16"),
        (["JOB.TAKE", "queue:ready", "4", "-1"], "timeout is negative"),
        (["JOB.TAKE", "queue:Manager", "4"], "worked by `farro manager`"),
        (["JOB.TAKE", "nothing", "4"], "is not a queue here"),
        (["JOB.DONE", "a"], "wrong number of arguments"),
        (["JOB.DONE", "a", "{}", "b"], "wrong number of arguments"),
        (["JOB.RETURN"], "wrong number of arguments"),
    ],
)
def test_a_bad_batch_command_has_a_helpful_error(front: Front, words: list[str], why: str) -> None:
    with pytest.raises(redis.ResponseError, match=why):
        front.client().execute_command(*words)


def test_large_results_are_accepted_in_a_batch(front: Front) -> None:
    client = front.client()
    push(client, "a", "b")
    taken(client)
    said = client.execute_command("JOB.DONE", "a", result("a", stdout="x" * 300_000), "b", result("b", success=False))
    assert said == ["OK", "OK"]
    assert len(client.get("job:a:stdout") or "") == 300_000
    assert [front.status("a"), front.status("b")] == ["succeeded", "failed"]


# --- pushes that are combined ---


def test_a_bad_job_between_good_ones_is_refused_alone(front: Front) -> None:
    """Pushes of many clients reach the store together."""
    raws = [front.raw() for _ in range(30)]
    for number, raw in enumerate(raws):
        text = job(f"j{number}") if number != 13 else '{"id": "j13", "plan_id": "p", "steps": [{"step_number": 1}]}'
        raw.send(command("LPUSH", "queue:ready", text))
    said = [raw.line() for raw in raws]
    assert said.pop(13).startswith(b"-ERR invalid job: steps[0].tool: is required")
    assert all(line.startswith(b":") for line in said)
    assert [front.status(f"j{number}") for number in range(30) if number != 13] == ["queued"] * 29
    assert front.status("j13") is None


def test_jobs_that_differ_in_their_ids_are_each_checked(front: Front) -> None:
    client = front.client()
    same = '{"plan_id": "alike", "id": "%s", "steps": [{"step_number": 1, "tool": "unix", "command": "true"}]}'
    inner = '{"steps": [{"id": "%s", "command": "true", "step_number": 1, "tool": "unix"}], "id": "%s", "plan_id": "p"}'
    for name in ("s1", "s2", "s3"):
        client.lpush("queue:ready", same % name)
    assert json.loads(client.rpop("queue:ready"))["id"] == "s1"
    view = front.store.find("s2")
    assert view is not None
    assert json.loads(client.rpop("queue:ready")) == json.loads(same % "s2")
    with pytest.raises(redis.ResponseError, match=r"invalid job: id: .*con"):
        client.lpush("queue:ready", same % "con")
    with pytest.raises(redis.ResponseError, match="invalid job: id: s3 was submitted before"):
        client.lpush("queue:ready", (same % "s3").replace("alike", "other"))
    for step, name in (("x", "n1"), ("y", "n2")):  # the first id in the text is a step's
        with pytest.raises(redis.ResponseError) as first:
            client.lpush("queue:ready", inner % (step, name))
        assert "id" in str(first.value)


@pytest.mark.parametrize("more", [{"metadata": {"after": ["missing"]}}, {"allowed_paths": ["/etc"]}, {"input": "x"}])
def test_a_plan_whose_checks_need_more_than_its_text_is_checked_each_time(front: Front, more: Any) -> None:
    client = front.client()
    errors = []
    for name in ("a", "b"):
        with pytest.raises(redis.ResponseError) as refused:
            client.lpush("queue:ready", job(name, **more))
        errors.append(str(refused.value))
    assert errors[0] == errors[1]


def test_dependencies_are_looked_up_each_time(front: Front) -> None:
    client = front.client()
    client.lpush("queue:ready", job("first"))
    client.lpush("queue:ready", '{"id": "w1", "plan_id": "p", "steps": [{"step_number": 1, "tool": "unix", '
                 '"command": "true"}], "metadata": {"after": ["first"]}}')  # fmt: skip
    with pytest.raises(redis.ResponseError, match="no job gone"):
        client.lpush("queue:ready", '{"id": "w2", "plan_id": "p", "steps": [{"step_number": 1, "tool": "unix", '
                     '"command": "true"}], "metadata": {"after": ["gone"]}}')  # fmt: skip


def test_standard_clients_and_batches_share_one_queue(make_front: Callable[..., Front]) -> None:
    front = make_front(worker_ttl_s=60.0)
    plain, batches = front.client(), front.client()
    push(plain, "a", "b", "c")
    assert json.loads(plain.brpop("queue:ready", 20)[1])["id"] == "a"
    assert set(taken(batches)) == {"b", "c"}
    assert batches.set("job:b:result", result("b")) is True, "a job of a batch is a job"
    assert plain.execute_command("JOB.DONE", "a", result("a")) == ["OK"]
    assert batches.lrem("queue:processing", 1, "b") == 1


def test_a_killed_job_that_ends_leaves_the_other_jobs_with_their_worker(
    make_front: Callable[..., Front],
) -> None:
    """Two paths lead to the end of one job, and its agent has another one."""
    front = make_front(beat_s=30.0)
    client, person = front.client(), front.client()
    push(client, "a", "b")
    assert taken(client) == {"a": 1, "b": 1}
    claimer = front.server.workers.held["a"].claimer
    person.execute_command("JOB.CANCEL", "a")
    client.set("job:a:status", "completed")
    eventually(lambda: "a" not in front.server.workers.held, "its time after a status is over")
    assert claimer.held == 1
    assert client.execute_command("JOB.DONE", "b", result("b")) == ["OK"]
    assert front.status("b") == "succeeded"


# --- the worker's side ---


@pytest.fixture
def slots(front: Front, shm: Path) -> Iterator[AgqStore]:
    store = AgqStore(
        AgqAddress.of(f"agq://127.0.0.1:{front.port}", None),
        workspace=LocalWorkspace(str(shm), name="agq", clock=SystemClock()),
        clock=SystemClock(),
    )
    yield store
    store.close()


def good(claim: Claim) -> Succeeded:
    step = {"step_number": 1, "stdout": "", "stderr": "", "exit_code": 0, "success": True}
    return Succeeded(report=Report(result={"job_id": claim.job_id, "step_results": [step]}, markdown="done"))


def test_small_jobs_go_over_agq_in_batches(front: Front, slots: AgqStore) -> None:
    client = front.client()
    push(client, "a", "b", "c", "d")
    agent = slots.join("agw", role="Runner")
    claims = slots.claim(agent, 4)
    assert [(claim.job_id, claim.attempt) for claim in claims] == [("a", 1), ("b", 1), ("c", 1), ("d", 1)]
    slots.hand_back(claims[3:])
    assert front.status("d") == "queued"
    client.execute_command("JOB.CANCEL", "b")
    results = commit_all(slots, [(claim, good(claim)) for claim in claims[:3]])
    assert [isinstance(one, Lost) for one in results] == [False, True, False]
    assert [front.status(name) for name in "abc"] == ["succeeded", "killed", "succeeded"]
    (again,) = slots.claim(agent, 4)
    assert (again.job_id, again.envelope.lifecycle.status) == ("d", "in_progress")
    release_one(slots, again, "no room")
    eventually(lambda: front.status("d") == "queued", "at once, while the slot goes on")
    assert slots.claim(agent, 4)[0].job_id == "d"


def test_a_wake_before_the_wait_is_not_missed(front: Front, slots: AgqStore) -> None:
    """A worker is stopped between a slot's claim and its wait."""
    agent = slots.join("agw", role="Runner")
    assert claim_one(slots, agent) is None
    slots.wake("Runner")
    began_s = time.monotonic()
    assert slots.claim(agent, 1, wait_s=90.0) == []
    assert time.monotonic() - began_s < 45
    push(front.client(), "a")
    assert len(slots.claim(agent, 1, wait_s=90.0)) == 1


def test_a_leaving_slot_hands_back_its_batch(front: Front, slots: AgqStore) -> None:
    push(front.client(), "a", "b")
    agent = slots.join("agw", role="Runner")
    assert len(slots.claim(agent, 4)) == 2
    slots.leave(agent)
    eventually(lambda: [front.status("a"), front.status("b")] == ["queued", "queued"], "they go back")
    with pytest.raises(AgentLost):
        slots.claim(agent, 4)


def test_jobs_that_differ_in_their_ids_share_one_plan(front: Front, slots: AgqStore) -> None:
    client = front.client()
    for name in ("a", "b"):
        client.lpush("queue:ready", job(name, plan_id="p"))
    first, second = slots.claim(slots.join("agw", role="Runner"), 4)
    assert first.envelope.prompt == second.envelope.prompt
    first.make()
    assert json.loads((Path(first.folder).parent.parent / "prompt.json").read_text())["id"] == "a"


def test_a_job_whose_result_is_refused_fails_with_the_reason(front: Front, slots: AgqStore) -> None:
    """The worker posts a result without step 2."""
    client = front.client()
    client.lpush("queue:ready", job("a", "true", "true"))
    push(client, "b")
    agent = slots.join("agw", role="Runner")
    claims = slots.claim(agent, 4)
    ended = [
        life for life in commit_all(slots, [(claim, good(claim)) for claim in claims]) if isinstance(life, Lifecycle)
    ]
    assert [life.status for life in ended] == ["failed", "succeeded"]
    assert [front.status("a"), front.status("b")] == ["failed", "succeeded"]
    error = json.loads(client.get("job:a:result"))["error"]
    assert error["category"] == "invalid_result"
    assert "step_results: step 2 has no result" in error["message"]
    assert slots.claim(agent, 4) == []


def test_an_attempt_keeps_its_output_while_its_result_has_no_answer(
    make_front: Callable[..., Front], shm: Path
) -> None:
    front, clock = make_front(), QuickClock()
    store = AgqStore(
        AgqAddress.of(f"agq://127.0.0.1:{front.port}", None),
        workspace=LocalWorkspace(str(shm), name="agq", clock=clock),
        clock=clock,
    )
    push(front.client(), "a")
    (claim,) = store.claim(store.join("agw", role="Runner"), 1)
    claim.make()
    output = Path(claim.folder) / "stdout"
    output.write_text("much")
    front.close()
    (answer,) = commit_all(store, [(claim, good(claim))])
    assert isinstance(answer, StorageTrouble)
    assert output.read_text() == "much"
    store.close()
    assert not output.exists()
