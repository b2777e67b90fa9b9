"""Claims on Redis: tags, batches, missing rights, and which waiting worker is woken."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from farro.errors import AgentLost, NotPermitted, NotReplicated
from farro.host.clock import SystemClock
from farro.jobs.outcomes import Succeeded
from farro.jobs.states import Status
from farro.store.port import AttemptResult, Claim, NextClaim, QueuePause, Submission
from farro.store.redis import RedisStore, client
from one_job import commit_all
from redis_rig import Rig
from servers import RedisServer
from stage import plan, report, submission
from support import eventually

WAIT_S = 90.0
CLOCK = SystemClock()


def tagged(job_id: str, *tags: str, **more: Any) -> Submission:
    return Submission(role="Runner", prompt={**plan(1), "metadata": {"tags": list(tags)}}, job_id=job_id, **more)


def names(claims: list[Claim]) -> list[str]:
    return [claim.job_id for claim in claims]


def ended(store: RedisStore, claims: list[Claim]) -> None:
    commit_all(store, [(claim, Succeeded(report=report(claim))) for claim in claims])


# --- tags ---


def test_a_job_that_a_batch_leaves_is_claimed_by_the_next_one(rig: Rig) -> None:
    store = rig.store()
    agent = store.join("w", role="Runner", tags=["gpu"])
    store.enqueue(tagged("first", "gpu"))
    store.enqueue(tagged("alone", "gpu", payload={"a.txt": b"x"}))  # it has files, so it is in no batch
    store.enqueue(tagged("last", "gpu"))
    found = []
    while batch := store.claim(agent, 4):
        found.append(names(batch))
        ended(store, batch)
    assert found == [["first"], ["alone"], ["last"]]


def test_a_batch_from_several_queues_keeps_their_common_order(rig: Rig) -> None:
    store = rig.store()
    agent = store.join("w", role="Runner", tags=["gpu", "big"])
    order = ["a", "b", "c", "d", "e", "f", "g"]
    for name, tags in zip(order, [("gpu",), (), ("big",), ("gpu",), ("gpu", "big"), (), ("big",)], strict=True):
        store.enqueue(tagged(name, *tags))
    store.enqueue(tagged("anothers", "tpu"))
    assert names(store.claim(agent, 4)) == order[:4]
    assert names(store.claim(agent, 4)) == order[4:]
    assert store.claim(agent, 4) == []
    assert store.find("anothers") is not None


def test_the_cost_of_a_claim_depends_on_the_tag_sets_not_on_the_batch(rig: Rig) -> None:
    store = rig.store()
    agent = store.join("w", role="Runner", tags=["gpu"])
    for number in range(40):
        store.enqueue(tagged(f"other-{number}", f"t{number}"))
        store.enqueue(tagged(f"gpu-{number}", "gpu"))

    for limit in (1, 16):
        store._context.client.call("CONFIG", "RESETSTAT")
        assert store.claim(agent, limit)
        stats = store._context.client.call("INFO", "commandstats")
        assert b"cmdstat_smembers:calls=1," in stats, "once for a batch, not once for each of its jobs"


# --- rights ---


def rights(rig: Rig, admin: RedisStore, user: str, without: str) -> None:
    """Grant the rights of the documentation, except one."""
    line = (Path(__file__).parents[3] / "docs" / "redis.md").read_text().split("ACL SETUSER farro ")[1].splitlines()[0]
    words = line.replace("PASSWORD", "secret").replace("NAME", rig.name).split()
    assert f"+{without}" in words
    admin._context.client.call("ACL", "SETUSER", user, "reset", *(word for word in words if word != f"+{without}"))


def test_without_a_right_no_job_leaves_its_queue(rig: Rig) -> None:
    admin = rig.store()
    admin.enqueue_many([submission(number) for number in range(20)])
    for right in ("incrby", "xadd"):
        rights(rig, admin, "poor", right)
        poor = rig.store(user="poor", password="secret")
        agent = poor.join("w", role="Runner")
        for limit in (1, 4, 16):
            with pytest.raises(NotPermitted, match=r"docs/redis\.md"):
                poor.claim(agent, limit)
        poor.close()
    assert len(admin.claim(admin.join("w", role="Runner"), 16)) == 10
    assert admin.count()[Status.QUEUED] == 10


def test_a_user_without_the_right_to_wait_gets_an_error_and_does_not_spin(rig: Rig) -> None:
    admin = rig.store()
    rights(rig, admin, "deaf", "bzpopmin")
    store = rig.store(real=True, user="deaf", password="secret")
    agent = store.join("w", role="Runner")
    assert store.claim(agent, 1) == []
    with pytest.raises(NotPermitted, match="bzpopmin"):
        store.claim(agent, 1, WAIT_S)


# --- waking ---


class Waiting(threading.Thread):
    """An agent that found nothing and now waits."""

    def __init__(self, store: RedisStore, *tags: str) -> None:
        super().__init__(daemon=True)
        self.store = store
        self.agent = store.join("w", role="Runner", tags=tags)
        assert store.claim(self.agent, 1) == []
        self.came: list[str] | Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.came = names(self.store.claim(self.agent, 1, WAIT_S))
        except Exception as error:
            self.came = error

    def said(self) -> list[str] | Exception | None:
        self.join(WAIT_S / 2)
        assert not self.is_alive(), "it still waits"
        return self.came


def waits(store: RedisStore, count: int) -> None:
    eventually(lambda: store._context.client.call("CLIENT", "LIST").count(b"cmd=bzpopmin") == count)


def test_a_wakeup_of_a_dead_worker_goes_to_another(rig: Rig) -> None:
    store = rig.store(real=True)
    first = Waiting(rig.store(real=True))
    waits(store, 1)
    second = Waiting(rig.store(real=True))
    waits(store, 2)
    store._context.client.call("ZADD", f"{store._context.keys.prefix}leases", "-1", first.agent.id)  # it was fenced
    store.enqueue(submission(job_id="j"))
    assert isinstance(first.said(), AgentLost)
    assert second.said() == ["j"]


def test_a_delayed_job_starts_in_time_though_the_worker_that_knew_of_it_ended(rig: Rig) -> None:
    store = rig.store(real=True)
    first = Waiting(rig.store(real=True))
    waits(store, 1)
    second = Waiting(rig.store(real=True))
    waits(store, 2)
    due = CLOCK.now() + timedelta(seconds=1)
    store.enqueue(Submission(role="Runner", prompt=plan(1), job_id="late", not_before=due))
    waits(store, 2)
    first.store.wake("Runner")
    assert first.said() == []
    first.store.leave(first.agent)
    assert second.said() == ["late"]
    assert CLOCK.now() < due + timedelta(seconds=WAIT_S / 3), "not by the end of its wait"


def test_a_waiting_claim_is_woken_when_its_queue_is_resumed(rig: Rig) -> None:
    store = rig.store(real=True)
    assert store.pause("Runner", QueuePause(by="ann", at="now"))
    waiters = [Waiting(rig.store(real=True)), Waiting(rig.store(real=True), "gpu")]
    waits(store, 1)
    store.enqueue(tagged("heavy", "gpu"))
    store.enqueue(submission(job_id="plain"))
    assert store.count()[Status.QUEUED] == 2
    assert all(waiter.is_alive() for waiter in waiters)
    assert store.resume("Runner")
    assert sorted(str(waiter.said()) for waiter in waiters) == ["['heavy']", "['plain']"]


def test_a_wake_that_comes_with_a_reply_is_not_lost(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread is delayed for a moment: then the reply and the wake are both there."""
    store = rig.store(real=True)
    agent = store.join("w", role="Runner")
    assert store.claim(agent, 1) == []
    real, late = client.readable, [True]

    def readable(sockets: Any, timeout_s: float) -> Any:
        if late.pop() if late else False:
            store._context.client.call("ZADD", store._context.keys.bell("Runner"), "0", "!")  # for a job that is gone
            store.wake("Runner")
            deadline = time.monotonic() + WAIT_S
            while len(real(sockets, 0.01)) < 2 and time.monotonic() < deadline:
                pass
        return real(sockets, timeout_s)

    monkeypatch.setattr(client, "readable", readable)
    began_s = time.monotonic()
    assert store.claim(agent, 1, WAIT_S) == []
    assert time.monotonic() - began_s < WAIT_S / 2
    assert late == []


def test_a_process_with_many_descriptors_can_wait(rig: Rig) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(2048, min(4096, limits[1])), limits[1]))
    many = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        store, other = rig.store(real=True), rig.store(real=True)
        waiter = Waiting(store)
        cursor = store.changes(None, role="Runner").cursor
        waits(other, 1)
        other.enqueue(submission(job_id="j"))
        assert waiter.said() == ["j"]
        assert store.changes(cursor, role="Runner", timeout_s=WAIT_S).items
    finally:
        for fd in many:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


# --- replicas ---


def test_jobs_claimed_with_an_unreplicated_commit_go_back(rig: Rig) -> None:
    """They were claimed on the master, and would count an attempt that never began."""
    calm, strict = rig.store(), rig.store(wait_replicas=1, wait_s=0.02)
    calm.enqueue_many([submission(number, job_id=f"j{number}") for number in range(3)])
    agent = strict.join("w", role="Runner")
    batch = strict.claim(agent, 1)
    ended = AttemptResult(batch[0], Succeeded(report=report(batch[0])))
    (answer,), claims = strict.commit([ended], NextClaim(agent, 2))
    assert isinstance(answer, NotReplicated)
    assert claims == []
    assert [(view.job_id, view.status, view.lifecycle.attempt) for view in calm.list()] == [
        ("j0", Status.SUCCEEDED, 1),
        ("j1", Status.QUEUED, 0),
        ("j2", Status.QUEUED, 0),
    ]
    assert [view.jobs for view in calm.agents()] == [()]


def test_a_refused_claim_does_not_undo_the_commit_sent_with_it(tmp_path: Path) -> None:
    server = RedisServer(folder=tmp_path / "redis").start()
    rig = Rig(tmp_path, server.url)
    try:
        store = rig.store()
        store.enqueue_many([submission(number, job_id=f"j{number}") for number in range(3)])
        agent = store.join("w", role="Runner")
        batch = store.claim(agent, 1)
        store._context.client.call("CONFIG", "SET", "maxmemory", "1")  # full: no further job begins
        ended = AttemptResult(batch[0], Succeeded(report=report(batch[0])))
        committed, claims = store.commit([ended], NextClaim(agent, 2))
        assert [getattr(life, "status", life) for life in committed] == [Status.SUCCEEDED]
        assert claims == []
        assert store.count()[Status.QUEUED] == 2
    finally:
        rig.close()
        server.stop()


def test_a_slot_keeps_its_promised_folder_while_others_leave(rig: Rig) -> None:
    """A slot's promised folder is not forgotten because another slot leaves."""
    store = rig.store()
    space: Any = store._context.workspace
    for agent in ("stays", "goes"):
        space._agent_home(agent)
    before, forgotten, over = sys.getswitchinterval(), [], threading.Event()
    sys.setswitchinterval(1e-6)

    def promise() -> None:
        for number in range(3000):
            folder, _ = space.promise("stays", f"j{number}", 1, lambda: None)
            if folder.rsplit("/", 2)[0] not in space._promised:
                forgotten.append(number)
            space._promised.discard(folder.rsplit("/", 2)[0])
        over.set()

    thread = threading.Thread(target=promise)
    thread.start()
    try:
        while not over.is_set():
            space._promised.update(f"x/goes/{number}" for number in range(20))
            space.leave("goes")
    finally:
        thread.join()
        sys.setswitchinterval(before)
    assert forgotten == []
