"""What runs in a runner: `farro run-job`, started by a worker for one attempt of one job.

Reads its order and the worker's word from standard input, runs the plan, leaves the outcome in the attempt's folder and
ends. It claims, heartbeats and commits nothing: that is the worker's (process.py).

The worker's end of standard input closes when the worker dies. Then nobody waits for this job any more, and soon it is
somebody else's: the runner ends what it started and itself. One that cannot (a tool holds the interpreter in C) is
ended by recovery, by the mark in its environment, before anyone else may have the job (R6, RELIABILITY 23).
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from typing import BinaryIO

from farro.errors import SyncFailed
from farro.execution.runners import hand_off, limits
from farro.execution.runners.hand_off import Order
from farro.execution.stop import Stop
from farro.execution.tools import Tools
from farro.execution.work import Plans, perform_work
from farro.host import leases, process_limits, processes
from farro.host.clock import SystemClock
from farro.jobs.outcomes import Failed, Outcome

ORPHANED = 3  # the exit code of a runner whose worker died

_USAGE = "farro: run-job is started by a worker whose runner is `process`, never by hand\n"


def main() -> int:
    """The exit code; 0: the outcome was left."""
    if sys.stdin is None or sys.stdin.isatty():
        sys.stderr.write(_USAGE)
        return 2
    faulthandler.enable()  # a crash says where it was
    control = _take_stdin()
    line = control.readline()
    if not line.endswith(b"\n"):
        sys.stderr.write(_USAGE)
        return 2
    order = Order.from_line(line)
    if order.place_fd is not None:
        leases.adopt(order.place_fd)
    processes.adopt_orphans()
    process_limits.limit_self(order.limits)
    stop = Stop(SystemClock())
    threading.Thread(target=listen, args=(control, stop, order.work.marker), name="control", daemon=True).start()
    came = outcome(order, stop)
    process_limits.lift_file_size()
    hand_off.leave(order.work.folder, came)
    return 0


def end(code: int) -> None:
    """Leave without waiting for threads that a tool left behind."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)


def outcome(order: Order, stop: Stop) -> Outcome | SyncFailed:
    try:
        came = perform_work(
            order.work, plans=Plans(), tools=Tools(order.tools), clock=SystemClock(), tick=lambda: None, stop=stop
        )
    except SyncFailed as lied:
        return lied
    return limits.named(came, order.limits) if isinstance(came, Failed) else came


def listen(control: BinaryIO, stop: Stop, marker: str) -> None:
    """The worker's word, until it is silent for good."""
    for line in control:
        if line.startswith(b"stop "):
            stop.request(float(line[5:]))
    stop.request(0.0)  # no further step is started
    processes.end_marked(marker)
    os._exit(ORPHANED)


def _take_stdin() -> BinaryIO:
    """Standard input for ourselves: a tool that reads its stdin must not read the worker's word."""
    control = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)  # noqa: TID251 - no file of farro's
    os.dup2(nothing, 0)
    os.close(nothing)
    return os.fdopen(control, "rb")
