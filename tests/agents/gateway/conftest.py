from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.gateway.gateway_rig import KEY, LOGIN, Runs
from farro.agents.gateway.gateway import Gateway
from model_server import ModelServer


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(keys={KEY, LOGIN}) as models:
        yield models


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    gateway = Gateway()
    opened = Runs(gateway, tmp_path)
    yield opened
    opened.close()
    gateway.close()
