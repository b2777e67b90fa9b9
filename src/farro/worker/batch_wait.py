"""Decide when a slot waits for more small jobs before its next claim: in a stream of jobs, where each request is
expensive.

The wait is never longer than twice what the last turn took, so a fast store is asked at once. A wait that did not bring
two jobs is not soon repeated: a submitter may send one job after the other, each when the last is done.
[test_a_client_that_waits_for_each_result_is_not_delayed]
"""

from __future__ import annotations

STREAM = 3  # after so many turns in a row, small jobs count as a stream …
MOST_TURNS = 64  # … after waits in vain, this number doubles up to here
CHANCE = 5  # waits in vain in a row that count; after fewer, other workers may only have been faster
STREAM_S = 0.01  # the longest gap between turns in a row
LEAST_S = 0.001  # the shortest wait: the jobs that come in this time share one turn
LONGEST_S = 0.01  # the longest wait; in between, twice the duration of a turn: a slow store's turns are expensive


class BatchWait:
    """The state of one slot. `trips`: its store is a server, where one request commits a turn and claims the next."""

    def __init__(self, *, trips: bool) -> None:
        self._trips = trips
        self._over_s = 0.0  # when the last turn that found something was over
        self._asked_s = 0.0  # how long the store took for it
        self._streak = 0  # turns in a row that found something
        self._enough = STREAM  # a longer streak is a stream
        self._waited = False  # before this turn
        self._in_vain = 0  # waits in a row that brought no two jobs

    def count(self, now_s: float, number: int) -> None:
        """Begin a turn with `number` jobs."""
        if self._waited:
            self._waited = False
            self._in_vain = self._in_vain + 1 if number < 2 else 0
            if self._in_vain >= CHANCE:
                self._enough = min(2 * self._enough, MOST_TURNS)
                self._streak = 0
            else:
                self._enough = STREAM
        # A claim in the same request as a commit often comes a moment too early; finding nothing is then no gap.
        if number and (not self._trips or now_s - self._over_s < STREAM_S):
            self._streak += 1
        elif number or not self._trips:
            self._streak = min(number, 1)

    def in_stream(self) -> bool:
        return self._streak > self._enough

    def over(self, began_s: float, now_s: float) -> None:
        """Record that the turn's jobs are committed."""
        self._asked_s, self._over_s = now_s - began_s, now_s

    def wait_s(self, took_s: float) -> float:
        """Return how long to wait for more jobs after a turn that took `took_s`."""
        self._waited = True
        return min(max(LEAST_S, 2 * (took_s + self._asked_s)), LONGEST_S)
