"""The numbers of `farro stats`: percentiles are measured values, and counts add up."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.jobs import moves
from farro.jobs.envelope import Lifecycle
from farro.jobs.moves import Move
from farro.jobs.states import Reason, Status
from farro.queue.stats import TOTAL, FinishedWork, UnfinishedJob, percentile, role_hops, role_stats

VALUES = st.lists(st.floats(min_value=0, max_value=1e9), min_size=1)
SHARES = st.floats(min_value=0, max_value=1)
ROLES = st.sampled_from(["Runner", "Architect"])
STATUSES = st.sampled_from(["succeeded", "failed", "killed"])
SECONDS = st.none() | st.floats(min_value=0, max_value=1e6)
FINISHED = st.lists(st.builds(FinishedWork, role=ROLES, status=STATUSES, latency_s=SECONDS, wait_s=SECONDS))
STATES = st.sampled_from(["queued", "delayed", "waiting", "in_progress", "stale"])
WAITING = st.lists(st.builds(UnfinishedJob, role=ROLES, state=STATES, age_s=SECONDS))


@given(VALUES, SHARES)
def test_a_percentile_is_one_of_the_values(values: list[float], share: float) -> None:
    assert percentile(values, share) in values


@given(VALUES, SHARES)
def test_a_percentile_is_the_smallest_value_that_covers_its_share(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found is not None
    assert sum(value <= found for value in values) >= share * len(values)
    smaller = [value for value in values if value < found]
    assert len(smaller) < max(1, share * len(values))


@given(VALUES, SHARES, SHARES)
def test_percentiles_grow_with_their_share(values: list[float], one: float, other: float) -> None:
    low, high = percentile(values, min(one, other)), percentile(values, max(one, other))
    assert low is not None
    assert high is not None
    assert low <= high
    assert percentile(values, 0) == min(values)
    assert percentile(values, 1) == max(values)


def test_percentiles_of_known_values() -> None:
    assert percentile([], 0.5) is None
    assert percentile(list(range(1, 101)), 0.95) == 95
    assert percentile([3, 1, 2], 0.5) == 2
    with pytest.raises(ValueError, match="between 0 and 1"):
        percentile([1], 95)


@given(WAITING, FINISHED)
def test_the_total_is_the_sum_of_the_roles(waiting: list[UnfinishedJob], finished: list[FinishedWork]) -> None:
    parts = [role_stats(role, waiting, finished, window_s=600) for role in ("Runner", "Architect")]
    total = role_stats(TOTAL, waiting, finished, window_s=600)
    for name in ("queued", "delayed", "waiting", "in_progress", "stale", "succeeded", "failed", "killed"):
        assert getattr(total, name) == sum(getattr(part, name) for part in parts)
    assert total.throughput_per_min == pytest.approx(sum(part.throughput_per_min for part in parts))
    assert total.failure_rate is None or 0 <= total.failure_rate <= 1


def test_a_killed_job_is_no_failure() -> None:
    ended = [FinishedWork(role="R", status=status, latency_s=None, wait_s=None) for status in ("killed", "succeeded")]
    assert role_stats("R", [], ended, window_s=60).failure_rate == 0
    assert role_stats("R", [], ended[:1], window_s=60).failure_rate is None


def test_every_hop_counts_for_the_role_that_worked_it() -> None:
    """SPEC-1, metrics per role: a job that the manager routes and ends counts for its engineer, too."""
    life = moves.enqueued(job_id="j", role="SeniorEngineer", now=at(0), routing={"mode": "manager"})
    plan: list[tuple[int, Reason, Status, str]] = [
        (10, Reason.RETRIED, Status.QUEUED, "SeniorEngineer"),
        (40, Reason.ROUTED, Status.QUEUED, "Manager"),
        (50, Reason.COMMITTED, Status.FAILED, "Manager"),
    ]
    for number, (second, reason, status, role) in enumerate(plan, start=1):
        life = moves.claimed(life, agent="a", attempt=number, correlation_id="c", now=at(second - 4))
        life = moves.decided(
            life, Move(reason=reason, status=status, role=role), by="a", attempt=number, now=at(second)
        )
    life = Lifecycle.from_json(life.to_json())
    assert list(role_hops(life, since=at(0))) == [
        FinishedWork(role="SeniorEngineer", status="succeeded", latency_s=40, wait_s=6, work_s=34),
        FinishedWork(role="Manager", status="failed", latency_s=10, wait_s=6, work_s=4),
    ]
    assert [hop.role for hop in role_hops(life, since=at(45))] == ["Manager"]


def test_average_and_percentiles_of_waiting_and_work() -> None:
    ended = [FinishedWork(role="R", status="succeeded", latency_s=3 * n, wait_s=n, work_s=2 * n) for n in (1, 2, 6)]
    line = role_stats("R", [], ended, window_s=60)
    assert (line.wait_avg_s, line.wait_p50_s, line.wait_p95_s) == (3, 2, 6)
    assert (line.work_avg_s, line.work_p50_s, line.work_p95_s) == (6, 4, 12)
    assert (line.latency_avg_s, line.throughput_per_min) == (9, 3)


def at(second: int) -> datetime:
    return datetime(2026, 11, 16, 12, 0, second, tzinfo=UTC)
