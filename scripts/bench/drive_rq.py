"""RQ. Workers: two SimpleWorker processes (no fork a job: its fastest), or the default ones (`fork`)."""

from __future__ import annotations

import sys

from redis import Redis
from rq import Queue, SimpleWorker, Worker

from bench import gear


def main() -> None:
    connection = Redis.from_url(gear.redis_url())
    forks = gear.variant() == "fork"
    queue = Queue("bench", connection=connection)
    if sys.argv[1] == "worker":
        kind = Worker if forks else SimpleWorker
        kind([queue], connection=connection).work(logging_level="WARNING")
    else:
        job = "bench.gear.work_forked" if forks else "bench.gear.work"
        gear.drive(lambda number: queue.enqueue(job, number))


if __name__ == "__main__":
    main()
