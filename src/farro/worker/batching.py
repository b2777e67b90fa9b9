"""Decide how many jobs a slot claims at once, and whether it waits for more of them first.

docs/decisions/small-jobs-go-in-batches.md
"""

from __future__ import annotations

BATCH = 16  # jobs that a slot claims and commits together at most …
BATCH_S = 0.02  # … and about how long that may take

STREAM = 3  # after so many turns in a row, small jobs count as a stream …
MOST_TURNS = 64  # … after waits in vain, this number doubles up to here
CHANCE = 5  # waits in vain in a row that count; after fewer, other workers may only have been faster
STREAM_S = 0.01  # the longest gap between turns in a row
LEAST_S = 0.001  # the shortest wait: the jobs that come in this time share one turn
LONGEST_S = 0.01  # the longest wait; in between, twice the duration of a turn: a slow store's turns are expensive


class BatchSize:
    """Double the number of jobs after each full batch of small ones, and halve it after a batch that took long.

    Starting with one keeps a job from waiting behind a long one. Without batches a no-op function costs twice as much
    CPU time.
    """

    def __init__(self) -> None:
        self.limit = 1

    def adapt(self, claimed: int, *, small: bool, took_s: float) -> None:
        if took_s >= BATCH_S:
            self.limit = max(1, self.limit // 2)
        elif small and claimed == self.limit:
            self.limit = min(2 * self.limit, BATCH)

    def reset(self) -> None:
        """Start again with one: jobs had to be handed back."""
        self.limit = 1


class BatchWait:
    """Wait for more small jobs in a stream of jobs, where each turn with few jobs is expensive.

    The wait is never longer than twice what the last turn took, so a fast store is asked at once. A wait that did not
    bring two jobs is not soon repeated: a submitter may send one job after the other, each when the last is done.
    Without it a stream of small jobs costs 7 % more CPU time, on files and on Redis (medians of 20 pairs).
    [test_a_client_that_waits_for_each_result_is_not_delayed]
    """

    def __init__(self) -> None:
        self._over_s = 0.0  # when the last turn that found something was over
        self._asked_s = 0.0  # how long the store took for it
        self._streak = 0  # turns in a row that found something
        self._enough = STREAM  # a longer streak is a stream
        self._waited = False  # before this turn
        self._in_vain = 0  # waits in a row that brought no two jobs

    def begin(self, now_s: float, number: int) -> None:
        """Begin a turn with `number` jobs."""
        if self._waited:
            self._waited = False
            self._in_vain = self._in_vain + 1 if number < 2 else 0
            if self._in_vain >= CHANCE:
                self._enough = min(2 * self._enough, MOST_TURNS)
                self._streak = 0
            else:
                self._enough = STREAM
        # A claim right after a commit often comes a moment too early; finding nothing is then no gap.
        if number and now_s - self._over_s < STREAM_S:
            self._streak += 1
        elif number:
            self._streak = 1

    def wait_s(self, took_s: float) -> float:
        """Return how long to wait for more jobs before the commit of a turn that took `took_s`; 0 outside a stream."""
        if self._streak <= self._enough:
            return 0.0
        self._waited = True
        return min(max(LEAST_S, 2 * (took_s + self._asked_s)), LONGEST_S)

    def end(self, began_s: float, now_s: float) -> None:
        """Record that the turn's jobs are committed, by a request that began at `began_s`."""
        self._asked_s, self._over_s = now_s - began_s, now_s
