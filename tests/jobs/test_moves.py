"""The transitions of a lifecycle: the effect of each outcome, which attempts count, and which states are final."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.jobs import moves
from farro.jobs.envelope import Lifecycle
from farro.jobs.moves import Move
from farro.jobs.outcomes import NO_REPORT, ErrorInfo, Failed, Outcome, Released, Succeeded, Unroutable
from farro.jobs.retry import RetryPolicy
from farro.jobs.states import Reason, Status
from farro.jobs.times import timestamp

NOW = datetime(2026, 11, 15, 12, 0, 0, 123_456, tzinfo=UTC)
NO = ErrorInfo(category="step_failed", message="no")
POLICY = RetryPolicy()
RETRY = Failed(error=NO, report=NO_REPORT, retryable=True)
OUTCOMES: list[Outcome] = [
    Succeeded(report=NO_REPORT),
    RETRY,
    Failed(error=NO, report=NO_REPORT),
    Released(note="bye"),
    Unroutable(error=NO, report=NO_REPORT),
]


def low(a: float, b: float) -> float:
    return a


def fresh(routing: dict[str, Any] | None = None, role: str = "Runner") -> Lifecycle:
    return moves.enqueued(job_id="j", role=role, now=NOW, routing=routing)


def claimed(lifecycle: Lifecycle, attempt: int, now: datetime = NOW) -> Lifecycle:
    return moves.claimed(lifecycle, agent="w.0.1", attempt=attempt, correlation_id=f"c{attempt}", now=now)


def turn(lifecycle: Lifecycle, outcome: Outcome, attempt: int, policy: RetryPolicy = POLICY) -> Lifecycle:
    """One claim and one commit."""
    running = claimed(lifecycle, attempt)
    move = moves.after(running, outcome, policy, low, attempt=attempt)
    return moves.decided(running, move, by="w.0.1", attempt=attempt, now=NOW)


def died(lifecycle: Lifecycle, attempt: int) -> Lifecycle:
    move = Move(reason=Reason.AGENT_DIED, status=Status.STALE, role=lifecycle.role, error=NO)
    return moves.decided(lifecycle, move, by="dog", attempt=attempt, now=NOW)


def settled(lifecycle: Lifecycle, highest: int, policy: RetryPolicy = POLICY) -> Lifecycle:
    move = moves.resolve_stale(lifecycle, policy, low, highest=highest)
    return moves.decided(lifecycle, move, by="manager", attempt=highest, now=NOW)


def test_a_new_job_is_queued_and_has_no_past() -> None:
    job = fresh({"mode": "role", "next": "CodeReviewer"})
    assert job.status is Status.QUEUED
    assert (job.attempt, job.retry_count, job.hops, job.decision, job.finalized_at) == (0, 0, (), None, None)
    assert job.created_at == job.enqueued_at == job.updated_at == "2026-11-15T12:00:00.123Z"


def test_times_are_utc_with_milliseconds_and_z() -> None:
    east = NOW.astimezone(tz=datetime.strptime("+0530", "%z").tzinfo)
    assert timestamp(east) == "2026-11-15T12:00:00.123Z"


def test_a_claim_names_its_agent_and_counts_its_attempt() -> None:
    first = claimed(fresh(), 1)
    assert (first.status, first.agent, first.attempt, first.correlation_id) == (Status.IN_PROGRESS, "w.0.1", 1, "c1")
    assert first.first_claimed_at == "2026-11-15T12:00:00.123Z"
    again = claimed(replace(first, status=Status.QUEUED), 2, NOW + timedelta(hours=1))
    assert again.first_claimed_at == first.first_claimed_at
    assert again.correlation_id == "c2"


def test_a_success_is_final() -> None:
    done = turn(fresh(), OUTCOMES[0], 1)
    assert (done.status, done.terminal, done.decision and done.decision.to) == (
        Status.SUCCEEDED,
        True,
        "agents/Runner/completed/succeeded",
    )
    assert done.finalized_at is not None


def test_a_failure_is_final_and_says_why() -> None:
    done = turn(fresh(), OUTCOMES[2], 1)
    assert (done.status, done.terminal) == (Status.FAILED, True)
    assert done.error == {"category": "step_failed", "message": "no"}


def test_a_retryable_failure_is_queued_again_with_a_delay() -> None:
    again = turn(fresh(), RETRY, 1)
    assert (again.status, again.decision and again.decision.reason) == (Status.QUEUED, Reason.RETRIED)
    assert again.not_before == timestamp(NOW + timedelta(seconds=0.25))
    assert again.decision is not None
    assert again.decision.not_before == again.not_before
    assert again.finalized_at is None
    assert again.requeued_from is None, "only a requeue says where it came from"


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_attempts_are_exhausted_at_the_limit(limit: int) -> None:
    policy, job = RetryPolicy(max_attempts=limit), fresh()
    for attempt in range(1, limit + 1):
        assert job.status is Status.QUEUED
        job = turn(job, RETRY, attempt, policy)
    assert (job.status, job.terminal) == (Status.FAILED, True)


def test_a_release_does_not_count_as_an_attempt() -> None:
    job = fresh()
    for attempt in range(1, 30):
        job = turn(job, Released(note="shutdown"), attempt)
        assert (job.status, job.decision and job.decision.reason) == (Status.QUEUED, Reason.RELEASED)
        assert job.not_before is None
        assert job.hops[-1].note == "shutdown"
    for attempt in (30, 31):
        job = turn(job, RETRY, attempt)
        assert job.status is Status.QUEUED
    assert turn(job, RETRY, 32).status is Status.FAILED


def test_attempts_count_per_hop() -> None:
    job = fresh({"mode": "role", "next": "CodeReviewer"})
    job = turn(turn(job, RETRY, 1), RETRY, 2)
    job = turn(job, OUTCOMES[0], 3)
    assert (job.status, job.role, job.hops[-1].reason) == (Status.QUEUED, "CodeReviewer", Reason.ROUTED)
    for attempt in (4, 5):
        job = turn(job, RETRY, attempt)
        assert job.status is Status.QUEUED
    assert turn(job, RETRY, 6).status is Status.FAILED


def test_an_unroutable_success_is_marked_stale_with_its_error() -> None:
    job = turn(fresh({"mode": "manager"}), OUTCOMES[4], 1)
    assert (job.status, job.decision and job.decision.to) == (Status.STALE, "jobs/stale")
    assert job.error == {"category": "step_failed", "message": "no"}
    assert job.finalized_at is None


def test_routing_by_role_goes_on_once_and_then_ends() -> None:
    job = fresh({"mode": "role", "next": "CodeReviewer"})
    job = turn(job, OUTCOMES[0], 1)
    assert (job.status, job.role) == (Status.QUEUED, "CodeReviewer")
    assert (job.hops[-1].role, job.hops[-1].to) == ("Runner", "agents/CodeReviewer/incoming")
    assert not job.terminal
    assert turn(job, OUTCOMES[0], 2).status is Status.SUCCEEDED


def test_routing_by_manager_goes_there_and_ends_there() -> None:
    job = turn(fresh({"mode": "manager"}), OUTCOMES[0], 1)
    assert (job.status, job.role) == (Status.QUEUED, "Manager")
    assert turn(job, OUTCOMES[0], 2).status is Status.SUCCEEDED


@pytest.mark.parametrize("routing", [None, {}, {"mode": "role"}, {"next": "Runner"}, {"mode": "role", "next": None}])
def test_without_a_next_role_a_success_ends_here(routing: dict[str, Any] | None) -> None:
    assert turn(fresh(routing), OUTCOMES[0], 1).status is Status.SUCCEEDED


def test_where_routing_ends_at_the_manager_only_the_managers_failure_is_final() -> None:
    open_failure = turn(fresh({"mode": "manager"}), OUTCOMES[2], 1)
    assert (open_failure.status, open_failure.finalized_at, open_failure.terminal) == (Status.FAILED, None, False)
    at_manager = turn(turn(fresh({"mode": "manager"}), OUTCOMES[0], 1), OUTCOMES[2], 2)
    assert (at_manager.status, at_manager.role, at_manager.terminal) == (Status.FAILED, "Manager", True)


@pytest.mark.parametrize(
    ("status", "reason"), [(Status.KILLED, Reason.KILLED), (Status.SUCCEEDED, Reason.FORCE_COMPLETED)]
)
def test_a_verb_that_ends_a_job_finalizes_it_also_under_a_manager(status: Status, reason: Reason) -> None:
    job = turn(fresh({"mode": "manager"}), OUTCOMES[2], 1)
    ended = moves.decided(job, Move(reason=reason, status=status, role="Runner"), by="op", attempt=1, now=NOW)
    assert ended.terminal
    assert ended.finalized_at is not None


def test_a_requeue_says_where_it_came_from_and_is_counted() -> None:
    stale = died(claimed(fresh(), 1), 1)
    assert (stale.status, stale.retry_count, stale.requeued_from) == (Status.STALE, 0, None)
    again = settled(stale, 1)
    assert (again.status, again.retry_count, again.requeued_from) == (Status.QUEUED, 1, Status.STALE)
    assert again.finalized_at is None
    retried = turn(again, RETRY, 2)
    assert (retried.retry_count, retried.requeued_from) == (1, None)


def test_only_repeated_deaths_delay_a_job() -> None:
    first = settled(died(claimed(fresh(), 1), 1), 1)
    assert first.not_before is None
    second = settled(died(claimed(first, 2), 2), 2)
    assert second.not_before is not None


def test_job_that_always_kills_its_worker_fails_with_the_reason() -> None:
    job = fresh()
    for attempt in (1, 2):
        job = settled(died(claimed(job, attempt), attempt), attempt)
        assert job.status is Status.QUEUED
    job = settled(died(claimed(job, 3), 3), 3)
    assert (job.status, job.terminal, job.decision and job.decision.reason) == (Status.KILLED, True, Reason.GAVE_UP)
    assert job.error == {"category": "attempts_exhausted", "message": "gave up after 3 attempts; the last: no"}


def test_a_claim_that_dies_before_it_counts_its_attempt_does_not_go_round_for_ever() -> None:
    job, rounds = fresh(), 0
    while job.status is Status.QUEUED:
        job = settled(died(replace(job, status=Status.IN_PROGRESS), 0), 0)
        rounds += 1
        assert rounds < 10
    assert (job.status, rounds) == (Status.KILLED, POLICY.max_attempts + 1)


def test_recovery_knows_a_decided_attempt_from_a_repeated_one() -> None:
    job = turn(fresh(), OUTCOMES[0], 1)
    assert moves.is_decided(job, 1)
    assert not moves.is_decided(job, 2)
    assert not moves.is_decided(claimed(fresh(), 1), 1)


@given(st.lists(st.sampled_from(OUTCOMES), min_size=1, max_size=12), st.sampled_from([None, "role", "manager"]))
def test_every_life_keeps_the_invariants(outcomes: list[Outcome], mode: str | None) -> None:
    routing = None if mode is None else {"mode": mode, "next": "CodeReviewer"}
    job, requeues = fresh(routing), 0
    for attempt, outcome in enumerate(outcomes, start=1):
        if job.status is Status.STALE:
            job = settled(job, attempt - 1)
            requeues += job.status is Status.QUEUED
        if job.status is not Status.QUEUED:
            break
        before = job
        job = turn(job, outcome, attempt)
        assert job.hops[: len(before.hops)] == before.hops, "hops only grow"
        assert len(job.hops) == len(before.hops) + 1
        assert (job.finalized_at is not None) is job.terminal
        assert job.decision is not None
        assert job.decision.attempt == attempt == job.attempt
        assert job.decision.to == job.hops[-1].to
        assert job.attempts_in_hop(attempt) <= attempt
    assert job.retry_count == requeues
    assert Lifecycle.from_json(job.to_json()) == job


@given(st.integers(0, 40), st.integers(0, 40))
def test_attempts_count_unless_released_or_of_another_hop(releases: int, retries: int) -> None:
    policy = RetryPolicy(max_attempts=1000)
    job, attempt = fresh({"mode": "role", "next": "CodeReviewer"}), 0
    plan: list[Outcome] = [Released()] * releases + [RETRY] * retries
    for outcome in plan:
        attempt += 1
        job = turn(job, outcome, attempt, policy)
    assert job.attempts_in_hop(attempt) == retries
    job = turn(job, OUTCOMES[0], attempt + 1, policy)
    assert job.attempts_in_hop(attempt + 1) == 0
