"""What the tests of this room share: a level that works here, or a loud skip."""

from __future__ import annotations

import pytest

from farro.guard.sandbox import Sandbox
from support import need


def working(level: str) -> Sandbox:
    sandbox = Sandbox.available(level)  # type: ignore[arg-type]
    need(sandbox.level == level, f"level {level} of the sandbox: {'; '.join(probe.why for probe in sandbox.probes)}")
    return sandbox


@pytest.fixture(params=["A", "B"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return working(request.param)


@pytest.fixture
def level_a() -> Sandbox:
    return working("A")
