"""The bench fixture, which checks after every test that no process is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from execution.bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    assert bench.living() == []  # in every case, no process of the attempt is left
    bench.stop.close()
