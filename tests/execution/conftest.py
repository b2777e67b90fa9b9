"""The bench of this room, and what holds after every test on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from execution.bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    assert bench.living() == []  # whatever happened: nothing of the attempt lives
    bench.stop.close()
