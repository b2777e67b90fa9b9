"""A producer that knows nothing of farro: redis-py pushes the memo's jobs to `farro agq`. Workers: `agw` processes."""

from __future__ import annotations

import itertools
import json
import os
import time

import redis

from bench import gear

STEPS = [{"step_number": 1, "tool": "noop", "command": "noop"}]


def main() -> None:
    host, _, port = os.environ["BENCH_AGQ"].rpartition(":")
    client = redis.Redis(host=host, port=int(port))
    born, numbers = time.time_ns(), itertools.count()

    def push(number: int) -> None:
        job = {"id": f"bench-{born}-{next(numbers)}", "plan_id": "bench", "steps": STEPS}
        client.lpush("queue:ready", json.dumps(job))

    gear.drive(push)


if __name__ == "__main__":
    main()
