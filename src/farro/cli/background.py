"""Start one farro process from another."""

from __future__ import annotations

import os
import sys


def program() -> tuple[str, ...]:
    """Return the command that starts farro. -P: a `farro` in the working folder must not shadow this one."""
    return (os.path.abspath(sys.executable), "-P", "-m", "farro")
