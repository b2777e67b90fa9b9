"""Add up figures over many parametrized tests in several processes.

The runner (scripts/suites.py) prints them; for a name that is written twice it keeps the last value.
"""

from __future__ import annotations

import fcntl
import json
import os

from support import write_figure


def add_figure(name: str, value: int, unit: str) -> None:
    """Add `value` to the figure `name` of this run; do nothing in a run without figures."""
    path = os.environ.get("FARRO_FIGURES")
    if not path:
        return
    with open(path, "a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # no other process may write between our read and our write
        file.seek(0)
        known = [json.loads(line) for line in file if line.endswith("\n")]
        so_far = next((item["value"] for item in reversed(known) if item.get("name") == name), 0)
        write_figure(name, so_far + value, unit)
