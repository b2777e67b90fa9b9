"""Fixtures of the swarms' tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from servers import RabbitServer
from swarm import fake_cluster as courts
from swarm.hive import Act, Play, played


@pytest.fixture(params=["files", "amqp"])
def play(request: pytest.FixtureRequest, tmp_path: Path, shm: Path) -> Play:
    """Plays on each bus."""
    server: RabbitServer | None = request.getfixturevalue("rabbit_server") if request.param == "amqp" else None

    def run(act: Act) -> None:
        played(act, f"files:{shm}" if server is None else server.url, tmp_path)

    return run


@pytest.fixture
def court(shm: Path) -> Callable[[courts.Act], None]:
    """Holds court: an orchestrator without processes and without waiting."""
    return lambda act: courts.held(act, shm)
