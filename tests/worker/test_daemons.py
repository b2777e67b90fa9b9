"""The turns of the watchdog and the manager, errors in a turn, and the loop that repeats it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from farro.agents.manager import Manager
from farro.errors import Damaged, StorageTrouble
from farro.jobs.states import Status
from farro.worker.daemon import Daemon
from farro.worker.watchdog import Watchdog
from one_job import claim_one
from worker.bench import JOIN_S, LONG_S, Bench


def left_by_a_dead_agent(bench: Bench, *names: str) -> None:
    for name in names:
        bench.enqueue(name)
        victim = bench.store.join("victim", role="Runner")
        claim = claim_one(bench.store, victim)
        assert claim is not None
        assert claim.job_id == name
        bench.kit.die(victim)


def test_a_watchdog_pass_marks_jobs_of_dead_agents_stale_and_spares_live_ones(bench: Bench) -> None:
    left_by_a_dead_agent(bench, "left")
    bench.enqueue("running")
    alive = bench.store.join("alive", role="Runner")
    assert claim_one(bench.store, alive) is not None
    dog = Watchdog(store=bench.store, log=bench.log)
    assert ("left", "stale") in [(done.job_id, done.what) for done in dog.run_once()]
    assert bench.view("left").status is Status.STALE
    assert bench.view("running").status is Status.IN_PROGRESS
    assert dog.run_once() == []
    dog.leave()
    assert bench.agents() == [alive.id]


def test_two_watchdogs_recover_once(bench: Bench) -> None:
    left_by_a_dead_agent(bench, "a", "b", "c")
    dogs = [Watchdog(store=bench.store, log=bench.log) for _ in range(2)]
    done = [item.job_id for dog in dogs for item in dog.run_once() if item.job_id]
    assert sorted(done) == ["a", "b", "c"]


def test_a_stale_job_is_queued_again_while_attempts_remain_then_killed_with_the_reason(bench: Bench) -> None:
    dog, boss = Watchdog(store=bench.store, log=bench.log), Manager(store=bench.store, log=bench.log)
    bench.enqueue("poison")
    became = []
    for _ in range(3):
        victim = bench.store.join("victim", role="Runner")
        assert claim_one(bench.store, victim) is not None
        bench.kit.die(victim)
        dog.run_once()
        became += [life.status for life in boss.run_once()]
        bench.clock.advance(60)
    assert became == [Status.QUEUED, Status.QUEUED, Status.KILLED]
    life = bench.view("poison").lifecycle
    assert (life.attempt, life.retry_count) == (3, 2)
    assert (life.error or {})["category"] == "attempts_exhausted"
    assert boss.run_once() == []


def test_one_undecidable_job_does_not_block_the_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    left_by_a_dead_agent(bench, "a", "b", "c")
    Watchdog(store=bench.store, log=bench.log).run_once()
    settle = bench.store.resolve_stale

    def picky(agent: Any, job_id: str) -> Any:
        if job_id == "b":
            raise Damaged("b contradicts itself")
        return settle(agent, job_id)

    monkeypatch.setattr(bench.store, "resolve_stale", picky)
    assert [life.job_id for life in Manager(store=bench.store, log=bench.log).run_once()] == ["a", "c"]
    assert bench.log.messages("error") == ["b contradicts itself"]


@pytest.mark.parametrize("make", [Watchdog, Manager])
def test_a_keeper_that_was_declared_dead_joins_again(bench: Bench, make: Any) -> None:
    keeper = make(store=bench.store, log=bench.log)
    first = keeper.agent()
    bench.clock.advance(1)
    other = bench.store.join("other", role=None)
    bench.store.recover(other)
    for _ in range(2):
        bench.clock.advance(100_000)
        bench.store.heartbeat(other)
        bench.store.recover(other)
    keeper.run_once()
    assert keeper.agent().id != first.id


class Counting(Daemon):
    """A keeper that reports each turn and runs a scripted function in it."""

    def __init__(self, bench: Bench, *does: Exception | None) -> None:
        super().__init__(store=bench.store, name="counting", log=bench.log)
        self.turned = threading.Semaphore(0)
        self._does = list(does)

    def run_once(self) -> list[str]:
        self.agent()
        self.turned.release()
        trouble = self._does.pop(0) if self._does else None
        if trouble is not None:
            raise trouble
        return []


def test_a_stopped_keeper_ends_at_once_and_leaves(bench: Bench) -> None:
    keeper = Counting(bench)
    thread = threading.Thread(target=keeper.run, args=(LONG_S,), daemon=True)
    thread.start()
    assert keeper.turned.acquire(timeout=JOIN_S)
    keeper.stop()
    thread.join(JOIN_S)
    assert not thread.is_alive()
    assert bench.agents() == []


def test_an_error_in_a_turn_is_logged_and_the_loop_continues(bench: Bench) -> None:
    keeper = Counting(bench, StorageTrouble("full"), OSError(5, "Input/output error"), ZeroDivisionError("a bug"), None)
    thread = threading.Thread(target=keeper.run, args=(0.001,), daemon=True)
    thread.start()
    for _ in range(5):
        assert keeper.turned.acquire(timeout=JOIN_S)
    keeper.stop()
    thread.join(JOIN_S)
    assert not thread.is_alive()
    assert bench.log.messages("error") == [
        "StorageTrouble: full",
        "OSError: [Errno 5] Input/output error",
        "ZeroDivisionError: a bug",
    ]
    assert "run_once" in bench.log.lines[2][2]["traceback"]
    assert bench.agents() == []


def test_a_keeper_stopped_before_it_runs_does_not_turn(bench: Bench) -> None:
    keeper = Counting(bench)
    keeper.stop()
    keeper.stop()
    keeper.run(LONG_S)
    assert not keeper.turned.acquire(blocking=False)
