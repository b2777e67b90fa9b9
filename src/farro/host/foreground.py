"""Runs one command in this terminal: its output is ours, Ctrl-C reaches it, and its whole tree ends with it.

Steps of a job run otherwise, from files into files and out of the terminal's reach (processes).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from farro.host import fs
from farro.host.process_tree import GRACE_S, MARKER, end_marked

TIMED_OUT = 124  # as timeout(1) says it


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
    """The exit code, as a shell says it; 124 when its time was over: SIGTERM to the whole tree, `grace_s`, SIGKILL.
    `stdin` is a file, None: nothing to read; `stdout` another descriptor than ours. OSError when it cannot be
    started."""
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
    except BaseException:  # Ctrl-C: it has had the signal too, and gets the rest of it here
        end_marked(marker, grace_s=1.0)
        process.wait()
        raise
    end_marked(marker, grace_s=1.0)
    return 128 - code if code < 0 else code
