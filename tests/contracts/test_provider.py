"""The contract of the Provider port, for providers over HTTP and from a file.

tests/agents/providers checks the wire formats, tests/agents/test_provider_calls.py the handling of errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.providers import STAGES
from farro.testing.provider import *  # noqa: F403 - the suite
from farro.testing.provider import ProviderStage


@pytest.fixture(params=list(STAGES))
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ProviderStage]:
    made = STAGES[request.param](tmp_path)
    yield made
    made.close()
