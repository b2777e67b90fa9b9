"""Decide when a slot waits for more jobs before it claims again. The turns of a slot are simulated here."""

from __future__ import annotations

import pytest

from farro.worker.batch_wait import LEAST_S, LONGEST_S, STREAM, STREAM_S, BatchWait

TRIPS = [pytest.param(True, id="server"), pytest.param(False, id="files")]


class Turns:
    """Simulate the turns of a slot. `waits`: how long each turn waited for more jobs; None: not at all."""

    def __init__(self, *, trips: bool) -> None:
        self.gathering = BatchWait(trips=trips)
        self.now_s = 100.0
        self.waits: list[float | None] = []

    def turn(self, number: int, *, took_s: float = 0.001, asked_s: float = 0.001, gap_s: float = 0.0) -> None:
        self.now_s += gap_s
        self.gathering.count(self.now_s, number)
        if not number:
            return
        self.now_s += took_s
        self.waits.append(self.gathering.wait_s(took_s) if self.gathering.in_stream() else None)
        self.gathering.over(self.now_s, self.now_s + asked_s)
        self.now_s += asked_s

    @property
    def waited(self) -> int:
        return sum(1 for wait in self.waits if wait is not None)


@pytest.mark.parametrize("trips", TRIPS)
def test_a_stream_is_batched_and_a_few_jobs_are_not(trips: bool) -> None:
    turns = Turns(trips=trips)
    for _ in range(STREAM):
        turns.turn(2)
    assert turns.waited == 0
    for _ in range(20):
        turns.turn(2)
    assert turns.waited == 20


@pytest.mark.parametrize("trips", TRIPS)
def test_a_client_that_waits_for_each_result_is_not_delayed(trips: bool) -> None:
    turns = Turns(trips=trips)
    for _ in range(500):
        turns.turn(1)
    assert 0 < turns.waited <= 20
    assert turns.waits[-50:].count(None) >= 49


@pytest.mark.parametrize("trips", TRIPS)
def test_a_wait_followed_by_an_empty_claim_counts_as_wasted(trips: bool) -> None:
    """If the claim is sent with the commit, a client that waits for the result has not submitted its next job yet."""
    turns = Turns(trips=trips)
    for _ in range(500):
        turns.turn(1)
        turns.turn(0)
    assert turns.waited <= 20


@pytest.mark.parametrize("trips", TRIPS)
def test_claims_lost_to_faster_workers_do_not_end_a_stream(trips: bool) -> None:
    turns = Turns(trips=trips)
    for number in range(200):
        turns.turn(1 if number % 3 else 4)
    assert turns.waited >= 190


@pytest.mark.parametrize("trips", TRIPS)
def test_a_stream_after_single_requests_is_batched_again(trips: bool) -> None:
    turns = Turns(trips=trips)
    for _ in range(300):
        turns.turn(1)
    before = turns.waited
    for _ in range(200):
        turns.turn(4)
    assert turns.waited - before >= 130  # after one wait found several jobs, every turn waits


def test_occasional_jobs_are_not_a_stream() -> None:
    turns = Turns(trips=True)
    for _ in range(50):
        turns.turn(1, gap_s=2 * STREAM_S)
    assert turns.waited == 0


@pytest.mark.parametrize(("turn_s", "wait_s"), [(0.0001, LEAST_S), (0.002, 0.008), (1.0, LONGEST_S)])
def test_the_wait_is_twice_the_turn_within_its_limits(turn_s: float, wait_s: float) -> None:
    turns = Turns(trips=False)
    for _ in range(STREAM + 2):
        turns.turn(3, took_s=turn_s, asked_s=turn_s)
    assert turns.waits[-1] == pytest.approx(wait_s)
