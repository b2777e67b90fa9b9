"""`make demo` runs: what it shows is what happened, and it leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support import ROOT


def test_the_demo_shows_work_a_failure_and_a_recovery_and_leaves_nothing(tmp_path: Path) -> None:
    farro = os.path.join(os.path.dirname(sys.executable), "farro")
    done = subprocess.run(
        ["bash", f"{ROOT}/scripts/demo.sh"],
        env={**os.environ, "FARRO": farro, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "200000\n199999\n199998" in done.stdout
    assert "halts-at-the-second (attempt 1): in_progress → failed" in done.stdout
    assert "stale            survivor" in done.stdout
    assert "I was killed, and here I am" in done.stdout
    assert "attempt 2  committed → agents/Runner/completed/succeeded" in done.stdout
    assert not list(tmp_path.iterdir())
