"""The contract of the audit log: a store audits every transition of a job exactly once, whichever actor makes it. The
fixture `kit` yields a StoreKit."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from farro.errors import CapacityReached, IdConflict, IllegalTransition
from farro.jobs.outcomes import Child
from farro.jobs.states import TRANSITIONS, Reason, Status
from farro.queue.admission import Caps, Gate, admit
from farro.store.port import Store
from farro.testing.one_job import commit_one, release_one, route_one
from farro.testing.store import (
    away,
    claimed,
    failure,
    life,
    make_open_failure,
    make_stale,
    operator,
    success,
    worker,
)
from farro.testing.store_kit import StoreKit, plan, submission


def events(kit: StoreKit, job_id: str) -> list[tuple[Any, ...]]:
    """The audited events of a job: (event, from, status)."""
    return [
        (told["event"], told.get("from"), told.get("status")) for told in kit.audited if told.get("job_id") == job_id
    ]


ENQUEUED = ("enqueued", None, "queued")
CLAIMED = ("claimed", "queued", "in_progress")


def test_every_transition_is_audited(kit: StoreKit) -> None:
    """In random histories the events of each job are exactly the transitions of its history, in order."""
    rng = random.Random(7)
    store, dog = kit.store, operator(kit.store)
    seen: set[tuple[Status, Status]] = set()
    for _ in range(200):
        job_id = store.enqueue(submission(routing=rng.choice([None, {"mode": "manager"}])))
        for _ in range(rng.randrange(1, 8)):
            _one_turn(kit, store, dog, rng, job_id)
        told = events(kit, job_id)
        history = life(store, job_id).hops
        assert told[0] == ENQUEUED
        assert [event for event, *_ in told if event not in ("enqueued", "claimed", "recovered")] == [
            str(hop.reason) for hop in history
        ]
        chain = [(before, after) for event, before, after in told if event not in ("enqueued", "recovered")]
        now = "queued"
        for before, after in chain:  # each begins where the last one ended
            assert before == now, told
            now = after
            seen.add((Status(before), Status(after)))
        assert now == life(store, job_id).status
        if not life(store, job_id).terminal:
            store.kill(dog, job_id)
    assert seen == set(TRANSITIONS), "the histories did not cover the whole table"


def _one_turn(kit: StoreKit, store: Store, dog: Any, rng: random.Random, job_id: str) -> None:
    kit.clock.advance(100)
    status = life(store, job_id).status
    verbs = [
        lambda: store.kill(dog, job_id),
        lambda: store.requeue(dog, job_id),
        lambda: store.force_complete(dog, job_id),
        lambda: store.resolve_stale(dog, job_id),
        lambda: store.recover(dog),
        lambda: store.finalize(dog, job_id),
        lambda: store.reroute(dog, job_id, rng.choice(["Runner", "CodeReviewer"])),
    ]
    if status is Status.QUEUED and rng.random() < 0.8:
        agent = worker(store, role=life(store, job_id).role)
        claim = claimed(store, agent)
        end = rng.randrange(9)
        if end == 0:
            commit_one(store, claim, success(claim))
        elif end == 1:
            commit_one(store, claim, failure(claim))
        elif end == 2:
            commit_one(store, claim, failure(claim, retryable=True))
        elif end == 3:
            release_one(store, claim)
        elif end == 4:
            commit_one(store, claim, away(claim))
        elif end == 5:
            route_one(store, claim, success(claim), "CodeReviewer")
        elif end == 6:
            kit.die(agent)
        return
    with contextlib.suppress(IllegalTransition):
        rng.choice(verbs)()


def test_an_event_holds_codes_and_the_actor(kit: StoreKit) -> None:
    job_id = kit.store.enqueue(submission())
    agent = worker(kit.store)
    claim = claimed(kit.store, agent)
    commit_one(kit.store, claim, failure(claim))
    told = [event for event in kit.audited if event.get("job_id") == job_id][1:]
    correlation = claim.envelope.lifecycle.correlation_id
    shared = {"actor": agent.id, "job_id": job_id, "role": "Runner", "attempt": 1, "correlation_id": correlation}
    assert told == [
        {**shared, "event": "claimed", "from": "queued", "status": "in_progress"},
        {**shared, "event": "committed", "from": "in_progress", "status": "failed", "error": "step_failed"},
    ]


def test_the_event_of_a_routed_job_names_both_roles(kit: StoreKit) -> None:
    kit.store.enqueue(submission())
    claim = claimed(kit.store, worker(kit.store))
    route_one(kit.store, claim, success(claim), "CodeReviewer")
    assert (kit.audited[-1]["event"], kit.audited[-1]["role"], kit.audited[-1]["next"]) == (
        "routed",
        "Runner",
        "CodeReviewer",
    )


def test_a_refused_call_is_not_audited(kit: StoreKit) -> None:
    job_id = kit.store.enqueue(submission(job_id="mine"))
    kit.store.enqueue(submission(job_id="mine"))
    with pytest.raises(IdConflict):
        kit.store.enqueue(submission(job_id="mine", tags=["other"]))
    dog = operator(kit.store)
    with pytest.raises(IllegalTransition):
        kit.store.force_complete(dog, job_id)
    assert events(kit, job_id) == [ENQUEUED]
    kit.store.kill(dog, job_id)
    kit.store.kill(dog, job_id)  # returns its current state
    assert events(kit, job_id) == [ENQUEUED, ("killed", "queued", "killed")]


def test_children_are_audited_with_their_parent(kit: StoreKit) -> None:
    parent = kit.store.enqueue(submission())
    claim = claimed(kit.store, worker(kit.store))
    commit_one(
        kit.store, claim, success(claim, Child(role="Runner", prompt=plan()), Child(role="Runner", prompt=plan()))
    )
    told = [event["event"] for event in kit.audited]
    assert sorted(told) == ["claimed", "committed", "dispatched", "enqueued", "enqueued", "enqueued"]
    assert [event["children"] for event in kit.audited if event["event"] == "dispatched"] == [2]
    assert ("committed", "in_progress", "succeeded") in events(kit, parent)


def test_recovery_is_audited(kit: StoreKit) -> None:
    job_id = make_stale(kit)
    assert events(kit, job_id) == [ENQUEUED, CLAIMED, ("agent_died", "in_progress", "stale")]
    assert [told["what"] for told in kit.audited if told["event"] == "recovered"] == ["agent_removed"]
    dog = operator(kit.store)
    while kit.store.resolve_stale(dog, job_id) is not None and life(kit.store, job_id).status is not Status.KILLED:
        kit.clock.advance(100)
        agent = worker(kit.store)
        claimed(kit.store, agent)
        kit.die(agent)
        kit.store.recover(dog)
    assert events(kit, job_id)[-1] == (str(Reason.GAVE_UP), "stale", "killed")


def test_an_unroutable_job_is_audited_once_though_it_is_collected_later(kit: StoreKit) -> None:
    job_id = kit.store.enqueue(submission())
    claim = claimed(kit.store, worker(kit.store))
    commit_one(kit.store, claim, away(claim))
    kit.store.recover(operator(kit.store))
    marked = ("routing_exhausted", "in_progress", "stale")
    assert events(kit, job_id) == [ENQUEUED, CLAIMED, marked, ("recovered", None, None)]


def test_the_event_of_a_requeued_failure_names_the_old_status(kit: StoreKit) -> None:
    job_id = make_open_failure(kit.store)
    kit.store.requeue(operator(kit.store), job_id)
    assert events(kit, job_id)[-1] == ("requeued", "failed", "queued")


def test_a_refused_and_a_forced_enqueue_are_audited(kit: StoreKit) -> None:
    caps = Caps(role=1, roles={})
    with pytest.raises(CapacityReached):
        admit(kit.store, [submission(), submission()], Gate(caps=caps, user="bob"))
    refused = {"event": "cap_refused", "role": "Runner", "cap": 1, "load": 0, "wanted": 2, "user": "bob"}
    assert kit.audited == [refused]
    admit(kit.store, [submission(), submission()], Gate(caps=caps, user="bob", force=True, may_force=("*",)))
    assert [told["event"] for told in kit.audited] == ["cap_refused", "enqueued", "enqueued", "cap_forced"]
