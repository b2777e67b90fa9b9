"""Fixtures of the swarms' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from servers import RabbitServer
from swarms.hive import Act, Play, played


@pytest.fixture(params=["files", "amqp"])
def play(request: pytest.FixtureRequest, tmp_path: Path, shm: Path) -> Play:
    """Plays on each bus."""
    server: RabbitServer | None = request.getfixturevalue("rabbit_server") if request.param == "amqp" else None

    def run(act: Act) -> None:
        played(act, f"files:{shm}" if server is None else server.url, tmp_path)

    return run
