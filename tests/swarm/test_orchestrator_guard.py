"""An orchestrator under its controllers' care: launched again when it died, left alone when it was stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from farro.host.clock import ManualClock
from farro.swarm import orchestrator_process, requests
from farro.swarm.controller.orchestrator_guard import LOOK_S, Guard
from farro.swarm.files import ORCHESTRATOR
from farro.worker.runtime import Component
from swarm.fake_cluster import MemoryBus, Puppets


class Play:
    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.runtime = Puppets(MemoryBus(), self.clock)
        self.wanted: Component = orchestrator_process.component(str(folder), ("farro",), {})
        self.logged: list[str] = []
        log: Callable[..., None] = lambda level, message, fields: self.logged.append(message)  # noqa: E731
        self.guard = Guard(self.runtime, self.wanted, f"{folder}/swarms", self.clock, log)

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.advance(LOOK_S)
            self.guard.look()


@pytest.fixture
def play(shm: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    made = Play(shm)
    monkeypatch.setattr(requests, "running", lambda place: bool(made.runtime.alive.get(ORCHESTRATOR)))
    return made


def test_an_orchestrator_that_died_is_launched_again(play: Play) -> None:
    play.runtime.launch(play.wanted)
    play.look(3)
    assert play.runtime.launched == [ORCHESTRATOR]
    play.runtime.alive[ORCHESTRATOR] = False
    play.look()
    assert play.runtime.launched == [ORCHESTRATOR]  # perhaps somebody just stops it
    play.look()
    assert play.runtime.launched == [ORCHESTRATOR] * 2
    assert play.logged == ["the orchestrator died, and was launched again"]


def test_an_orchestrator_that_was_stopped_stays_so(play: Play) -> None:
    play.look(5)
    play.runtime.launch(play.wanted)
    play.runtime.stop([ORCHESTRATOR])
    play.look(5)
    assert play.runtime.launched == [ORCHESTRATOR]


def test_one_that_dies_again_and_again_is_launched_more_and_more_rarely(play: Play) -> None:
    play.runtime.launch(play.wanted)
    for _ in range(720):  # an hour
        play.runtime.alive[ORCHESTRATOR] = False
        play.look()
    assert 10 < len(play.runtime.launched) < 25
