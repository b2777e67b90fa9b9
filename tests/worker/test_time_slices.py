"""A worker's slots ask for long time slices, what they start does not have them, and nobody's choice is overruled."""

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

# Older kernels take the wish and forget it: nothing must go wrong there, and nothing is won.
KEPT = tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 12)


def in_a_thread(call: Callable[[], int]) -> int:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(call).result()


def started_ns() -> int:
    """The slices of a program that this thread starts."""
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


def test_a_policy_that_somebody_chose_is_left() -> None:
    def batch() -> int:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        time_slices.take_long()
        assert os.sched_getscheduler(0) == os.SCHED_BATCH
        return time_slices.length_ns()

    assert in_a_thread(batch) < time_slices.LONG_NS


def test_a_thread_that_is_gone_has_none() -> None:
    gone = in_a_thread(threading.get_native_id)
    # It is joined when Python is done with it, a moment before the kernel is.
    eventually(lambda: time_slices.length_ns(gone) == 0)


def test_a_program_that_a_worker_starts_has_ordinary_slices(bench: Bench) -> None:
    found: list[tuple[int, int]] = []

    def look(claim: Claim) -> Outcome:
        found.append((time_slices.length_ns(), started_ns()))
        return succeed(claim)

    bench.enqueue("one")
    bench.worker(Scripted(look), slots=1, until=Turns(1)).run()
    assert found == [(time_slices.LONG_NS, time_slices.length_ns())] if KEPT else len(found) == 1
