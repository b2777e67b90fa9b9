"""Fixtures of the Redis suite: a rig on the server that all of them share, each in a key space of its own."""

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
