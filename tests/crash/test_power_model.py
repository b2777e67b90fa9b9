"""Cut the power on the model of a disk (RELIABILITY 21): every acknowledgement holds afterwards, and nothing is torn.

test_power_can_fail proves that this suite can fail.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crash import powerplays
from crash.powermodel import EVERYTHING, Order, State, states
from crash.powerplays import PLAYS, Play, Recorded, check, record
from crash.tally import add_figure
from farro.jobs.states import Reason
from support import torture

Played = Callable[[Play], None]

STATES_A_PLAY = 20_000 if torture() else 320  # at most; the short plays have fewer
FEWEST = 60  # states of a play; a long play has one for each cut
RANDOMS_A_CUT = 600 if torture() else 3
ROUNDS = max(torture(), 1)  # each with its own random seed
FIGURE = "power-loss states, model"


def judge_all(recorded: Recorded, folder: Path, limit: int, found: Iterator[State]) -> int:
    count = 0
    for state in itertools.islice(found, limit):
        check(state, recorded, str(folder / f"state-{os.getpid()}"))
        count += 1
    return count


@pytest.mark.parametrize("turn", range(ROUNDS))
@pytest.mark.parametrize("journal", [False, True], ids=["careful", "journal"])
@pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.__name__)
def test_power_cut_keeps_what_was_acknowledged(play: Played, journal: bool, turn: int, shm: Path) -> None:
    """Cut after every call of every play, on a disk weaker than any that farro supports."""
    recorded = record(play, str(shm / "root"), journal=journal)
    there = len(recorded.log.entries)
    limit = STATES_A_PLAY if torture() else min(STATES_A_PLAY, max(FEWEST, there))
    # In random order, so that a long play is not only cut at its beginning.
    cuts = random.Random(turn).sample(range(there + 1), there + 1)
    found = states(recorded.log, seed=21 + turn, randoms=RANDOMS_A_CUT, cuts=cuts)
    # A cut that loses nothing equals a kill, which other suites cover: play only a few of them.
    few = (state for state in found if torture() or state.cut % 4 == 0 or not state.story.endswith(EVERYTHING))
    count = judge_all(recorded, shm, limit, few)
    assert count >= FEWEST
    if turn == 0:  # later rounds meet some of the same states again
        add_figure(FIGURE, count, "states")


# Plays in which nothing else is in flight while something is acknowledged.
QUIET = tuple(play for play in PLAYS if play.__name__ not in ("operated", "unroutable", "slots", "recommitted"))


@pytest.mark.parametrize("play", QUIET, ids=lambda play: play.__name__)
def test_power_cut_after_an_acknowledgement_on_a_disk_without_order(play: Played, shm: Path) -> None:
    """An acknowledgement holds even on a disk that may lose a folder's creation after a sync inside it."""
    recorded = record(play, str(shm / "root"))
    found = states(recorded.log, seed=22, randoms=RANDOMS_A_CUT, order=Order.PLACELESS, cuts=recorded.log.told())
    assert judge_all(recorded, shm, STATES_A_PLAY, found) >= 1


@pytest.mark.parametrize("play", [powerplays.minted, powerplays.chosen, powerplays.resubmitted, powerplays.many])
def test_power_cut_after_enqueue(play: Played, shm: Path) -> None:
    """Enqueueing holds on a disk without order at every call, not only at its acknowledgement."""
    recorded = record(play, str(shm / "root"))
    found = states(recorded.log, seed=23, randoms=RANDOMS_A_CUT, order=Order.PLACELESS)
    assert judge_all(recorded, shm, STATES_A_PLAY // 2 if torture() else FEWEST, found) >= 50


def test_power_cut_during_a_claim_keeps_earlier_hops(shm: Path) -> None:
    """Check every state of every cut between the acknowledgements of the first and the second hop."""
    recorded = record(powerplays.routed, str(shm / "root"))
    _, routed, committed = recorded.log.told()
    told = recorded.log.entries[routed - 1].ack  # type: ignore[union-attr]
    assert told.reason is Reason.ROUTED
    found = states(recorded.log, seed=24, randoms=RANDOMS_A_CUT, cuts=range(routed, committed))
    assert judge_all(recorded, shm, 10 * STATES_A_PLAY, found) >= 200
