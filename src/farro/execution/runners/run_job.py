"""Run one attempt of one job in a runner process: a fork of a worker's template, or `farro run-job`.

Reads its order and the worker's messages from standard input, runs the plan, leaves the outcome in the attempt's folder
and exits. Only the worker claims, heartbeats and commits.

The worker's end of standard input closes when the worker dies. Then no process waits for this job any more, and another
worker will get it: the runner ends what it started and itself. One that cannot (a tool holds the interpreter in C) is
ended by recovery, by the marker in its environment, before any other worker gets the job (R6, RELIABILITY 23).
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from typing import BinaryIO

from farro.errors import SyncFailed
from farro.execution.runner import Work
from farro.execution.runners import hand_off, limits
from farro.execution.runners.hand_off import RunnerOrder
from farro.execution.stop import Stop
from farro.execution.tools import Tools
from farro.execution.work import PlanCache, perform_work
from farro.host import leases, process_limits, process_tree
from farro.host.clock import SystemClock
from farro.jobs.outcomes import Failed, Outcome

ORPHANED = 3  # the exit code of a runner whose worker died

_USAGE = "farro: run-job is started by a worker whose runner is `process`, never by hand\n"


def main() -> int:
    """Return the exit code; 0: the outcome was left."""
    if sys.stdin is None or sys.stdin.isatty():
        sys.stderr.write(_USAGE)
        return 2
    faulthandler.enable()  # a crash prints where it was
    control = _take_stdin()
    line = control.readline()
    if not line.endswith(b"\n"):
        sys.stderr.write(_USAGE)
        return 2
    order = RunnerOrder.from_line(line)
    if order.place_fd is not None:
        leases.adopt(order.place_fd)
    process_tree.adopt_orphans()
    process_limits.limit_self(order.limits)
    stop = Stop(SystemClock())
    threading.Thread(target=listen, args=(control, stop, order.work.marker), name="control", daemon=True).start()
    came = outcome(order, stop)
    process_limits.lift_file_size()
    hand_off.leave(order.work.folder, came)
    return 0


def warm_up() -> None:
    """Load what every job needs, in a template: also what its first plan would build. It runs no job."""
    prompt = {"plan_id": "none", "steps": [{"step_number": 1, "command": "true"}]}
    PlanCache().of(prompt)
    work = Work(job_id="none", prompt=prompt, folder="", marker="", env={}, cwd="", root="", step_timeout_s=1.0)
    RunnerOrder.from_line(RunnerOrder(work=work, tools={}, limits=process_limits.ProcessLimits()).to_line())


def end(code: int) -> None:
    """Exit without waiting for threads that a tool left behind."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)


def outcome(order: RunnerOrder, stop: Stop) -> Outcome | SyncFailed:
    """Perform the order's work."""
    try:
        came = perform_work(
            order.work, plans=PlanCache(), tools=Tools(order.tools), clock=SystemClock(), tick=lambda: None, stop=stop
        )
    except SyncFailed as lied:
        return lied
    return limits.named(came, order.limits) if isinstance(came, Failed) else came


def listen(control: BinaryIO, stop: Stop, marker: str) -> None:
    """Handle the worker's messages until its end of the pipe closes."""
    for line in control:
        if line.startswith(b"stop "):
            stop.request(float(line[5:]))
    stop.request(0.0)  # no more steps are started
    process_tree.end_marked(marker)
    os._exit(ORPHANED)


def _take_stdin() -> BinaryIO:
    """Take standard input over: a tool that reads its stdin must not read the worker's messages."""
    control = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)  # noqa: TID251 - no file of farro's
    os.dup2(nothing, 0)
    os.close(nothing)
    return os.fdopen(control, "rb")
