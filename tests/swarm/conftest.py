"""Fixtures of the tests of swarms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from servers import RabbitServer
from swarm import fake_cluster
from swarm.swarm_under_test import Act, Play, run_test


@pytest.fixture(params=["files", "amqp"])
def play(request: pytest.FixtureRequest, tmp_path: Path, shm: Path) -> Play:
    """Run a test on each bus."""
    server: RabbitServer | None = request.getfixturevalue("rabbit_server") if request.param == "amqp" else None

    def run(act: Act) -> None:
        run_test(act, f"files:{shm}" if server is None else server.url, tmp_path)

    return run


@pytest.fixture
def run_in_cluster(shm: Path) -> Callable[[fake_cluster.Act], None]:
    """Run a test with an orchestrator without processes and without waiting."""
    return lambda act: fake_cluster.run_in_cluster(act, shm)
