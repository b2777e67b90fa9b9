"""Run one command in this terminal: it shares our output, receives Ctrl-C, and its whole process tree ends with it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from farro.host import fs
from farro.host.process_tree import GRACE_S, MARKER, end_marked

TIMED_OUT = 124  # the exit code of timeout(1)


def run(
    argv: Sequence[str],
    *,
    executable: str | None,
    stdin: str | None,
    stdout: int | None,
    cwd: str,
    env: Mapping[str, str],
    timeout_s: float,
    grace_s: float = GRACE_S,
) -> int:
    """Return the exit code as a shell reports it; 124 after a timeout: SIGTERM to the tree, `grace_s`, SIGKILL.

    `stdin` is a file; None is empty input. `stdout` replaces our own. Raises OSError if the command cannot be started.
    """
    marker = f"here-{os.getpid()}-{os.urandom(8).hex()}"
    source = subprocess.DEVNULL if stdin is None else fs.open_read(stdin)
    try:
        process = subprocess.Popen(
            argv, executable=executable, stdin=source, stdout=stdout, cwd=cwd, env={**env, MARKER: marker}
        )
    finally:
        if stdin is not None:
            os.close(source)
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        end_marked(marker, grace_s=grace_s)
        process.wait()
        return TIMED_OUT
    except BaseException:  # Ctrl-C: the command received it too; end what is left of its tree
        end_marked(marker, grace_s=1.0)
        process.wait()
        raise
    end_marked(marker, grace_s=1.0)
    return 128 - code if code < 0 else code
