"""A queue of aio-pika that passes on raw messages, and is consumed again after a reconnect like any other.

aio-pika would wrap each message in a large object and start a task for it: a tenth of the cost of a message for a
controller that receives hundreds a second. This is a separate module because it needs aio-pika at import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aio_pika.robust_queue import RobustQueue


class PlainQueue(RobustQueue):
    """A queue whose `callback` gets aiormq's message. aio-pika calls `consume` again on a new channel."""

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
        answer = await channel.basic_consume(self.name, callback, consumer_tag=consumer_tag, timeout=timeout, **options)
        assert answer.consumer_tag is not None
        if robust:
            self._consumers[answer.consumer_tag] = {"callback": callback, **options}
        return answer.consumer_tag
