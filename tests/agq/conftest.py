"""A RESP server for each test, and servers with other options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agq.stage import Front
from flows.roots import empty, farro, fresh_root  # noqa: F401 - fixtures


@pytest.fixture
def make_front(shm: Path) -> Iterator[Callable[..., Front]]:
    made: list[Front] = []

    def make(**options: Any) -> Front:
        made.append(Front(shm / f"root-{len(made)}", **options))
        return made[-1]

    yield make
    for front in made:
        front.close()


@pytest.fixture
def front(make_front: Callable[..., Front]) -> Front:
    return make_front()
