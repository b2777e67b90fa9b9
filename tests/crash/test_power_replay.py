"""Cut the power on real filesystems (RELIABILITY 21): replay block writes up to a flush, and any subset of later ones.

Needs root, loop devices, FUSE and mfusepy.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from crash import blocklog
from crash.tally import add_figure
from support import torture

STATES = {"ext4": 100, "xfs": 30, "btrfs": 40}
BESIDE_A_NEIGHBOUR = {"ext4": 30, "btrfs": 120}
LONG = 700  # states in the long form, for each of its rounds
ROUNDS = 3 * torture() or 1


def replayed(kind: str, shm: Path, states: int, turn: int, *more: str) -> None:
    blocklog.able(kind)
    states = LONG if torture() else states
    arguments = [kind, "--states", str(states), "--seed", str(turn + 1), *more]
    found = blocklog.in_namespace(arguments, folder=str(shm), timeout_s=120 + states)
    assert found["broken"] == [], "\n".join(found["broken"])
    assert found["flushes"] >= 100, f"the flushes did not reach the log: {found}"
    assert found["states"] >= states / 2, found
    add_figure(f"power-loss states, replayed {kind} block writes", found["states"], "states")


@pytest.mark.linux
@pytest.mark.parametrize("turn", range(ROUNDS))
@pytest.mark.parametrize("kind", sorted(STATES))
def test_power_cut_on_a_real_filesystem(kind: str, turn: int, shm: Path) -> None:
    replayed(kind, shm, STATES[kind], turn)


@pytest.mark.linux
@pytest.mark.parametrize("turn", range(ROUNDS))
@pytest.mark.parametrize("kind", sorted(BESIDE_A_NEIGHBOUR))
def test_syncs_of_another_process_expose_no_half_transaction(kind: str, turn: int, shm: Path) -> None:
    """Another process syncs after each of our calls. btrfs, which logs single inodes, once kept a decision and lost the
    claim before it: the finished job stayed in a queue, and no worker claimed it."""
    replayed(kind, shm, BESIDE_A_NEIGHBOUR[kind], turn, "--neighbour")
