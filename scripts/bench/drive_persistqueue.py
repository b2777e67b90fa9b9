"""persist-queue: SQLiteAckQueue and FileQueue. Both are made for the threads of one process, so that is what they get.

Neither is safe with two consuming processes (an item is chosen and marked in two steps under a lock of the process),
and a blocked `get` is woken by its own process only. So producer and two worker threads share one process: `together`.

    python -m bench.drive_persistqueue together JOBS PICKUPS
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import Any

import persistqueue

from bench import gear

# `get` clears its event before it waits, and may miss a put in between: a short wait bounds what that costs it.
WAIT_S = 0.02
CLEAR_EVERY = 500  # acknowledged rows stay in the table, and each get passes over them, until they are cleared


class Acked:
    """SQLiteAckQueue: WAL, and SQLite's own default of synchronous=FULL."""

    def __init__(self, path: str) -> None:
        self.queue = persistqueue.SQLiteAckQueue(path, multithreading=True)
        self.done = 0

    def put(self, number: int) -> None:
        self.queue.put(number)

    def take(self) -> None:
        item = self.queue.get(timeout=WAIT_S, raw=True)
        gear.work()
        self.queue.ack(id=item["pqid"])
        self.done += 1
        if self.done % CLEAR_EVERY == 0:
            self.queue.clear_acked_data(max_delete=CLEAR_EVERY, keep_latest=0)


class Plain:
    """FileQueue: chunks of a hundred, the position saved after each job."""

    def __init__(self, path: str) -> None:
        self.queue = persistqueue.Queue(path)

    def put(self, number: int) -> None:
        self.queue.put(number)

    def take(self) -> None:
        self.queue.get(timeout=WAIT_S)
        gear.work()
        self.queue.task_done()


def worker(queue: Acked | Plain, stop: threading.Event) -> None:
    while not stop.is_set():
        with contextlib.suppress(persistqueue.Empty):
            queue.take()


def wait_for(jobs: int) -> None:
    while gear.ran(os.environ["BENCH_TALLY"]) < jobs:
        time.sleep(0.002)


def main() -> None:
    jobs, pickups = int(sys.argv[2]), int(sys.argv[3])
    queue = (Acked if gear.variant() == "ack" else Plain)(f"{gear.home()}/queue")
    stop = threading.Event()
    threads = [threading.Thread(target=worker, args=(queue, stop), daemon=True) for _ in range(2)]
    told: dict[str, Any] = {"enqueue": gear.enqueue(jobs, queue.put)}
    for thread in threads:
        thread.start()
    wait_for(jobs)
    told["pickup"] = gear.pickups(pickups, queue.put)
    before = gear.ran(os.environ["BENCH_TALLY"])
    told["end_to_end"] = gear.enqueue(jobs, queue.put)
    wait_for(before + jobs)
    stop.set()
    for thread in threads:
        thread.join()
    gear.answer(told)


if __name__ == "__main__":
    main()
