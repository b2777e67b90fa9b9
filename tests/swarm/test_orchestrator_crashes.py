"""An orchestrator that is killed at every call that changes the disk: commands still end once, and nothing is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from crash import seams
from farro.swarm import views
from farro.swarm.requests import CommandReceipt
from farro.swarm.wire.names import Signal
from stage import Crash
from support import torture
from swarm.fake_cluster import PLAN, SWARM, FakeCluster

KEY = "6b1f1c0e-3f0b-4a53-9d5e-0a8f7a8b3c11"
ABOUT = {"role": "generator", "instance": "demo-generator"}


async def _asked(cluster: FakeCluster) -> list[CommandReceipt]:
    """Request a whole lifecycle in two parts, the second when the swarm works."""
    first = [
        cluster.ask(Signal.CREATE),
        cluster.ask(Signal.TEMPLATE, args=PLAN),
        cluster.ask(Signal.START, idempotency_key=KEY),
    ]
    return [*first, cluster.ask(Signal.START, idempotency_key=KEY)]


def _more(cluster: FakeCluster) -> list[CommandReceipt]:
    config = cluster.ask(Signal.CONFIG, SWARM, args={"enabled": False}, **ABOUT)
    return [config, cluster.ask(Signal.STOP), cluster.ask(Signal.REMOVE)]


async def _life(cluster: FakeCluster, seam: seams.Seam) -> bool:
    """Run an orchestrator until all is done or it is killed. Return whether it was not killed."""
    try:
        with seams.placed(seam):
            await cluster.begin()
            await cluster.settle()
    except Crash:
        return False
    return True


async def _play(folder: Path, seam: seams.Seam, part: int) -> FakeCluster:
    """The seam is in place during one part; the orchestrators after it are undisturbed."""
    cluster = FakeCluster(folder)
    asked = await _asked(cluster)
    if part == 1:
        await _life(cluster, seam)
        await _life(cluster, seams.Open())
    else:
        await _life(cluster, seams.Open())
        asked += _more(cluster)
        await _life(cluster, seam)
        await _life(cluster, seams.Open())
    if part == 1:
        asked += _more(cluster)
        await _life(cluster, seams.Open())
    for one in asked:
        (found,) = cluster.confirmations(one)
        assert found[0].startswith("ev.ready."), found
        assert cluster.ended(one).result == "success"
    assert views.swarm(cluster.files.folder, SWARM, cluster.clock).state == "Removed"
    assert cluster.controllers.list() == []
    assert cluster.files.pending_requests() == []
    assert cluster.violations() == []
    return cluster


def _calls(folder: Path, part: int) -> int:
    counting = seams.Counting()
    asyncio.run(_play(folder, counting, part))
    return counting.count


@pytest.mark.parametrize("how", ["before", "after", "torn"])
@pytest.mark.parametrize("part", [1, 2])
def test_an_orchestrator_killed_between_any_two_steps_confirms_once(shm: Path, part: int, how: str) -> None:
    total = _calls(shm / "whole", part)
    assert total > 40
    # Each place with one of the three ways to die; all of them where there is time.
    step, shift = (1, 0) if torture() else (3, ["before", "after", "torn"].index(how))
    for number in range(1 + shift, total + 1, step):
        kill = seams.KillAt(number, after=how == "after", torn=how == "torn")
        try:
            asyncio.run(_play(shm / f"at{number}", kill, part))
        except Exception as error:
            raise AssertionError(f"killed {how} call {number} of {total} ({kill.op}): {error}") from error
        assert kill.dead


def test_requests_are_carried_out_in_order_by_the_next_orchestrator(shm: Path) -> None:
    async def act() -> None:
        cluster = FakeCluster(shm)
        asked = await _asked(cluster)  # no orchestrator runs yet
        assert len(cluster.files.pending_requests()) == 4
        assert await _life(cluster, seams.Open())
        assert [cluster.ended(one).state for one in asked] == ["Creating", "Ready", "Running", "Running"]

    asyncio.run(act())
