"""A worker's slots ask for long time slices, what they start does not have them, and nobody's choice is overruled."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from farro.kernel.outcome import Outcome
from farro.ports.store import Claim
from farro.system import slices
from services.bench import Bench, Scripted, Turns, succeed
from support import eventually

# Older kernels take the wish and forget it: nothing must go wrong there, and nothing is won.
KEPT = tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 12)


def in_a_thread(call: Callable[[], int]) -> int:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(call).result()


def started_ns() -> int:
    """The slices of a program that this thread starts."""
    waits = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(waits, stdin=subprocess.PIPE) as process:
        return slices.length_ns(process.pid)


def test_a_thread_takes_long_slices_and_no_other_has_them() -> None:
    def taken() -> int:
        slices.take_long()
        return slices.length_ns()

    before = slices.length_ns()
    assert in_a_thread(taken) == (slices.LONG_NS if KEPT else before)
    assert slices.length_ns() == before < slices.LONG_NS


def test_a_policy_that_somebody_chose_is_left() -> None:
    def batch() -> int:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        slices.take_long()
        assert os.sched_getscheduler(0) == os.SCHED_BATCH
        return slices.length_ns()

    assert in_a_thread(batch) < slices.LONG_NS


def test_a_thread_that_is_gone_has_none() -> None:
    gone = in_a_thread(threading.get_native_id)
    # It is joined when Python is done with it, a moment before the kernel is.
    eventually(lambda: slices.length_ns(gone) == 0)


def test_a_program_that_a_worker_starts_has_ordinary_slices(bench: Bench) -> None:
    found: list[tuple[int, int]] = []

    def look(claim: Claim) -> Outcome:
        found.append((slices.length_ns(), started_ns()))
        return succeed(claim)

    bench.enqueue("one")
    bench.worker(Scripted(look), slots=1, until=Turns(1)).run()
    assert found == [(slices.LONG_NS, slices.length_ns())] if KEPT else len(found) == 1
