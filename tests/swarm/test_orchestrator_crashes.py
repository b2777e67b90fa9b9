"""An orchestrator that is killed at every call that changes the disk: commands still end once, and nothing is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from crash import seams
from farro.swarm import requests
from farro.swarm.wire.names import Signal
from stage import Crash
from support import torture
from swarm.fake_cluster import PLAN, SWARM, Court

KEY = "6b1f1c0e-3f0b-4a53-9d5e-0a8f7a8b3c11"
ABOUT = {"role": "generator", "instance": "demo-generator"}


async def _asked(court: Court) -> list[requests.Asked]:
    """A whole life, asked for in two parts: the second when a swarm works."""
    first = [
        court.ask(Signal.CREATE),
        court.ask(Signal.TEMPLATE, args=PLAN),
        court.ask(Signal.START, idempotency_key=KEY),
    ]
    return [*first, court.ask(Signal.START, idempotency_key=KEY)]


def _more(court: Court) -> list[requests.Asked]:
    config = court.ask(Signal.CONFIG, SWARM, args={"enabled": False}, **ABOUT)
    return [config, court.ask(Signal.STOP), court.ask(Signal.REMOVE)]


async def _life(court: Court, seam: seams.Seam) -> bool:
    """One life of an orchestrator, which ends when all is done, or when it is killed; whether it was not."""
    try:
        with seams.placed(seam):
            await court.begin()
            await court.settle()
    except Crash:
        return False
    return True


async def _play(folder: Path, seam: seams.Seam, part: int) -> Court:
    """The seam is in place during one part; the lives after it are undisturbed."""
    court = Court(folder)
    asked = await _asked(court)
    if part == 1:
        await _life(court, seam)
        await _life(court, seams.Open())
    else:
        await _life(court, seams.Open())
        asked += _more(court)
        await _life(court, seam)
        await _life(court, seams.Open())
    if part == 1:
        asked += _more(court)
        await _life(court, seams.Open())
    for one in asked:
        (found,) = court.confirmations(one)
        assert found[0].startswith("ev.ready."), found
        assert court.ended(one).result == "success"
    assert requests.look(court.place.folder, SWARM, court.clock).state == "Removed"
    assert court.puppets.list() == []
    assert court.place.wished() == []
    assert court.violations() == []
    return court


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


def test_wishes_are_carried_out_in_their_order_by_whoever_comes(shm: Path) -> None:
    async def act() -> None:
        court = Court(shm)
        asked = await _asked(court)  # nobody lives yet
        assert len(court.place.wished()) == 4
        assert await _life(court, seams.Open())
        assert [court.ended(one).state for one in asked] == ["Creating", "Ready", "Running", "Running"]

    asyncio.run(act())
