"""Controllers guard their orchestrator: restarted when it died, left alone when it was stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from farro.host.clock import ManualClock
from farro.swarm import processes
from farro.swarm.files import ORCHESTRATOR
from farro.swarm.processes import GUARD_S, OrchestratorGuard
from farro.worker.runtime import ProcessSpec
from swarm.fake_cluster import FakeControllers, MemoryBus


class Play:
    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.runtime = FakeControllers(MemoryBus(), self.clock)
        self.wanted: ProcessSpec = processes.orchestrator_spec(str(folder), ("farro",), {})
        self.logged: list[str] = []
        log: Callable[..., None] = lambda level, message, fields: self.logged.append(message)  # noqa: E731
        self.guard = OrchestratorGuard(self.runtime, self.wanted, f"{folder}/swarms", self.clock, log)

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.advance(GUARD_S)
            self.guard.run_once()


@pytest.fixture
def play(shm: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    made = Play(shm)
    monkeypatch.setattr(processes, "orchestrator_runs", lambda files: bool(made.runtime.alive.get(ORCHESTRATOR)))
    return made


def test_an_orchestrator_that_died_is_launched_again(play: Play) -> None:
    play.runtime.launch(play.wanted)
    play.look(3)
    assert play.runtime.launched == [ORCHESTRATOR]
    play.runtime.alive[ORCHESTRATOR] = False
    play.look()
    assert play.runtime.launched == [ORCHESTRATOR]  # a command may be stopping it just now
    play.look()
    assert play.runtime.launched == [ORCHESTRATOR] * 2
    assert play.logged == ["the orchestrator died and was started again"]


def test_an_orchestrator_that_was_stopped_stays_so(play: Play) -> None:
    play.look(5)
    play.runtime.launch(play.wanted)
    play.runtime.stop([ORCHESTRATOR])
    play.look(5)
    assert play.runtime.launched == [ORCHESTRATOR]


def test_an_orchestrator_that_keeps_dying_is_restarted_less_and_less_often(play: Play) -> None:
    play.runtime.launch(play.wanted)
    for _ in range(720):  # an hour
        play.runtime.alive[ORCHESTRATOR] = False
        play.look()
    assert 10 < len(play.runtime.launched) < 25
