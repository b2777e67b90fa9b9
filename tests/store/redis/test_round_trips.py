"""Claims that need no request of their own on Redis: behind a blocking wait, and with the commit of the last batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from farro.errors import Lost
from farro.execution.runners.inline import InlineRunner
from farro.execution.stop import Stop
from farro.execution.tools import Tools
from farro.host.clock import SystemClock
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import Succeeded
from farro.jobs.states import Status
from farro.store.port import Agent, AttemptResult, Claim, NextClaim, Submission
from farro.store.redis import RedisStore
from farro.worker.perform import Performer
from farro.worker.worker import Slot, WorkerSetup
from one_job import commit_one
from redis_rig import Rig, proxied
from servers import RedisServer
from stage import plan, report, submission
from support import eventually

WAIT_S = 90.0
CLOCK = SystemClock()


class Waiter(threading.Thread):
    """An agent that found nothing and now waits."""

    def __init__(self, store: RedisStore, limit: int = 1, tags: Sequence[str] = ()) -> None:
        super().__init__(daemon=True)
        self.store, self.limit = store, limit
        self.agent = store.join("w", role="Runner", tags=tags)
        assert store.claim(self.agent, limit) == []
        self.found: list[Claim] | None = None
        self.start()

    def run(self) -> None:
        self.found = self.store.claim(self.agent, self.limit, WAIT_S)

    def claimed(self) -> list[str]:
        self.join(WAIT_S)
        assert self.found is not None, "it still waits"
        return [claim.job_id for claim in self.found]


def ends(claims: list[Claim]) -> list[AttemptResult]:
    return [AttemptResult(claim, Succeeded(report=report(claim))) for claim in claims]


def fill(store: RedisStore, count: int, name: str = "j") -> list[str]:
    made = store.enqueue_many([submission(n, job_id=f"{name}{n:02d}") for n in range(count)])
    return [job.id for job in made]


def test_a_claim_waits_for_the_queue_in_one_request(rig: Rig) -> None:
    store, other = rig.store(real=True), rig.store(real=True)
    waiter = Waiter(store, 4)
    before = store._context.client.requests
    fill(other, 1)
    assert waiter.claimed() == ["j00"]
    assert store._context.client.requests <= before + 1, "it may have been sent before we looked"
    assert store.count()[Status.IN_PROGRESS] == 1


def waiting(store: RedisStore, count: int) -> None:
    """Wait until this many clients block in the server."""
    blocked = lambda: store._context.client.call("CLIENT", "LIST").count(b"cmd=bzpopmin")  # noqa: E731
    eventually(lambda: blocked() == count)


def test_one_worker_is_woken_for_a_job(rig: Rig) -> None:
    stores = [rig.store(real=True) for _ in range(3)]
    waiters = [Waiter(store) for store in stores]
    waiting(stores[0], 3)
    before = [store._context.client.requests for store in stores]
    rig.store(real=True).enqueue(submission(1, job_id="alone"))
    eventually(lambda: sum(waiter.is_alive() for waiter in waiters) == 2)
    waiting(stores[0], 2)
    asked = [store._context.client.requests for store in stores]
    asleep = [at for at, waiter in enumerate(waiters) if waiter.is_alive()]
    assert len(asleep) == 2
    assert [asked[at] for at in asleep] == [before[at] for at in asleep], "each waits in the request that it waited in"
    for waiter in waiters:
        waiter.store.wake("Runner")
        waiter.join(WAIT_S)


def test_a_woken_worker_wakes_the_next_if_jobs_are_left(rig: Rig) -> None:
    store = rig.store(real=True)
    waiters = [Waiter(rig.store(real=True)) for _ in range(3)]
    waiting(store, 3)
    fill(store, 3)  # one call, so one worker is woken
    assert sorted(job_id for waiter in waiters for job_id in waiter.claimed()) == ["j00", "j01", "j02"]


def test_a_returned_job_wakes_another_worker(rig: Rig) -> None:
    store = rig.store(real=True)
    fill(store, 1)
    claims = store.claim(store.join("w", role="Runner"), 1)
    waiter = Waiter(rig.store(real=True))
    waiting(store, 1)
    store.hand_back(claims)
    assert waiter.claimed() == ["j00"]


def test_a_job_with_tags_wakes_a_worker_that_offers_them(rig: Rig) -> None:
    store, plain = rig.store(real=True), Waiter(rig.store(real=True))
    tagged = Waiter(rig.store(real=True), tags=["gpu"])
    waiting(store, 1)
    prompt = {**plan(1), "metadata": {"tags": ["gpu"]}}
    store.enqueue(Submission(role="Runner", prompt=prompt, job_id="heavy"))
    assert tagged.claimed() == ["heavy"]
    assert plain.is_alive()
    fill(store, 1)
    assert plain.claimed() == ["j00"]


def test_a_delayed_job_starts_in_time_whichever_worker_knew_of_it(rig: Rig) -> None:
    """One of them learns of it, and gets another job before it is due."""
    store = rig.store(real=True)
    waiters = [Waiter(rig.store(real=True)) for _ in range(2)]
    waiting(store, 2)
    due = CLOCK.now() + timedelta(seconds=1)
    store.enqueue(Submission(role="Runner", prompt=plan(1), job_id="late", not_before=due))
    fill(store, 1)
    eventually(lambda: sum(waiter.is_alive() for waiter in waiters) == 1)
    assert sorted(job_id for waiter in waiters for job_id in waiter.claimed()) == ["j00", "late"]
    assert CLOCK.now() < due + timedelta(seconds=WAIT_S / 2), "not by the end of a wait"


def test_a_worker_that_was_too_late_waits_on(rig: Rig) -> None:
    store = rig.store(real=True)
    waiters = [Waiter(store), Waiter(rig.store(real=True))]
    fill(store, 1)
    while all(waiter.is_alive() for waiter in waiters):
        waiters[0].join(0.01)
    fill(store, 1, "k")
    assert sorted(job_id for waiter in waiters for job_id in waiter.claimed()) == ["j00", "k00"]


def test_wake_ends_a_waiting_claim(rig: Rig) -> None:
    store = rig.store(real=True)
    waiter = Waiter(store)
    store.wake("Runner")
    assert waiter.claimed() == []
    store.wake("Runner")
    assert store.claim(waiter.agent, 1, WAIT_S) == [], "though it waits only after that"
    fill(store, 1)
    assert [claim.job_id for claim in store.claim(waiter.agent, 1, WAIT_S)] == ["j00"]


def test_a_waiting_claim_gets_a_job_that_falls_due(rig: Rig) -> None:
    store = rig.store(real=True)
    due = CLOCK.now() + timedelta(seconds=1)
    store.enqueue(Submission(role="Runner", prompt=plan(1), job_id="late", not_before=due))
    waiter = Waiter(store)
    assert waiter.claimed() == ["late"]
    assert CLOCK.now() >= due - timedelta(milliseconds=50), "clocks of one machine"


Asked = Callable[[RedisStore, Agent], list[str]]


def claimed_after_wakeup(store: RedisStore, agent: Agent) -> list[str]:
    return [claim.job_id for claim in store.claim(agent, 2, WAIT_S)]


def claimed_with_a_commit(store: RedisStore, agent: Agent) -> list[str]:
    batch = store.claim(agent, 2)
    committed, claims = store.commit(ends(batch), NextClaim(agent, 2))
    assert all(isinstance(result, Lifecycle) for result in committed)
    assert store.count()[Status.SUCCEEDED] == len(batch)
    return [claim.job_id for claim in claims]


@pytest.mark.parametrize("after", [False, True], ids=["before the server has it", "after it did it"])
@pytest.mark.parametrize(
    ("ask", "wanted"), [(claimed_after_wakeup, ["j00", "j01"]), (claimed_with_a_commit, ["j02", "j03"])]
)
def test_a_claim_sent_with_a_commit_is_repeated_after_a_lost_answer(
    redis_server: RedisServer, shm: Path, after: bool, ask: Asked, wanted: list[str]
) -> None:
    for cut in range(1000):
        with proxied(redis_server.port) as proxy:
            rig = Rig(shm / str(cut), redis_server.url)
            store = rig.store(real=True, url=proxy.url)
            agent = store.join("a", role="Runner")
            assert store.claim(agent, 2) == []
            fill(rig.store(real=True), 8)
            proxy.cut, proxy.after = len(proxy.requests) + cut, after
            assert ask(store, agent) == wanted, cut
            proxy.cut = -1
            held = [job for view in store.agents() for job in view.jobs]
            assert held == wanted, cut
            rig.close()
        if not proxy.cuts:
            break
    assert cut >= 2


@pytest.mark.parametrize("known", ["none", "commit", "claim"])
def test_a_server_that_forgot_a_script_does_both_once(rig: Rig, known: str) -> None:
    store = rig.store()
    agent = store.join("a", role="Runner")
    fill(store, 8)
    batch = store.claim(agent, 2)
    store._context.client.call("SCRIPT", "FLUSH")
    if known == "commit":
        commit_one(store, batch[0], ends(batch)[0][1])
        batch = batch[1:]
    elif known == "claim":
        batch += store.claim(agent, 2)
    committed, claims = store.commit(ends(batch), NextClaim(agent, 2))
    assert not any(isinstance(result, Lost) for result in committed)
    assert len(claims) == 2
    assert [job for view in store.agents() for job in view.jobs] == [claim.job_id for claim in claims]
    store.hand_back(claims)
    lives = [view.lifecycle for view in store.list(statuses=[Status.QUEUED])]
    assert {(life.attempt, life.hops) for life in lives} == {(0, ())}, "as if they had never been claimed"


def test_the_commit_of_a_batch_and_the_next_claim_are_one_request(rig: Rig) -> None:
    store = rig.store()
    agent = store.join("a", role="Runner")
    fill(store, 8)
    _, batch = store.commit(ends(store.claim(agent, 2)), NextClaim(agent, 2))
    before = store._context.client.requests
    committed, claims = store.commit(ends(batch), NextClaim(agent, 2))
    assert store._context.client.requests == before + 1
    assert [type(result) for result in committed] == [Lifecycle, Lifecycle]
    assert [claim.job_id for claim in claims] == ["j04", "j05"]


def test_a_dead_agent_learns_that_it_lost_each_job_of_its_batch(rig: Rig) -> None:
    store = rig.store()
    agent = store.join("a", role="Runner")
    fill(store, 8)
    batch = store.claim(agent, 2)
    rig.clock.advance(3600)
    committed, claims = store.commit(ends(batch), NextClaim(agent, 2))
    assert all(isinstance(result, Lost) for result in committed)
    assert claims == []


def test_a_leaving_slot_hands_back_jobs_that_it_claimed_ahead(rig: Rig) -> None:
    store = rig.store(real=True)
    runner = InlineRunner(tools=Tools({}), clock=CLOCK)
    setup = WorkerSetup(
        store=store,
        role="Runner",
        name="w",
        performer=Performer(root=store.root, base_env={}, runner=runner, clock=CLOCK, durable=False),
        clock=CLOCK,
        log=lambda level, message, fields: None,
    )
    slot = Slot(setup, Stop(CLOCK))
    fill(store, 8)
    slot._next = store.claim(slot.join(), 4)
    assert store.count()[Status.IN_PROGRESS] == 4
    slot.leave()
    assert store.agents() == []
    assert {view.lifecycle.attempt for view in store.list(statuses=[Status.QUEUED])} == {0}, "none was begun"
    assert store.count()[Status.QUEUED] == 8
