"""A Python tool in a process of its own: for a step with a timeout, because a thread cannot be ended by force.

Both sides of it are here: the command line that the worker starts, and what runs in the child.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from farro.execution.tools import Call, exit_code, load

# The child imports from where the worker does, whatever its cwd and PYTHONPATH are: -P, then the worker's own path.
_BOOT = "import json,sys;sys.path[:]=json.loads(sys.argv[1])['path'];from farro.execution.child import main;main()"


def command_line(reference: str, command: str, args: Sequence[str], attempt_dir: str) -> list[str]:
    """What to execute so that the function named by `reference` runs in a child."""
    spec = json.dumps({"reference": reference, "attempt_dir": attempt_dir, "path": sys.path})
    return [sys.executable, "-P", "-c", _BOOT, spec, command, *args]


def main() -> None:
    """Runs in the child: stdin, stdout and stderr are the step's files already."""
    spec = json.loads(sys.argv[1])
    call = Call(
        command=sys.argv[2],
        args=tuple(sys.argv[3:]),
        stdin=sys.stdin.buffer,
        stdout=sys.stdout.buffer,
        stderr=sys.stderr.buffer,
        env=dict(os.environ),
        cwd=os.getcwd(),
        job_id=os.environ.get("FARRO_JOB", ""),
        attempt_dir=spec["attempt_dir"],
    )
    sys.exit(exit_code(load(spec["reference"])(call)))
