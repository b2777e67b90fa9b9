"""Fixtures of the sandbox tests: a sandbox level that works on this machine, or a skip with its reason."""

from __future__ import annotations

import pytest

from farro.sandbox.levels import Sandbox
from sandbox.hostile_stage import working


@pytest.fixture(params=["A", "B"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return working(request.param)


@pytest.fixture
def level_a() -> Sandbox:
    return working("A")


@pytest.fixture
def level_b() -> Sandbox:
    return working("B")
