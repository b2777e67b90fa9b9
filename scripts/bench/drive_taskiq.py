"""taskiq on Redis streams (the broker of taskiq-redis that acknowledges). Workers: two processes."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from taskiq_redis import RedisStreamBroker

from bench import gear

broker = RedisStreamBroker(gear.redis_url())


@broker.task(task_name="noop")
async def noop(number: int) -> None:
    gear.work(number)


async def enqueue(jobs: int) -> dict[str, Any]:
    start_ns = time.monotonic_ns()
    for number in range(jobs):
        await noop.kiq(number)
    return {"start_ns": start_ns, "end_ns": time.monotonic_ns()}


async def pickups(jobs: int) -> dict[str, Any]:
    took_ns = []
    for number in range(jobs + gear.WARM_UP):
        before, start_ns = gear.pickup_start()
        await noop.kiq(number)
        while not gear.pickup_over(before):
            await asyncio.sleep(0.0005)
        took_ns.append(gear.pickup_ns(before, start_ns))
        await asyncio.sleep(gear.PAUSE_S)
    return {"pickup_ns": took_ns[gear.WARM_UP :]}


async def main() -> None:
    await broker.startup()
    jobs = int(sys.argv[2])
    gear.answer(await (enqueue(jobs) if sys.argv[1] == "enqueue" else pickups(jobs)))
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
