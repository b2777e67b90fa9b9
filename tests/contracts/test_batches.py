"""Batches of jobs in one call, on every store that supports them: each job has its own fence and result, and jobs that
were not started return to their places."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from contracts.adapters import Adapter
from contracts.conftest import ADAPTERS, opened
from farro.errors import ClaimLost, Lost
from farro.jobs.envelope import Lifecycle
from farro.jobs.outcomes import ErrorInfo, Failed, Outcome, Succeeded
from farro.jobs.states import Reason, Status
from farro.store.port import BatchStore, Claim, Store, Submission
from stage import plan, report, submission


@pytest.fixture(params=[name for name in ADAPTERS if name != "memory"])
def kit(request: pytest.FixtureRequest, shm: Path) -> Iterator[Adapter]:
    """The stores that support batches."""
    with closing(opened(request, shm)) as made:
        yield made


@pytest.fixture
def batches(kit: Adapter) -> BatchStore:
    assert isinstance(kit.store, BatchStore)
    return kit.store


def names(claims: Sequence[Claim]) -> list[str]:
    return [claim.job_id for claim in claims]


def fill(store: Store, count: int) -> list[str]:
    return [store.enqueue(submission(number, job_id=f"j{number:02d}")) for number in range(count)]


def well(claim: Claim) -> tuple[Claim, Outcome]:
    claim.make()
    return claim, Succeeded(report=report(claim))


def badly(claim: Claim) -> tuple[Claim, Outcome]:
    claim.make()
    return claim, Failed(error=ErrorInfo(category="step_failed", message="no"), report=report(claim, "failed"))


def end(store: BatchStore, claims: Sequence[Claim]) -> list[Lifecycle | Lost]:
    return store.commit_batch([well(claim) for claim in claims])


def test_a_batch_of_jobs_is_claimed_in_order(kit: Adapter, batches: BatchStore) -> None:
    one, other = kit.store.join("a", role="Runner"), kit.store.join("b", role="Runner")
    assert batches.claim_batch(one, 3) == []
    ids = fill(kit.store, 10)
    first = batches.claim_batch(one, 3)
    assert names(first) == ids[:3]
    assert len({claim.envelope.lifecycle.correlation_id for claim in first}) == 3
    assert {claim.attempt for claim in first} == {1}
    assert names(batches.claim_batch(other, 16)) == ids[3:7], "at most four or half: other workers take the rest"
    assert sorted(job for view in kit.store.agents() for job in view.jobs) == ids[:7]
    assert kit.store.count()[Status.IN_PROGRESS] == 7
    told = [kit.store.find(job_id) for job_id in ids[:3]]
    assert [view.status for view in told if view is not None] == [Status.IN_PROGRESS] * 3


def test_a_long_job_of_a_batch_is_recorded_as_claimed(kit: Adapter, batches: BatchStore) -> None:
    fill(kit.store, 4)
    claims = batches.claim_batch(kit.store.join("a", role="Runner"), 2)
    batches.record_claim(claims[1])
    batches.record_claim(claims[1])
    view = kit.store.find(claims[1].job_id)
    assert view is not None
    assert view.lifecycle == claims[1].envelope.lifecycle
    assert all(isinstance(what, Lifecycle) for what in end(batches, claims))


def test_each_job_of_a_batch_is_committed_under_its_own_fence(kit: Adapter, batches: BatchStore) -> None:
    agent, operator = kit.store.join("a", role="Runner"), kit.store.join("o", role=None)
    fill(kit.store, 8)
    claims = batches.claim_batch(agent, 4)
    kit.store.kill(operator, "j01")
    told = batches.commit_batch([well(claims[0]), well(claims[1]), badly(claims[2]), well(claims[3])])
    assert [type(what) for what in told] == [Lifecycle, ClaimLost, Lifecycle, Lifecycle]
    views = [kit.store.find(job_id) for job_id in ("j00", "j01", "j02", "j03")]
    assert [view.status for view in views if view is not None] == [
        Status.SUCCEEDED,
        Status.KILLED,
        Status.FAILED,
        Status.SUCCEEDED,
    ]
    lives = [view.lifecycle for view in views if view is not None]
    assert all(life.first_claimed_at is not None and life.agent == agent.id for life in (lives[0], lives[2]))
    assert all(isinstance(what, ClaimLost) for what in end(batches, claims)), "a commit is accepted once"


def test_committing_a_batch_unblocks_dependents(kit: Adapter, batches: BatchStore) -> None:
    agent = kit.store.join("a", role="Runner")
    first, _ = fill(kit.store, 2)
    waiting = kit.store.enqueue(Submission(role="Runner", job_id="later", prompt=plan(9, metadata={"after": [first]})))
    claims = batches.claim_batch(agent, 4)
    assert waiting not in names(claims)
    end(batches, claims)
    assert names(batches.claim_batch(agent, 4)) == [waiting]


def test_jobs_not_started_return_to_their_places_in_the_queue(kit: Adapter, batches: BatchStore) -> None:
    ids = fill(kit.store, 8)
    agent, other = kit.store.join("a", role="Runner"), kit.store.join("b", role="Runner")
    claims = batches.claim_batch(agent, 4)
    cursor = kit.store.changes(None, role="Runner").cursor
    batches.hand_back(claims[1:])
    told = kit.store.changes(cursor, role="Runner").items
    assert {change.job_id for change in told if change.status is Status.QUEUED} == set(ids[1:4]), (
        "waiting workers are woken"
    )
    view = kit.store.find(ids[1])
    assert view is not None
    assert (view.status, view.lifecycle.attempt, view.lifecycle.hops) == (Status.QUEUED, 0, ())
    again = [kit.store.claim(other) for _ in range(3)]
    assert [claim.job_id for claim in again if claim is not None] == ids[1:4], "before later jobs"
    assert {claim.attempt for claim in again if claim is not None} == {1}
    assert [type(what) for what in end(batches, claims[1:])] == [ClaimLost] * 3, "another agent holds them now"
    assert isinstance(end(batches, claims[:1])[0], Lifecycle)
    events = [line["event"] for line in kit.audited if line.get("job_id") == ids[1]]
    if events:  # for Redis see tests/store/redis/test_batches.py
        assert events == ["enqueued", "claimed", str(Reason.RELEASED), "claimed"]


def test_a_job_taken_by_another_agent_is_not_handed_back(kit: Adapter, batches: BatchStore) -> None:
    fill(kit.store, 4)
    agent, operator = kit.store.join("a", role="Runner"), kit.store.join("o", role=None)
    claims = batches.claim_batch(agent, 2)
    kit.store.kill(operator, claims[1].job_id)
    batches.hand_back(claims[1:])
    view = kit.store.find(claims[1].job_id)
    assert view is not None
    assert view.status is Status.KILLED


def test_a_job_that_was_started_before_is_claimed_alone(kit: Adapter, batches: BatchStore) -> None:
    """If it kills its worker again, no other job is affected."""
    ids = fill(kit.store, 8)
    agent, operator = kit.store.join("a", role="Runner"), kit.store.join("o", role=None)
    assert kit.store.claim(agent) is not None
    kit.die(agent)
    kit.store.recover(operator)
    kit.store.resolve_stale(operator, ids[0])
    kit.clock.advance(3600)
    other = kit.store.join("b", role="Runner")
    assert names(batches.claim_batch(other, 16)) == ids[1:5]
    assert names(batches.claim_batch(other, 16)) == ids[5:], "not together with the job behind it"
    alone = batches.claim_batch(other, 16)
    assert names(alone) == ids[:1]
    assert alone[0].attempt == 2


def test_a_worker_that_dies_with_a_batch_loses_no_job(kit: Adapter, batches: BatchStore) -> None:
    ids = fill(kit.store, 8)
    agent, operator = kit.store.join("a", role="Runner"), kit.store.join("o", role=None)
    assert names(batches.claim_batch(agent, 4)) == ids[:4]
    kit.die(agent)
    kit.store.recover(operator)
    assert sorted(kit.store.stale()) == ids[:4]
    for job_id in ids[:4]:
        told = kit.store.resolve_stale(operator, job_id)
        assert told is not None
        assert told.status is Status.QUEUED


def test_slots_that_claim_batches_run_each_job_once(
    kit: Adapter, batches: BatchStore, figure: Callable[..., None]
) -> None:
    ids = fill(kit.store, 90)
    done: list[str] = []

    def work() -> None:
        agent = kit.store.join("w", role="Runner")
        empty = 0
        while empty < 50:  # the lock of another agent is checked again a moment later
            claims = batches.claim_batch(agent, 8)
            batches.hand_back(claims[5:])
            end(batches, claims[:5])
            done.extend(names(claims[:5]))
            empty = 0 if claims else empty + 1
            if not claims:
                kit.clock.advance(1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert sorted(done) == ids
    figure(f"{kit.name}: jobs that several slots claimed in rows, each done once", len(done))


def test_one_batch_commits_jobs_of_several_agents(kit: Adapter, batches: BatchStore) -> None:
    one, other = kit.store.join("a", role="Runner"), kit.store.join("b", role="Runner")
    ids = fill(kit.store, 6)
    claims = [*batches.claim_batch(one, 2), *batches.claim_batch(other, 2)]
    mixed = [claims[0], claims[2], claims[1], claims[3]]
    told = end(batches, mixed)
    assert [what.job_id for what in told if isinstance(what, Lifecycle)] == names(mixed)
    assert [what.agent for what in told if isinstance(what, Lifecycle)] == [one.id, other.id, one.id, other.id]
    assert kit.store.pending("Runner") == len(ids) - 4
