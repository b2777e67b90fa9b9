"""Wait in a test for what happens at once on a quiet machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 90.0  # never asserted, only waited for
T = TypeVar("T")


def eventually(what: Callable[[], T], because: str = "it does not come to that", patience_s: float = PATIENCE_S) -> T:
    """Wait until `what` returns a true value, and return it; fail with `because` after a timeout."""
    until_s = time.monotonic() + patience_s
    while not (found := what()):
        assert time.monotonic() < until_s, because
        time.sleep(0.01)
    return found
