"""The roots and the server that the jobs of real coding agents share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.agent_root import AgentRoot
from model_server.server import ModelServer
from real_agents.jobs import agent_root
from real_agents.user_root import UserRoot, public_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with public_folder() as made:
        yield made


@pytest.fixture
def server(folder: Path) -> Iterator[ModelServer]:
    with ModelServer(within=[str(folder)]) as models:
        yield models


@pytest.fixture
def own_root_of(folder: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a root that belongs to the user who runs the tests."""
    return lambda name, **changes: agent_root(folder / "root", name, server, monkeypatch, **changes)


@pytest.fixture
def user_root_of(own_root_of: Any) -> Any:
    """Make a root that belongs to an ordinary user."""
    return lambda name, **changes: own_root_of(name, kind=UserRoot if os.geteuid() == 0 else AgentRoot, **changes)
