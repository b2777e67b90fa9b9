"""The turns of a slot, errors in a turn, and the worker that runs the slots, on the memory store and the file store."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from farro.errors import BadName, DiskFull, StorageTrouble, SyncFailed, UnknownRole
from farro.execution.stop import Stop
from farro.jobs.outcomes import Outcome, Released
from farro.jobs.states import Status
from farro.store.port import AttemptResult, Claim, Commits
from farro.worker.drain import Drained
from farro.worker.job_log import CHANGED
from farro.worker.perform import BegunJob
from farro.worker.watchdog import Recovery
from farro.worker.worker import TROUBLE_S, Turn
from one_job import claim_one, commit_one
from stage import submission
from worker.bench import Bench, Running, Scripted, Turns, fail, succeed


def test_a_turn_claims_performs_and_commits(bench: Bench) -> None:
    bench.enqueue("one")
    slot = bench.slot()
    assert slot.run_once() is Turn.WORKED
    assert slot.run_once() is Turn.IDLE
    assert bench.view("one").status is Status.SUCCEEDED
    assert bench.log.events() == ["state_transition", "state_transition"]


def test_short_jobs_are_logged_at_their_end_and_long_jobs_while_they_run(bench: Bench) -> None:
    """The log has a line for the claim and one for the end, in this order, each with its own time. The first line of
    a long job is written while the job runs."""
    heard: list[list[str]] = []

    class AtOnce(Scripted):
        def begin(self, claims: Iterable[Claim], stop: Stop) -> list[Outcome | BegunJob]:
            first = next(iter(claims))
            heard.append(bench.log.messages("info"))
            bench.clock.sleep(2.0)
            return [succeed(first)] if first.job_id == "quick" else super().begin(claims, stop)

    def slowly(claim: Claim) -> Outcome:
        heard.append(bench.log.messages("info"))
        return succeed(claim)

    bench.enqueue("quick")
    slot = bench.slot(AtOnce(slowly))
    assert slot.run_once() is Turn.WORKED
    assert heard == [[]]
    assert bench.log.messages("info") == ["job claimed", CHANGED]
    (_, _, claimed), (_, _, ended) = bench.log.lines
    assert claimed["job_id"] == ended["job_id"] == "quick"
    assert "timestamp" in claimed
    bench.enqueue("slow")
    assert slot.run_once() is Turn.WORKED
    assert heard[2:] == [["job claimed", CHANGED, "job claimed"]]
    assert bench.log.messages("info") == ["job claimed", CHANGED] * 2


def test_jobs_are_worked_in_the_order_of_their_entry(bench: Bench) -> None:
    for name in ("c", "a", "b"):
        bench.enqueue(name)
    performer = Scripted()
    bench.slot(performer).run(Turns(4))
    assert performer.seen == ["c", "a", "b"]


def test_a_failure_affects_only_its_job(bench: Bench) -> None:
    bench.enqueue("bad")
    bench.enqueue("good")
    slot = bench.slot(Scripted(lambda claim: fail(claim) if claim.job_id == "bad" else succeed(claim)))
    assert [slot.run_once() for _ in range(3)] == [Turn.WORKED, Turn.WORKED, Turn.IDLE]
    assert (bench.view("bad").status, bench.view("good").status) == (Status.FAILED, Status.SUCCEEDED)
    assert bench.log.lines[1][2]["event"]["error"] == "step_failed"


def test_a_retry_waits_for_its_time_and_counts(bench: Bench) -> None:
    bench.enqueue("one")
    performer = Scripted(lambda claim: fail(claim, retryable=True))
    slot = bench.slot(performer)
    slot.run_once()
    view = bench.view("one")
    assert (view.status, view.lifecycle.attempt) == (Status.QUEUED, 1)
    while bench.view("one").status is Status.QUEUED:
        due = bench.store.next_due("Runner")
        if slot.run_once() is Turn.IDLE:
            assert due is None or due > bench.clock.now()
            bench.clock.advance(60)
    view = bench.view("one")
    assert (view.status, view.lifecycle.attempt) == (Status.FAILED, 3)
    assert performer.seen == ["one"] * 3


def test_a_job_that_was_taken_away_is_dropped_and_the_slot_continues(bench: Bench) -> None:
    bench.enqueue("taken")
    bench.enqueue("next")
    performer = Scripted()

    def taken_away(claim: Claim) -> Outcome:
        if claim.job_id == "taken":
            operator = bench.store.join("operator", role=None)
            bench.store.kill(operator, "taken")
            bench.store.leave(operator)
            performer.tick()
        return succeed(claim)

    performer.does = taken_away
    slot = bench.slot(performer)
    assert [slot.run_once(), slot.run_once()] == [Turn.WORKED, Turn.WORKED]
    assert (bench.view("taken").status, bench.view("next").status) == (Status.KILLED, Status.SUCCEEDED)
    assert bench.log.events().count("claim_lost") == 1
    assert len(bench.agents()) == 1


def test_a_late_commit_changes_nothing(bench: Bench) -> None:
    bench.enqueue("taken")

    def taken_away(claim: Claim) -> Outcome:
        operator = bench.store.join("operator", role=None)
        bench.store.force_complete(operator, "taken")
        bench.store.leave(operator)
        return fail(claim)

    assert bench.slot(Scripted(taken_away)).run_once() is Turn.WORKED
    assert bench.view("taken").status is Status.SUCCEEDED
    assert "claim_lost" in bench.log.events()


def test_a_slot_that_was_declared_dead_joins_again_under_a_new_name(bench: Bench) -> None:
    slot = bench.slot()
    slot.run_once()
    first = bench.agents()
    bench.clock.advance(1)
    dog = bench.store.join("dog", role=None)
    bench.store.recover(dog)  # files: the watchdog sees the heartbeat for the first time
    for _ in range(2):
        bench.clock.advance(100_000)
        bench.store.heartbeat(dog)
        bench.store.recover(dog)
    assert not set(first) & set(bench.agents())
    bench.enqueue("one")
    turns = Turns(2)
    slot.run(turns)
    assert "agent_lost" in bench.log.events()
    assert bench.view("one").status is Status.SUCCEEDED


def test_a_store_error_makes_the_slot_leave_and_join_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.enqueue("one")
    commit, calls = bench.store.commit, []

    def full(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            raise StorageTrouble("the disk is full")
        return commit(*args)

    monkeypatch.setattr(bench.store, "commit", full)
    before_s = bench.clock.monotonic_s()
    turns = Turns(2)
    slot = bench.slot()
    slot.run(turns)
    assert turns.told == [Turn.TROUBLE, Turn.IDLE]
    assert bench.clock.monotonic_s() - before_s == TROUBLE_S
    assert bench.log.messages("error") == ["StorageTrouble: the disk is full"]

    dog = bench.store.join("dog", role=None)
    assert ("one", "stale") in [(done.job_id, done.what) for done in bench.store.recover(dog)]
    bench.store.resolve_stale(dog, "one")
    bench.clock.advance(60)
    assert slot.run_once() is Turn.WORKED
    assert bench.view("one").status is Status.SUCCEEDED


def test_a_worker_on_a_full_disk_keeps_its_results_until_there_is_room(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.enqueue("one")
    commit, calls = bench.store.commit, []

    def full(results: Any, then_claim: Any = None) -> Any:
        calls.append([result.claim.agent for result in results])
        if len(calls) <= 3:
            return Commits([DiskFull("the disk is full")] * len(results), [])
        return commit(results, then_claim)

    monkeypatch.setattr(bench.store, "commit", full)
    before_s = bench.clock.monotonic_s()
    assert bench.slot().run_once() is Turn.WORKED
    assert bench.view("one").status is Status.SUCCEEDED
    assert bench.clock.monotonic_s() - before_s == 3 * TROUBLE_S
    assert calls[0] == calls[-1], "the same agent has it all the time"
    assert bench.log.messages("error") == ["DiskFull: the disk is full"] * 3


def test_a_job_that_is_killed_while_the_disk_is_full_does_not_cost_the_others_their_results(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        bench.enqueue(name)
    slot, commit, calls = bench.slot(), bench.store.commit, []
    agent = slot.join()
    claims = [claim for _ in range(2) for claim in bench.store.claim(agent, 1)]
    results = [AttemptResult(claim, succeed(claim)) for claim in claims]

    def full(results: Any, then_claim: Any = None) -> Any:
        calls.append(len(results))
        if len(calls) == 1:
            operator = bench.store.join("operator", role=None)
            bench.store.kill(operator, "one")
            bench.store.leave(operator)
            return Commits([DiskFull("the disk is full")] * len(results), [])
        return commit(results, then_claim)

    monkeypatch.setattr(bench.store, "commit", full)
    slot._send(results)
    assert calls == [2, 1]
    assert [bench.view(name).status for name in ("one", "two")] == [Status.KILLED, Status.SUCCEEDED]


def test_a_commit_of_unknown_outcome_is_not_repeated(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.enqueue("one")
    calls = []

    def cut_off(results: Any, then_claim: Any = None) -> Any:
        calls.append(results)
        return Commits([StorageTrouble("the server did not answer")] * len(results), [])

    monkeypatch.setattr(bench.store, "commit", cut_off)
    with pytest.raises(StorageTrouble):
        bench.slot().run_once()
    assert len(calls) == 1


def test_a_bug_in_one_turn_does_not_end_the_slot(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, calls = bench.store.claim, []

    def buggy(agent: Any, *limits: Any) -> Any:
        calls.append(agent.id)
        if len(calls) == 1:
            raise ZeroDivisionError("division by zero")
        return claim(agent, *limits)

    monkeypatch.setattr(bench.store, "claim", buggy)
    bench.enqueue("one")
    bench.slot().run(Turns(2))
    assert bench.view("one").status is Status.SUCCEEDED
    level, message, fields = bench.log.lines[0]
    assert (level, message) == ("error", "ZeroDivisionError: division by zero")
    assert "in buggy" in fields["traceback"]
    assert calls[0] != calls[1]


def test_a_failed_sync_stops_the_whole_worker(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def torn(*args: Any) -> Any:
        raise SyncFailed("sync failed: Input/output error")

    monkeypatch.setattr(bench.store, "commit", torn)
    bench.enqueue("one")
    running = Running(bench.worker(slots=3))
    running.ended()
    assert isinstance(running.failure, SyncFailed)
    assert bench.view("one").status is Status.IN_PROGRESS  # recovery decides


@pytest.mark.parametrize("slots", [1, 4])
def test_stopping_wakes_every_idle_slot(bench: Bench, slots: int) -> None:
    idle = threading.Semaphore(0)

    class Told:
        patience_s = 3600.0

        def over(self, turn: Turn) -> bool:
            idle.release()
            return False

    worker = bench.worker(slots=slots, until=Told())
    running = Running(worker)
    for _ in range(slots):
        assert idle.acquire(timeout=60)
    worker.stop()
    running.ended()
    assert bench.agents() == []


def test_an_idle_worker_is_woken_by_a_new_job(bench: Bench) -> None:
    worked = threading.Event()

    def does(claim: Claim) -> Outcome:
        worked.set()
        return succeed(claim)

    worker = bench.worker(Scripted(does), slots=2)
    running = Running(worker)
    bench.enqueue("one")
    assert worked.wait(60)
    worker.stop()
    running.ended()
    assert bench.view("one").status is Status.SUCCEEDED


def test_a_stop_releases_unfinished_jobs_and_starts_no_more(bench: Bench) -> None:
    for name in ("first", "second"):
        bench.enqueue(name)
    workers: list[Any] = []

    def does(claim: Claim) -> Outcome:
        workers[0].stop()
        return Released(note="stopped")

    workers.append(bench.worker(Scripted(does), slots=1))
    Running(workers[0]).ended()
    first, second = bench.view("first"), bench.view("second")
    assert (first.status, first.lifecycle.attempt) == (Status.QUEUED, 1)
    assert first.lifecycle.attempts_in_hop(1) == 0
    assert (second.status, second.lifecycle.attempt) == (Status.QUEUED, 0)


def test_a_slot_claims_only_jobs_whose_tags_it_offers(bench: Bench) -> None:
    bench.enqueue("heavy", metadata={"tags": ["gpu"]})
    bench.enqueue("light")
    plain, strong = Scripted(), Scripted()
    bench.slot(plain).run(Turns(3))
    assert plain.seen == ["light"]
    bench.slot(strong, tags=("gpu", "ssd"), number=1).run(Turns(3))
    assert strong.seen == ["heavy"]


@pytest.mark.parametrize(
    ("wrong", "error"), [({"role": "Nobody"}, UnknownRole), ({"name": "x y"}, BadName), ({"tags": ("a b",)}, BadName)]
)
def test_an_invalid_worker_is_refused_and_leaves_no_agent(bench: Bench, wrong: dict[str, Any], error: type) -> None:
    worker = bench.worker(slots=3, **wrong)
    with pytest.raises(error):
        worker.run()
    assert bench.agents() == []


# --- the end of a drain -----------------------------------------------------------------------------------------


def drained(bench: Bench) -> Drained:
    return Drained(store=bench.store, role="Runner", clock=bench.clock, log=bench.log, recovery=Recovery())


def waits_on(bench: Bench, until: Drained) -> None:
    """Wait longer than the time after which a drain logs what it waits for."""
    for _ in range(5):
        assert not until.over(Turn.IDLE)
        bench.clock.advance(2)


def test_a_drain_is_over_when_nothing_is_left(bench: Bench) -> None:
    until = drained(bench)
    assert until.over(Turn.IDLE)
    bench.enqueue("one")
    assert not until.over(Turn.IDLE)
    bench.slot().run_once()
    assert not until.over(Turn.WORKED)
    assert until.over(Turn.IDLE)


def test_a_drain_waits_for_running_and_for_delayed_jobs(bench: Bench) -> None:
    until = drained(bench)
    bench.enqueue("one")
    other = bench.store.join("other", role="Runner")
    claim = claim_one(bench.store, other)
    assert claim is not None
    assert not until.over(Turn.IDLE)
    commit_one(bench.store, claim, fail(claim, retryable=True))
    assert bench.view("one").lifecycle.not_before is not None
    assert not until.over(Turn.IDLE)
    bench.clock.advance(60)
    bench.slot().run_once()
    assert until.over(Turn.IDLE)


def test_a_drain_does_not_wait_for_another_queue(bench: Bench) -> None:
    from farro.store.port import Submission
    from stage import plan

    bench.store.enqueue(Submission(role="CodeReviewer", prompt=plan()))
    assert drained(bench).over(Turn.IDLE)


def test_a_drain_logs_once_which_jobs_no_live_agent_works_on(bench: Bench) -> None:
    until = drained(bench)
    bench.enqueue("left")
    victim = bench.store.join("victim", role="Runner")
    assert claim_one(bench.store, victim) is not None
    bench.kit.die(victim)
    bench.enqueue("heavy", metadata={"tags": ["gpu"]})
    bench.store.join("watchdog", role=None)  # lives: the drain leaves recovery to it
    waits_on(bench, until)
    (told,) = bench.log.messages("warning")
    assert told == (
        "still waiting for left in the hands of a dead agent (farro watchdog recovers it) and heavy queued, which this "
        "worker may not take (its tags, an unknown schema version, or it is not a job)"
    )


def test_a_drain_recovers_the_jobs_of_dead_agents_where_no_watchdog_or_manager_lives(bench: Bench) -> None:
    until = drained(bench)
    bench.enqueue("left")
    victim = bench.store.join("victim", role="Runner")
    assert claim_one(bench.store, victim) is not None
    bench.kit.die(victim)
    assert not until.over(Turn.IDLE)
    assert bench.view("left").status is Status.QUEUED
    bench.slot().run_once()
    assert until.over(Turn.IDLE)
    assert bench.view("left").status is Status.SUCCEEDED


@pytest.mark.parametrize("name", ["watchdog", "manager"])
def test_a_drain_waits_for_a_stale_job_while_another_process_recovers(bench: Bench, name: str) -> None:
    until = drained(bench)
    bench.enqueue("left")
    victim = bench.store.join("victim", role="Runner")
    assert claim_one(bench.store, victim) is not None
    bench.kit.die(victim)
    keeper = bench.store.join(name, role=None)
    bench.store.recover(keeper)
    assert bench.view("left").status is Status.STALE
    assert not until.over(Turn.IDLE)
    assert bench.view("left").status is Status.STALE
    bench.store.resolve_stale(keeper, "left")
    bench.slot().run_once()
    assert until.over(Turn.IDLE)


def test_a_drain_distinguishes_delayed_from_retried_jobs(bench: Bench) -> None:
    until = drained(bench)
    bench.enqueue("failed")
    claim = claim_one(bench.store, bench.store.join("other", role="Runner"))
    assert claim is not None
    commit_one(bench.store, claim, fail(claim, retryable=True))
    bench.store.enqueue(replace(submission(job_id="later"), not_before=bench.clock.now() + timedelta(hours=1)))
    waits_on(bench, until)
    (told,) = bench.log.messages("warning")
    assert told == (
        "still waiting for later until the time that it was queued for (--delay, --at) and failed until the time of "
        "its next attempt"
    )


def test_a_drain_logs_nothing_about_running_jobs(bench: Bench) -> None:
    until = drained(bench)
    bench.enqueue("one")
    other = bench.store.join("other", role="Runner")
    assert claim_one(bench.store, other) is not None
    waits_on(bench, until)
    assert bench.log.lines == []


def test_a_draining_worker_works_everything_and_ends(bench: Bench) -> None:
    for number in range(20):
        bench.enqueue(f"job-{number}")
    Running(bench.worker(slots=3, until=drained(bench))).ended()
    assert bench.store.count()[Status.SUCCEEDED] == 20
    assert bench.agents() == []
