"""Check that `farro --version` starts fast: it imports none of the slow libraries."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import runpy, sys
sys.argv = ["farro", "--version"]
code = 0
try:
    runpy.run_module("farro", run_name="__main__", alter_sys=True)
except SystemExit as end:
    code = end.code or 0
heavy = sorted({"pydantic", "click", "rich"} & set(sys.modules))
sys.exit(f"exit {code!r}, loaded {heavy}" if code or heavy else 0)
"""


def test_version_loads_no_heavy_library() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.strip().splitlines()[-1]


def test_version_is_the_packages_own() -> None:
    import farro

    command = [sys.executable, "-m", "farro", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.strip().splitlines()[-1]
    assert farro.__version__ in done.stdout
