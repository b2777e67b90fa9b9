"""The code that every contestant shares: the job itself, and the loops of a producer.

It runs in the environment of each peer, so it imports the standard library only. It knows no queue.

A job is "no-op plus a time stamp": it appends 16 bytes (its start on CLOCK_MONOTONIC, which all processes share, and
the worker's pid) to the tally, a file in memory. That is one system call, the same for everyone; the coordinator reads
from it when a job started, how many have run, and that none ran twice.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

RECORD = struct.Struct("<qq")  # started_ns, pid
WARM_UP = 3  # the first pickups pay for connections and imports, and are not counted
HANG_S = 600.0
PAUSE_S = 0.02  # between two pickups: the workers are idle again

_tally: int | None = None


def work(number: int = 0, *, pid: int | None = None) -> None:
    """The job."""
    global _tally
    if _tally is None:
        _tally = os.open(os.environ["BENCH_TALLY"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
    os.write(_tally, RECORD.pack(time.monotonic_ns(), pid or os.getpid()))
    if "BENCH_HANG" in os.environ and ran(os.environ["BENCH_TALLY"]) == 1:
        time.sleep(HANG_S)  # the first run of the job whose worker will be killed


def tool(call: Any) -> None:
    """The job as farro's Python tool."""
    work()


def work_forked(number: int = 0) -> None:
    """The job for workers that run each job in a child process: the worker's pid is recorded."""
    work(pid=os.getppid())


def records(path: str, first: int = 0) -> list[tuple[int, int]]:
    """Return (started_ns, pid) of every job from number `first` on, in the order in which they ran."""
    try:
        with open(path, "rb") as file:
            file.seek(first * RECORD.size)
            data = file.read()
    except FileNotFoundError:
        return []
    return list(RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]))


def ran(path: str) -> int:
    """Return how many jobs have started."""
    try:
        return os.stat(path).st_size // RECORD.size
    except FileNotFoundError:
        return 0


def enqueue(count: int, put: Callable[[int], Any]) -> dict[str, Any]:
    """Enqueue one by one, each acknowledged before the next."""
    start_ns = time.monotonic_ns()
    for number in range(count):
        put(number)
    return {"start_ns": start_ns, "end_ns": time.monotonic_ns()}


def pickups(count: int, put: Callable[[int], Any]) -> dict[str, Any]:
    """Send one job at a time to idle workers; return nanoseconds from the start of the call to the start of the job."""
    took_ns = []
    for number in range(count + WARM_UP):
        before, start_ns = pickup_start()
        put(number)
        while not pickup_over(before):
            time.sleep(0.0005)
        took_ns.append(pickup_ns(before, start_ns))
        time.sleep(PAUSE_S)
    return {"pickup_ns": took_ns[WARM_UP:]}


def pickup_start() -> tuple[int, int]:
    return ran(os.environ["BENCH_TALLY"]), time.monotonic_ns()


def pickup_over(before: int) -> bool:
    return ran(os.environ["BENCH_TALLY"]) > before


def pickup_ns(before: int, start_ns: int) -> int:
    return records(os.environ["BENCH_TALLY"], before)[0][0] - start_ns


def drive(put: Callable[[int], Any]) -> None:
    """The command line of a producer: `enqueue N` or `pickup N`; its answer is one line of JSON."""
    command, count = sys.argv[1], int(sys.argv[2])
    loops: dict[str, Callable[[int, Callable[[int], Any]], dict[str, Any]]] = {"enqueue": enqueue, "pickup": pickups}
    answer(loops[command](count, put))


def answer(data: dict[str, Any]) -> None:
    print(json.dumps(data), flush=True)


def home() -> str:
    """Return the contestant's own new folder, on the filesystem that is measured."""
    return os.environ["BENCH_HOME"]


def variant() -> str:
    return os.environ.get("BENCH_VARIANT", "")


def redis_url() -> str:
    return os.environ["BENCH_REDIS"]
