"""Fixtures of the contract suites: every adapter of the port in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from contracts.adapters import Adapter, Files, make_adapter

ADAPTERS = {
    "memory": "memory",
    "files[power]": "power",
    "files[journal]": "journal",
    "files[process]": "process",
    "redis": "redis",
    "sqlite": "sqlite",
}


@pytest.fixture(params=list(ADAPTERS))
def kit(request: pytest.FixtureRequest, shm: Path) -> Iterator[Adapter]:
    with closing(opened(request, shm)) as made:
        yield made


def opened(request: pytest.FixtureRequest, shm: Path) -> Adapter:
    kind = ADAPTERS[request.param]
    server = request.getfixturevalue("redis_server") if kind == "redis" else None
    return make_adapter(kind, str(shm / "root"), server)


@pytest.fixture(params=["files[power]", "files[journal]"])
def files(request: pytest.FixtureRequest, shm: Path) -> Iterator[Files]:
    """The file store alone, for tests of folders and leases."""
    made = make_adapter(ADAPTERS[request.param], str(shm / "root"))
    assert isinstance(made, Files)
    yield made
    made.close()
