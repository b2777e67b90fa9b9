"""A bench on every store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.adapters import make_adapter
from worker.bench import Bench


@pytest.fixture(params=["memory", "process"], ids=["memory", "files"])
def bench(request: pytest.FixtureRequest, shm: Path) -> Iterator[Bench]:
    kit = make_adapter(request.param, str(shm / "root"))
    made = Bench(kit)
    yield made
    kit.close()
    made.stop.close()


@pytest.fixture
def files(shm: Path) -> Iterator[Bench]:
    """The file store alone: for performers that write into the attempt's folder."""
    kit = make_adapter("process", str(shm / "root"))
    made = Bench(kit)
    yield made
    kit.close()
    made.stop.close()
