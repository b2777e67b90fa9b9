"""Fixtures: a root with the program in it, and a screen that shows it."""

from __future__ import annotations

import pytest

from flows.program import Program
from flows.roots import empty, farro, fresh_root  # noqa: F401 - fixtures
from top_rig import Top


@pytest.fixture
def top(farro: Program) -> Top:  # noqa: F811
    return Top(farro)
