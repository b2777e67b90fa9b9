"""A queue of aio-pika that hands on messages as they came, and is consumed again after a reconnect like any other.

What is done with them lives in amqp. aio-pika would wrap each in an object of forty members and give it a task of its
own: a tenth of what a message costs whoever hears hundreds a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aio_pika.robust_queue import RobustQueue


class PlainQueue(RobustQueue):
    """`callback` gets aiormq's message. aio-pika calls `consume` again, with the same arguments, on a new channel."""

    async def consume(
        self,
        callback: Callable[[Any], Any],  # a coroutine function of aiormq's message
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Any = None,
        consumer_tag: str | None = None,
        timeout: float | None = None,
        robust: bool = True,
    ) -> str:
        channel = await self.channel.get_underlay_channel()
        options: dict[str, Any] = {"no_ack": no_ack, "exclusive": exclusive, "arguments": arguments}
        told = await channel.basic_consume(self.name, callback, consumer_tag=consumer_tag, timeout=timeout, **options)
        assert told.consumer_tag is not None
        if robust:
            self._consumers[told.consumer_tag] = {"callback": callback, **options}
        return told.consumer_tag
