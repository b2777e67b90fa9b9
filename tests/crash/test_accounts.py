"""Kill the pause of an account at every call: what is read afterwards is the old state or the new one."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crash.seams import Counting, KillAt, placed
from crash.tally import add_figure
from farro.host import fs, leases
from farro.host.clock import ManualClock
from farro.store.files.accounts import FOLDER, FilesAccounts
from stage import Crash

BOTH = pytest.mark.parametrize("durable", [True, False], ids=["power", "process"])
Act = Callable[[FilesAccounts], object]


def opened(root: str, durable: bool = True) -> FilesAccounts:
    return FilesAccounts(root, ManualClock(), uniform=lambda low, high: low, durable=durable, boot_id="boot")


def pause(accounts: FilesAccounts, wait_s: float = 600.0) -> None:
    accounts.pause("claude", kind="limited", reason="too much", wait_s=wait_s)


def ways_to_die(folder: Path, prepare: Act, act: Act, durable: bool) -> Iterator[tuple[str, KillAt]]:
    """Kill `act` at every mutating call; yield the root after each kill, and the seam that killed it."""
    before, whole = str(folder / "before"), str(folder / "whole")
    os.makedirs(f"{before}/jobs")
    prepare(opened(before, durable))
    shutil.copytree(before, whole)
    with placed(Counting()) as calls:
        act(opened(whole, durable))
    seams = [KillAt(n, after=after) for n in range(1, calls.count + 1) for after in (False, True)]
    seams += [KillAt(n, torn=True) for n, op in enumerate(calls.ops, 1) if op == "write"]
    for number, seam in enumerate(seams):
        root = str(folder / str(number))
        shutil.copytree(before, root)
        held = set(leases._held)
        with placed(seam), contextlib.suppress(Crash):
            act(opened(root, durable))
        assert seam.dead
        assert leases._held == held, "a dead process holds no lock"
        yield root, seam
        shutil.rmtree(root)
    add_figure("kill points, accounts", len(seams), "points")


def left(root: str) -> list[float | None]:
    return [one.left_s for one in opened(root).paused()]


def leaves_no_debris(root: str) -> bool:
    return not [name for name in os.listdir(f"{root}/{FOLDER}") if name.startswith(fs.TEMPORARY)]


@BOTH
def test_kill_at_every_call_of_a_pause(shm: Path, durable: bool) -> None:
    """Row 37: a worker dies before it records the limit. The next one records it."""
    for root, seam in ways_to_die(shm, lambda accounts: None, pause, durable):
        assert left(root) in ([], [600.0]), f"TORN: {seam!r}"
        pause(opened(root, durable))
        assert left(root) == [600.0], f"{seam!r}"
        pause(opened(root, durable), 900.0)
        assert left(root) == [900.0], f"{seam!r}"
        assert leaves_no_debris(root), f"{seam!r}"


@BOTH
def test_kill_at_every_call_of_a_later_pause(shm: Path, durable: bool) -> None:
    def later(accounts: FilesAccounts) -> None:
        pause(accounts, 900.0)

    for root, seam in ways_to_die(shm, pause, later, durable):
        assert left(root) in ([600.0], [900.0]), f"TORN: {seam!r}"


@BOTH
def test_kill_at_every_call_of_a_resume(shm: Path, durable: bool) -> None:
    for root, seam in ways_to_die(shm, pause, lambda accounts: accounts.resume("claude"), durable):
        assert left(root) in ([], [600.0]), f"TORN: {seam!r}"
        opened(root, durable).resume("claude")
        assert left(root) == [], f"{seam!r}"
