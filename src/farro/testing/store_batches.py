"""The contract of batches of jobs: each job has its own fence and result, and jobs that were not started return to
their places. The fixture `kit` yields a StoreKit."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from farro.errors import ClaimLost, FarroError, UnknownRole
from farro.jobs.envelope import Lifecycle
from farro.jobs.moves import Move
from farro.jobs.outcomes import AccountWait, ErrorInfo, Failed, Outcome, Released, Succeeded
from farro.jobs.states import Reason, Status
from farro.store.port import Agent, AttemptResult, Claim, NextClaim, Store, Submission
from farro.testing.one_job import claim_one, commit_all
from farro.testing.store_kit import StoreKit, plan, report, submission


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


def end(store: Store, claims: Sequence[Claim]) -> list[Lifecycle | FarroError]:
    return commit_all(store, [well(claim) for claim in claims])


def test_a_batch_of_jobs_is_claimed_in_order(kit: StoreKit) -> None:
    one, other = kit.store.join("a", role="Runner"), kit.store.join("b", role="Runner")
    assert kit.store.claim(one, 3) == []
    ids = fill(kit.store, 10)
    first = kit.store.claim(one, 3)
    assert names(first) == ids[:3]
    assert len({claim.envelope.lifecycle.correlation_id for claim in first}) == 3
    assert {claim.attempt for claim in first} == {1}
    assert names(kit.store.claim(other, 16)) == ids[3:7], "at most four or half: other workers take the rest"
    assert sorted(job for view in kit.store.agents() for job in view.jobs) == ids[:7]
    assert kit.store.count()[Status.IN_PROGRESS] == 7
    told = [kit.store.find(job_id) for job_id in ids[:3]]
    assert [view.status for view in told if view is not None] == [Status.IN_PROGRESS] * 3


def test_a_long_job_of_a_batch_is_recorded_as_claimed(kit: StoreKit) -> None:
    fill(kit.store, 4)
    claims = kit.store.claim(kit.store.join("a", role="Runner"), 2)
    kit.store.heartbeat(claims[1].agent, claims[1])
    kit.store.heartbeat(claims[1].agent, claims[1])
    view = kit.store.find(claims[1].job_id)
    assert view is not None
    assert view.lifecycle == claims[1].envelope.lifecycle
    assert all(isinstance(what, Lifecycle) for what in end(kit.store, claims))


def test_each_job_of_a_batch_is_committed_under_its_own_fence(kit: StoreKit) -> None:
    agent, operator = kit.store.join("a", role="Runner"), kit.store.join("o", role=None)
    fill(kit.store, 8)
    claims = kit.store.claim(agent, 4)
    kit.store.kill(operator, "j01")
    told = commit_all(kit.store, [well(claims[0]), well(claims[1]), badly(claims[2]), well(claims[3])])
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
    assert all(isinstance(what, ClaimLost) for what in end(kit.store, claims)), "a commit is accepted once"


def test_committing_a_batch_unblocks_dependents(kit: StoreKit) -> None:
    agent = kit.store.join("a", role="Runner")
    first, _ = fill(kit.store, 2)
    waiting = kit.store.enqueue(Submission(role="Runner", job_id="later", prompt=plan(9, metadata={"after": [first]})))
    claims = kit.store.claim(agent, 4)
    assert waiting not in names(claims)
    end(kit.store, claims)
    assert names(kit.store.claim(agent, 4)) == [waiting]


def test_jobs_not_started_return_to_their_places_in_the_queue(kit: StoreKit) -> None:
    ids = fill(kit.store, 8)
    agent, other = kit.store.join("a", role="Runner"), kit.store.join("b", role="Runner")
    claims = kit.store.claim(agent, 4)
    cursor = kit.store.changes(None, role="Runner").cursor
    kit.store.hand_back(claims[1:])
    told = kit.store.changes(cursor, role="Runner").items
    assert {change.job_id for change in told if change.status is Status.QUEUED} == set(ids[1:4]), (
        "waiting workers are woken"
    )
    view = kit.store.find(ids[1])
    assert view is not None
    assert (view.status, view.lifecycle.attempt, view.lifecycle.hops) == (Status.QUEUED, 0, ())
    again = [claim_one(kit.store, other) for _ in range(3)]
    assert [claim.job_id for claim in again if claim is not None] == ids[1:4], "before later jobs"
    assert {claim.attempt for claim in again if claim is not None} == {1}
    assert [type(what) for what in end(kit.store, claims[1:])] == [ClaimLost] * 3, "another agent holds them now"
    assert isinstance(end(kit.store, claims[:1])[0], Lifecycle)
    events = [line["event"] for line in kit.audited if line.get("job_id") == ids[1]]
    if events:  # for Redis see tests/store/redis/test_batches.py
        assert events == ["enqueued", "claimed", str(Reason.RELEASED), "claimed"]


def test_a_job_taken_by_another_agent_is_not_handed_back(kit: StoreKit) -> None:
    fill(kit.store, 4)
    agent, operator = kit.store.join("a", role="Runner"), kit.store.join("o", role=None)
    claims = kit.store.claim(agent, 2)
    kit.store.kill(operator, claims[1].job_id)
    kit.store.hand_back(claims[1:])
    view = kit.store.find(claims[1].job_id)
    assert view is not None
    assert view.status is Status.KILLED


def test_a_job_that_was_started_before_is_claimed_alone(kit: StoreKit) -> None:
    """If it kills its worker again, no other job is affected."""
    ids = fill(kit.store, 8)
    agent, operator = kit.store.join("a", role="Runner"), kit.store.join("o", role=None)
    assert claim_one(kit.store, agent) is not None
    kit.die(agent)
    kit.store.recover(operator)
    kit.store.resolve_stale(operator, ids[0])
    kit.clock.advance(3600)
    other = kit.store.join("b", role="Runner")
    assert names(kit.store.claim(other, 16)) == ids[1:5]
    assert names(kit.store.claim(other, 16)) == ids[5:], "not together with the job behind it"
    alone = kit.store.claim(other, 16)
    assert names(alone) == ids[:1]
    assert alone[0].attempt == 2


def test_a_worker_that_dies_with_a_batch_loses_no_job(kit: StoreKit) -> None:
    ids = fill(kit.store, 8)
    agent, operator = kit.store.join("a", role="Runner"), kit.store.join("o", role=None)
    assert names(kit.store.claim(agent, 4)) == ids[:4]
    kit.die(agent)
    kit.store.recover(operator)
    assert sorted(kit.store.stale()) == ids[:4]
    for job_id in ids[:4]:
        told = kit.store.resolve_stale(operator, job_id)
        assert told is not None
        assert told.status is Status.QUEUED


def test_slots_that_claim_batches_run_each_job_once(kit: StoreKit) -> None:
    ids = fill(kit.store, 90)
    done: list[str] = []

    def work() -> None:
        agent = kit.store.join("w", role="Runner")
        empty = 0
        while empty < 50:  # the lock of another agent is checked again a moment later
            claims = kit.store.claim(agent, 8)
            kit.store.hand_back(claims[5:])
            end(kit.store, claims[:5])
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


def test_one_batch_commits_jobs_of_several_agents(kit: StoreKit) -> None:
    one, other = kit.store.join("a", role="Runner"), kit.store.join("b", role="Runner")
    ids = fill(kit.store, 6)
    claims = [*kit.store.claim(one, 2), *kit.store.claim(other, 2)]
    mixed = [claims[0], claims[2], claims[1], claims[3]]
    told = end(kit.store, mixed)
    assert [what.job_id for what in told if isinstance(what, Lifecycle)] == names(mixed)
    assert [what.agent for what in told if isinstance(what, Lifecycle)] == [one.id, other.id, one.id, other.id]
    assert kit.store.pending("Runner") == len(ids) - 4


def test_a_commit_claims_the_next_batch(kit: StoreKit) -> None:
    agent = kit.store.join("a", role="Runner")
    ids = fill(kit.store, 8)
    first = kit.store.claim(agent, 2)
    answers, claims = kit.store.commit([AttemptResult(*well(claim)) for claim in first], NextClaim(agent, 2))
    assert [type(answer) for answer in answers] == [Lifecycle, Lifecycle]
    assert names(claims) == ids[2:4]
    assert kit.store.count()[Status.SUCCEEDED] == 2


def test_the_answers_of_a_commit_survive_a_claim_that_fails(kit: StoreKit) -> None:
    agent, gone = kit.store.join("a", role="Runner"), kit.store.join("b", role="Runner")
    fill(kit.store, 4)
    claims = kit.store.claim(agent, 2)
    kit.store.leave(gone)
    answers, more = kit.store.commit([AttemptResult(*well(claim)) for claim in claims], NextClaim(gone, 2))
    assert [type(answer) for answer in answers] == [Lifecycle, Lifecycle]
    assert more == []


def test_a_refused_result_keeps_no_other_from_its_commit(kit: StoreKit) -> None:
    agent = kit.store.join("a", role="Runner")
    fill(kit.store, 4)
    good, bad = kit.store.claim(agent, 2)
    nowhere = Move(reason=Reason.ROUTED, status=Status.QUEUED, role="Nobody")
    answers = kit.store.commit([AttemptResult(*well(bad), nowhere), AttemptResult(*well(good))]).answers
    assert [type(answer) for answer in answers] == [UnknownRole, Lifecycle]
    assert isinstance(end(kit.store, [bad])[0], Lifecycle), "it is still held"


class Waiting:
    """Claim in a thread, waiting for a job."""

    def __init__(self, store: Store, agent: Agent) -> None:
        self._claims: list[list[Claim]] = []
        self._thread = threading.Thread(target=lambda: self._claims.append(store.claim(agent, 2, 3600.0)), daemon=True)
        self._thread.start()

    def claimed(self) -> list[str]:
        self._thread.join(90)
        assert self._claims, "it still waits"
        return names(self._claims[0])


def test_a_waiting_claim_gets_the_job_that_enters(kit: StoreKit) -> None:
    waiting = Waiting(kit.store, kit.store.join("a", role="Runner"))
    ids = fill(kit.process(), 1)
    assert waiting.claimed() == ids


def test_a_waiting_claim_gets_the_job_whose_account_was_resumed(kit: StoreKit) -> None:
    agent, other = kit.store.join("a", role="Runner"), kit.process()
    (job_id,) = fill(kit.store, 1)
    (claim,) = kit.store.claim(agent, 1)
    wait = AccountWait(accounts=("claude",), delay_s=3600.0)
    kit.store.commit([AttemptResult(claim, Released(note="limited", wait=wait))])
    assert kit.store.claim(agent, 1) == []
    waiting = Waiting(kit.store, agent)
    other.start_now(other.join("operator", role=None), job_id)
    # The release itself may have ended the first wait: it was an entry into the queue.
    assert (waiting.claimed() or Waiting(kit.store, agent).claimed()) == [job_id]


def test_wake_ends_a_waiting_claim(kit: StoreKit) -> None:
    agent = kit.store.join("a", role="Runner")
    assert kit.store.claim(agent, 2) == []
    kit.store.wake("Runner")  # before the wait, as when a worker is stopped
    assert Waiting(kit.store, agent).claimed() == []
    waiting = Waiting(kit.store, agent)
    kit.store.wake("Runner")
    assert waiting.claimed() == []
