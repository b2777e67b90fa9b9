"""Fixtures: a root with the program in it, and the client of a coding agent."""

from __future__ import annotations

import pytest

from flows.program import Program
from flows.roots import empty, farro, fresh_root  # noqa: F401 - fixtures
from mcp_rig import Agent


@pytest.fixture
def agent(farro: Program) -> Agent:  # noqa: F811
    return Agent(farro)
