"""Fixtures: a web server for each test, and servers with other options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from http_stage import WebStage
from servers import RedisServer


@pytest.fixture
def make_front(shm: Path) -> Iterator[Callable[..., WebStage]]:
    made: list[WebStage] = []

    def make(name: str | None = None, **options: Any) -> WebStage:
        made.append(WebStage(shm / (name or f"root-{len(made)}"), **options))
        return made[-1]

    yield make
    for front in made:
        front.close()


@pytest.fixture
def front(make_front: Callable[..., WebStage]) -> WebStage:
    return make_front()


@pytest.fixture(params=["files", "redis"])
def any_front(request: pytest.FixtureRequest, make_front: Callable[..., WebStage], shm: Path) -> WebStage:
    if request.param == "files":
        return make_front()
    server: RedisServer = request.getfixturevalue("redis_server")
    return make_front(config_of={"store": server.url, "redis": {"name": f"web-{shm.name}"[:60]}})
