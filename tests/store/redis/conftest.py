"""Fixtures of the Redis suite: each test gets a rig with its own key space on one shared server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from redis_rig import Rig
from servers import RedisServer


@pytest.fixture
def rig(redis_server: RedisServer, shm: Path) -> Iterator[Rig]:
    made = Rig(shm, redis_server.url)
    yield made
    made.close()
