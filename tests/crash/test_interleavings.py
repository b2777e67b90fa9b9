"""Play workers, watchdogs, a manager, operators and submitters in every order with one preemption, and many others.

test_interleavings_can_fail.py proves that these tests can fail. RELIABILITY 2-7, 10-17, 19, 29, 30.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from crash.interleaved import SCENARIOS, Scenario, Stage, explore, play, replay
from crash.scheduler import Act, Preempting, Priorities, Random, Turns, theatre
from support import torture

pytestmark = pytest.mark.linux

PROMISED = 20_000  # the digest contains the scenario's name, so that no schedule counts twice


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name.replace(" ", "-"))
def test_no_interleaving_breaks_the_promise(
    scenario: Scenario, shm: Path, figure: Callable[..., None], testrun_uid: str
) -> None:
    more = torture()
    with theatre():
        explored = explore(
            scenario,
            str(shm),
            floor=scenario.schedules + 40_000 * more,
            sampled=40 + 20_000 * more,
            seeds=30 + 10_000 * more,
            systematic=scenario.small,
        )
    assert len(explored.distinct) >= scenario.schedules
    assert explored.kills
    tell(figure, testrun_uid, scenario.name, len(explored.distinct))


def test_the_scenarios_reach_the_promised_number_of_schedules() -> None:
    assert sum(scenario.schedules for scenario in SCENARIOS) >= PROMISED


def tell(figure: Callable[..., None], run: str, name: str, distinct: int) -> None:
    """Report the sum over all scenarios, which several processes play."""
    figures = os.environ.get("FARRO_FIGURES")
    if not figures:
        return
    path = os.path.join(os.path.dirname(figures), "interleavings.json")
    with open(path, "a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        known = {}
        with contextlib.suppress(ValueError):
            known = json.loads(file.read())
        if known.get("run") != run:
            known = {"run": run, "distinct": {}}
        known["distinct"][name] = distinct
        file.truncate(0)
        file.write(json.dumps(known))
        file.flush()
        figure("interleavings, distinct", sum(known["distinct"].values()), "schedules")


@pytest.mark.parametrize("seed", range(6))
def test_a_schedule_can_be_replayed(seed: int, shm: Path) -> None:
    """A printed schedule reproduces the same trace, so that a failure can be debugged."""
    kill = [(20 + seed, Act("kill"))]
    for scenario in (SCENARIOS[2], SCENARIOS[-1]):
        for number, strategy in enumerate(
            (Random(seed), Priorities(seed, 8, 100), Preempting(seed % 3, kill), Turns(1))
        ):
            with theatre():
                folder = shm / f"{scenario.name}-{number}"
                run = play(scenario, Stage(str(folder / "first"), scenario.roles), strategy)
            again = replay(scenario.name, run.schedule, str(folder))
            assert again.digest() == run.digest()
            assert again.schedule == run.schedule
