"""Processes that try to outlive their job: they leave its session and clear their environment."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from flows.program import Program, shell
from support import eventually

ESCAPE = "(setsid env -i sh -c 'echo $$ > {0}.tmp; mv {0}.tmp {0}; exec sleep 600' > /dev/null 2>&1 &); {1}"
THERE = "while [ ! -e pid ]; do sleep 0.02; done"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def escaped(farro: Program, name: str) -> int:
    path = farro.path / name
    eventually(path.exists, "the process did not start")
    return int(path.read_text())


def test_process_that_left_its_session_and_environment_ends_with_its_job(farro: Program) -> None:
    assert farro.run("run", "--", "sh", "-c", ESCAPE.format("pid", THERE), code=0)
    assert not alive(escaped(farro, "pid"))


def test_killed_job_leaves_no_escaped_process(farro: Program) -> None:
    farro.enqueue(shell(ESCAPE.format("pid", "sleep 600")), "--id", "k")
    farro.start("worker")
    pid = escaped(farro, "pid")
    farro.run("kill", "k", code=0)
    eventually(lambda: not alive(pid), "the process lives on")


def test_escaped_process_ends_only_when_no_other_job_runs(farro: Program) -> None:
    """It may belong to the other job, so it ends when that one does."""
    other = "echo $$ > other; while [ ! -e go ]; do sleep 0.02; done"
    farro.enqueue(shell(other), "--id", "other")
    farro.start("worker", "--workers", "2")
    escaped(farro, "other")
    farro.enqueue(shell(ESCAPE.format("pid", THERE)), "--id", "short")
    pid = escaped(farro, "pid")
    eventually(lambda: farro.status("short") == "succeeded")
    assert alive(pid)
    (farro.path / "go").touch()
    eventually(lambda: not alive(pid), "it outlived the last job")


def test_worker_that_inherited_children_ends_no_stray_process(farro: Program) -> None:
    """The start script of a container may start daemons and then `exec` the worker.

    They become the worker's children, and their orphans look like those of its steps.
    """
    farro.enqueue(shell(ESCAPE.format("pid", THERE)), "--id", "a")
    farro.enqueue(shell("true"), "--id", "b")
    script = 'setsid sleep 600 > /dev/null 2>&1 & echo $! > daemon; exec "$@"'
    farro.run("worker", "--drain", prefix=["sh", "-c", script, "sh"], code=0)
    assert (farro.status("a"), farro.status("b")) == ("succeeded", "succeeded")
    found = [escaped(farro, "daemon"), escaped(farro, "pid")]
    living = [alive(pid) for pid in found]
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert living == [True, True]
