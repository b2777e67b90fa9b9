"""The slots of a worker take long time slices; their child processes do not, and a chosen policy is kept."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from farro.host import time_slices
from farro.jobs.outcomes import Outcome
from farro.store.port import Claim
from support import eventually
from worker.bench import Bench, Scripted, Turns, succeed

# Older kernels accept the request and ignore it: there it must have no effect and raise no error.
KEPT = tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 12)


def in_a_thread(call: Callable[[], int]) -> int:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(call).result()


def started_ns() -> int:
    """Return the time slice of a program that this thread starts."""
    waits = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(waits, stdin=subprocess.PIPE) as process:
        return time_slices.length_ns(process.pid)


def test_a_thread_takes_long_slices_and_no_other_has_them() -> None:
    def taken() -> int:
        time_slices.take_long()
        return time_slices.length_ns()

    before = time_slices.length_ns()
    assert in_a_thread(taken) == (time_slices.LONG_NS if KEPT else before)
    assert time_slices.length_ns() == before < time_slices.LONG_NS


def test_a_chosen_scheduling_policy_is_kept() -> None:
    def batch() -> int:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        time_slices.take_long()
        assert os.sched_getscheduler(0) == os.SCHED_BATCH
        return time_slices.length_ns()

    assert in_a_thread(batch) < time_slices.LONG_NS


def test_an_ended_thread_has_no_time_slice() -> None:
    gone = in_a_thread(threading.get_native_id)
    # Python joins the thread a moment before the kernel removes it.
    eventually(lambda: time_slices.length_ns(gone) == 0)


def test_a_program_that_a_worker_starts_has_ordinary_slices(bench: Bench) -> None:
    found: list[tuple[int, int]] = []

    def look(claim: Claim) -> Outcome:
        found.append((time_slices.length_ns(), started_ns()))
        return succeed(claim)

    bench.enqueue("one")
    bench.worker(Scripted(look), slots=1, until=Turns(1)).run()
    assert found == [(time_slices.LONG_NS, time_slices.length_ns())] if KEPT else len(found) == 1
