"""Commands start fast: only the commands that use a slow library import it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from flows.program import Program, steps

LIBRARIES = ("pydantic", "rich", "ruamel", "psutil", "cronsim", "sortedcontainers")
SLOW = ("asyncio", "email", "difflib", "hashlib", "subprocess")  # of the standard library
SCRIPT = """
import atexit, sys
from farro.__main__ import main
atexit.register(lambda: print(*sorted({name.split(".")[0] for name in sys.modules}), file=sys.stderr))
main()
"""


@pytest.mark.parametrize(
    "command",
    [["ls", "--json"], ["enqueue", "-"], ["--help"], ["enqueue", "--help"], ["worker", "--drain"]],
    ids=" ".join,
)
def test_small_commands_load_no_heavy_library(farro: Program, command: list[str]) -> None:
    (farro.path / "agents-config.json").write_text(json.dumps({"runners": {"log_level": "info"}, "retry": {}}))
    farro.enqueue(steps(["true"]))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *command],
        cwd=farro.path,
        env=farro.env,
        input=json.dumps(steps(["true"])),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    loaded = done.stderr.split()
    assert "farro" in loaded
    assert ("click" in loaded) == (command[0] != "ls")
    heavy = LIBRARIES if command[0] == "worker" else LIBRARIES + SLOW
    assert not set(heavy) & set(loaded)
