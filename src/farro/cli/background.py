"""How farro starts another farro. What is started so lives in up, demo and the commands of swarms."""

from __future__ import annotations

import os
import sys


def program() -> tuple[str, ...]:
    """How farro is started here. -P: the folder that it starts in must not shadow it, should it hold a farro."""
    return (os.path.abspath(sys.executable), "-P", "-m", "farro")
