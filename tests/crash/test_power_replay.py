"""Power cuts on real filesystems (RELIABILITY 21): block writes are replayed up to a flush, with any of those after it.

The disk that logs, and the images, live in blocklog. Needs root, loop devices, FUSE and mfusepy.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from crash import blocklog
from crash.tally import add_figure
from support import torture

STATES = {"ext4": 100, "xfs": 30, "btrfs": 40}
BESIDE_A_NEIGHBOUR = {"ext4": 30, "btrfs": 120}
LONG = 2_000  # states of each filesystem in the long form


def replayed(kind: str, shm: Path, states: int, *more: str) -> None:
    blocklog.able(kind)
    states = LONG * torture() if torture() else states
    found = blocklog.in_namespace([kind, "--states", str(states), *more], folder=str(shm), timeout_s=100 + states)
    assert found["broken"] == [], "\n".join(found["broken"])
    assert found["flushes"] >= 100, f"the flushes did not reach the log: {found}"
    assert found["states"] >= states / 2, found
    add_figure(f"power-loss states, replayed {kind} block writes", found["states"], "states")


@pytest.mark.linux
@pytest.mark.parametrize("kind", sorted(STATES))
def test_power_cut_on_a_real_filesystem(kind: str, shm: Path) -> None:
    replayed(kind, shm, STATES[kind])


@pytest.mark.linux
@pytest.mark.parametrize("kind", sorted(BESIDE_A_NEIGHBOUR))
def test_a_neighbours_syncs_show_no_half_transaction(kind: str, shm: Path) -> None:
    """Somebody else syncs after each of our calls. btrfs, which logs single inodes, once kept a decision and lost the
    claim before it: the finished job lay in a queue, and no worker took it."""
    replayed(kind, shm, BESIDE_A_NEIGHBOUR[kind], "--neighbour")
