"""Decide when a slot waits for more jobs before it claims again. The turns of a slot are simulated here."""

from __future__ import annotations

import pytest

from farro.worker.batching import LEAST_S, LONGEST_S, STREAM, STREAM_S, BatchWait


class Turns:
    """Simulate the turns of a slot. `waits`: how long each turn waited for more jobs; None: not at all."""

    def __init__(self) -> None:
        self.wait = BatchWait()
        self.now_s = 100.0
        self.waits: list[float | None] = []

    def turn(self, number: int, *, took_s: float = 0.001, asked_s: float = 0.001, gap_s: float = 0.0) -> None:
        self.now_s += gap_s
        self.wait.begin(self.now_s, number)
        if not number:
            return
        self.now_s += took_s
        self.waits.append(self.wait.wait_s(took_s) or None)
        self.wait.end(self.now_s, self.now_s + asked_s)
        self.now_s += asked_s

    @property
    def waited(self) -> int:
        return sum(1 for wait in self.waits if wait is not None)


def test_a_stream_is_batched_and_a_few_jobs_are_not() -> None:
    turns = Turns()
    for _ in range(STREAM):
        turns.turn(2)
    assert turns.waited == 0
    for _ in range(20):
        turns.turn(2)
    assert turns.waited == 20


def test_a_client_that_waits_for_each_result_is_not_delayed() -> None:
    turns = Turns()
    for _ in range(500):
        turns.turn(1)
    assert 0 < turns.waited <= 20
    assert turns.waits[-50:].count(None) >= 49


def test_a_wait_followed_by_an_empty_claim_counts_as_wasted() -> None:
    """If the claim is sent with the commit, a client that waits for the result has not submitted its next job yet."""
    turns = Turns()
    for _ in range(500):
        turns.turn(1)
        turns.turn(0)
    assert turns.waited <= 20


def test_claims_lost_to_faster_workers_do_not_end_a_stream() -> None:
    turns = Turns()
    for number in range(200):
        turns.turn(1 if number % 3 else 4)
    assert turns.waited >= 190


def test_a_stream_after_single_requests_is_batched_again() -> None:
    turns = Turns()
    for _ in range(300):
        turns.turn(1)
    before = turns.waited
    for _ in range(200):
        turns.turn(4)
    assert turns.waited - before >= 130  # after one wait found several jobs, every turn waits


def test_occasional_jobs_are_not_a_stream() -> None:
    turns = Turns()
    for _ in range(50):
        turns.turn(1, gap_s=2 * STREAM_S)
    assert turns.waited == 0


@pytest.mark.parametrize(("turn_s", "wait_s"), [(0.0001, LEAST_S), (0.002, 0.008), (1.0, LONGEST_S)])
def test_the_wait_is_twice_the_turn_within_its_limits(turn_s: float, wait_s: float) -> None:
    turns = Turns()
    for _ in range(STREAM + 2):
        turns.turn(3, took_s=turn_s, asked_s=turn_s)
    assert turns.waits[-1] == pytest.approx(wait_s)
