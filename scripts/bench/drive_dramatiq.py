"""Dramatiq on Redis. Workers: two processes of eight threads each, its defaults."""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench import gear

broker = RedisBroker(url=gear.redis_url())
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="noop")
def noop(number: int) -> None:
    gear.work(number)


if __name__ == "__main__":
    gear.drive(noop.send)
