"""The transition table, exhaustively, against DESIGN §3.2 written out a second time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import product

import pytest

from farro.errors import IllegalTransition
from farro.jobs import moves, states
from farro.jobs.moves import Move
from farro.jobs.states import Reason, Status
from farro.jobs.times import timestamp

# DESIGN §3.2 with docs/decisions/a-persons-answer-is-a-transition.md, row by row: (from, to): reasons.
# Not generated from the code.
TABLE = {
    ("queued", "in_progress"): {"claimed"},
    ("in_progress", "succeeded"): {"committed", "force_completed"},
    ("in_progress", "failed"): {"committed"},
    ("in_progress", "queued"): {"routed", "retried", "released"},
    ("in_progress", "stale"): {"routing_exhausted", "agent_died"},
    ("queued", "queued"): {"answered", "rerouted", "resumed"},
    ("stale", "queued"): {"requeued", "rerouted"},
    ("stale", "killed"): {"gave_up", "killed"},
    ("failed", "queued"): {"requeued", "rerouted"},
    ("failed", "failed"): {"finalized"},
    ("failed", "killed"): {"gave_up", "killed"},
    ("queued", "killed"): {"killed", "migrated"},  # docs/decisions/attempt-files-travel-with-the-commit.md
    ("in_progress", "killed"): {"killed"},
    ("stale", "succeeded"): {"force_completed"},
    ("failed", "succeeded"): {"force_completed"},
}
NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)

EVERY = list(product(Status, Status, Reason, (False, True)))


def is_legal(before: str, after: str, reason: str, finalized: bool) -> bool:
    if before in ("succeeded", "killed") or (before == "failed" and finalized):
        return False
    return reason in TABLE.get((before, after), set())


def test_the_json_values_are_those_of_the_design() -> None:
    assert [str(status) for status in Status] == ["queued", "in_progress", "succeeded", "failed", "stale", "killed"]


def test_every_combination_is_judged_as_the_design_says() -> None:
    legal = 0
    for before, after, reason, finalized in EVERY:
        if is_legal(before, after, reason, finalized):
            states.check_transition("j", before, after, reason, finalized=finalized)
            legal += 1
        else:
            with pytest.raises(IllegalTransition):
                states.check_transition("j", before, after, reason, finalized=finalized)
    assert (len(EVERY), legal) == (1224, 46)


def test_moves_obey_the_table_and_an_illegal_one_changes_nothing() -> None:
    for before, after, reason, finalized in EVERY:
        if after is Status.IN_PROGRESS:
            continue  # a claim: the next test
        stamp = timestamp(NOW) if finalized else None
        lifecycle = replace(moves.enqueued(job_id="j", role="Runner", now=NOW), status=before, finalized_at=stamp)
        bytes_before = lifecycle.to_json()
        move = Move(reason=reason, status=after, role="Runner")
        if is_legal(before, after, reason, finalized):
            decided = moves.decided(lifecycle, move, by="a", attempt=1, now=NOW)
            assert decided.status is after
            assert decided.hops[-1].reason is reason
        else:
            with pytest.raises(IllegalTransition):
                moves.decided(lifecycle, move, by="a", attempt=1, now=NOW)
        assert lifecycle.to_json() == bytes_before


@pytest.mark.parametrize("before", Status)
@pytest.mark.parametrize("finalized", [False, True])
def test_only_a_queued_job_is_claimed(before: Status, finalized: bool) -> None:
    stamp = timestamp(NOW) if finalized else None
    lifecycle = replace(moves.enqueued(job_id="j", role="Runner", now=NOW), status=before, finalized_at=stamp)
    claim = {"agent": "a", "attempt": 1, "correlation_id": "c", "now": NOW}
    if before is Status.QUEUED:
        assert moves.claimed(lifecycle, **claim).status is Status.IN_PROGRESS  # type: ignore[arg-type]
    else:
        with pytest.raises(IllegalTransition, match=r"[Nn]othing was changed"):
            moves.claimed(lifecycle, **claim)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "finalized", "terminal"),
    [
        (Status.QUEUED, False, False),
        (Status.IN_PROGRESS, False, False),
        (Status.STALE, False, False),
        (Status.FAILED, False, False),
        (Status.FAILED, True, True),
        (Status.SUCCEEDED, True, True),
        (Status.SUCCEEDED, False, True),
        (Status.KILLED, True, True),
        (Status.KILLED, False, True),
    ],
)
def test_terminal_is_succeeded_killed_and_failed_once_finalized(
    status: Status, finalized: bool, terminal: bool
) -> None:
    assert states.is_terminal(status, finalized=finalized) is terminal


def test_a_refused_transition_names_the_job_and_the_next_step() -> None:
    with pytest.raises(IllegalTransition, match=r"job-7 is queued: it cannot become succeeded.*in_progress, killed"):
        states.check_transition("job-7", Status.QUEUED, Status.SUCCEEDED, Reason.FORCE_COMPLETED, finalized=False)
    with pytest.raises(IllegalTransition, match=r"job-7 is succeeded, and that is final.*farro retry job-7"):
        states.check_transition("job-7", Status.SUCCEEDED, Status.QUEUED, Reason.REQUEUED, finalized=True)


@pytest.mark.parametrize("text", ["in-progress", "in_progress"])
def test_the_seeds_spelling_of_in_progress_is_accepted(text: str) -> None:
    assert Status.parse(text) is Status.IN_PROGRESS
    assert str(Status.parse(text)) == "in_progress"
