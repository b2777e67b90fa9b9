"""Fetch or build an engine by its script, once for all clones that share a cache."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

from support import ROOT, need


@functools.cache
def built(script: str, *arguments: str) -> Path:
    """Return the folder that a script of scripts/ fills, and skip the test with its last words if it could not."""
    done = subprocess.run(
        [Path(ROOT, "scripts", script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    need(done.returncode == 0, f"scripts/{' '.join((script, *arguments))} failed: {done.stderr[-2000:]}")
    return Path(done.stdout.splitlines()[-1])
