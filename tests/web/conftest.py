"""A front for each test, and fronts with other options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from http_stage import Front
from servers import RedisServer


@pytest.fixture
def make_front(shm: Path) -> Iterator[Callable[..., Front]]:
    made: list[Front] = []

    def make(name: str | None = None, **options: Any) -> Front:
        made.append(Front(shm / (name or f"root-{len(made)}"), **options))
        return made[-1]

    yield make
    for front in made:
        front.close()


@pytest.fixture
def front(make_front: Callable[..., Front]) -> Front:
    return make_front()


@pytest.fixture(params=["files", "redis"])
def any_front(request: pytest.FixtureRequest, make_front: Callable[..., Front], shm: Path) -> Front:
    if request.param == "files":
        return make_front()
    server: RedisServer = request.getfixturevalue("redis_server")
    return make_front(config_of={"store": server.url, "redis": {"name": f"web-{shm.name}"[:60]}})
