"""arq. Workers: two processes with its defaults (ten jobs at once in each); a job is read again if its worker dies."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from arq import create_pool, func
from arq.connections import RedisSettings
from arq.worker import run_worker

from bench import gear

SETTINGS = RedisSettings.from_dsn(gear.redis_url())


async def noop(context: Any, number: int) -> None:
    gear.work(number)


class Worker:
    functions = (func(noop, keep_result=0),)
    redis_settings = SETTINGS


async def produce() -> dict[str, Any]:
    pool = await create_pool(SETTINGS)
    command, jobs = sys.argv[1], int(sys.argv[2])
    if command == "enqueue":
        start_ns = time.monotonic_ns()
        for number in range(jobs):
            await pool.enqueue_job("noop", number)
        told: dict[str, Any] = {"start_ns": start_ns, "end_ns": time.monotonic_ns()}
    else:
        took_ns = []
        for number in range(jobs + gear.WARM_UP):
            before, start_ns = gear.pickup_start()
            await pool.enqueue_job("noop", number)
            while not gear.pickup_over(before):
                await asyncio.sleep(0.0005)
            took_ns.append(gear.pickup_ns(before, start_ns))
            await asyncio.sleep(gear.PAUSE_S)
        told = {"pickup_ns": took_ns[gear.WARM_UP :]}
    await pool.aclose()
    return told


def main() -> None:
    if sys.argv[1] == "worker":
        run_worker(Worker)  # type: ignore[arg-type]
    else:
        gear.answer(asyncio.run(produce()))


if __name__ == "__main__":
    main()
