"""The message bus of swarms: `files` for one machine without a server, `amqp` on RabbitMQ."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from farro.errors import BusTrouble, InputError
from farro.swarm.bus.port import Bus

AGAIN_S = 2.0  # between two attempts to reach the bus
CHECK_S = 30.0  # between two checks for a lost queue


async def open_bus(address: str, *, durable: bool = True, quorum: bool = False) -> Bus:
    """Open the bus at `files:FOLDER`, `amqp://…` or `amqps://…`. Each adapter is imported only when it is needed."""
    if address.startswith(("amqp://", "amqps://")):
        try:
            from farro.swarm.bus.amqp import AmqpBus
        except ImportError as error:
            raise InputError("the amqp bus needs aio-pika: pip install 'farro[amqp]'") from error
        return await AmqpBus.connect(address, quorum=quorum)
    if address.startswith("files:") and len(address) > len("files:"):
        from farro.swarm.bus.files import FilesBus

        return FilesBus(address.removeprefix("files:"), durable=durable)
    shown = address.split("@", 1)[-1]  # the part before @ may hold a password
    raise InputError(f"{shown!r} is not a bus; it must be files:FOLDER, amqp://… or amqps://…")


async def open_until(
    over: asyncio.Event, open_one: Callable[[], Awaitable[Bus]], complain: Callable[[str], None]
) -> Bus | None:
    """Open a bus, retrying until it succeeds; None if `over` is set first. A process that ended instead would use up
    its restarts while the broker is unreachable."""
    while not over.is_set():
        opening, ending = asyncio.ensure_future(open_one()), asyncio.create_task(over.wait())
        await asyncio.wait({opening, ending}, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if not opening.done():
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            return None
        try:
            return opening.result()
        except BusTrouble as error:
            complain(f"{error}; retrying in {AGAIN_S:g} s")
        await wait(over, AGAIN_S)
    return None


async def wait(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, and return whether it is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):  # not wait_for, which may swallow a cancellation on Python 3.11
            await event.wait()
    return event.is_set()


class LostQueueCheck:
    """Detect a consumer whose queue was deleted.

    A consumer of a queue that an operator deleted, or that a broker lost with its disk, would wait for ever. A queue
    that is missing twice in a row ends the process that consumes it; the process that replaces it declares the queue
    again. [test_a_consumer_of_a_deleted_queue_gets_an_error]
    """

    def __init__(self, bus: Bus, queue: str) -> None:
        self._bus = bus
        self._queue = queue
        self._missing = 0
        self._checked_s: float | None = None

    async def check_if_due(self, now_s: float) -> None:
        if self._checked_s is None:
            self._checked_s = now_s
        if now_s - self._checked_s >= CHECK_S:
            self._checked_s = now_s
            await self.check()

    async def check(self) -> None:
        """Raise BusTrouble if the queue has no consumer any more. An unreachable bus is not a lost queue."""
        try:
            depth = await self._bus.depth(self._queue)
        except BusTrouble:
            return
        self._missing = self._missing + 1 if depth is None or depth.consumers == 0 else 0
        if self._missing > 1:  # missing once may be a connection that is being restored
            raise BusTrouble(f"the queue {self._queue} was deleted; its consumer must start again")
