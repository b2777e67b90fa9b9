"""The bus on RabbitMQ, over aio-pika: topic exchanges, durable queues, publisher confirms, and a connection that comes
back by itself.

What is sent lives in swarm; the files adapter needs no server and keeps the same promises.

- `publish` waits for the broker's confirm. While the broker is away it is tried again, with the same message id, until
  `patience_s` is over: a confirm that was lost on the way makes a second message, which readers know by its id.
- A consumer that lost its connection goes on when it is back. What it had taken was given to others meanwhile: to
  acknowledge that changes nothing.
- A queue keeps its kind: to declare one otherwise than it is (its dead letters, `quorum`) is refused by the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from farro.errors import BusTrouble, InputError
from farro.lazy_dataclass import dataclass, field
from farro.swarm.bus.amqp_log import Presence, quieten
from farro.swarm.bus.port import Binding, Depth, Message

if TYPE_CHECKING:
    from aio_pika.abc import AbstractRobustChannel, AbstractRobustConnection
    from aiormq.abc import DeliveredMessage

PATIENCE_S = 30.0
_RETRY_S = 0.2
_ACK_LATE_S = 0.005
_ACK_SOON_S = 0.05  # where nobody waits for it
_STALE_MS = "600000"  # what need not last goes from a queue that nobody reads
_TRANSIENT, _PERSISTENT = 1, 2  # of a message; of the latter the broker confirms that it has it on its disk
T = TypeVar("T")


class _OverAgain(Exception):
    """The call is made once more, on a new channel."""


def _access_refused() -> type[Exception]:
    from aiormq.exceptions import ChannelAccessRefused

    return ChannelAccessRefused


class AmqpBus:
    """The Bus port. `opened` makes one."""

    def __init__(self, connection: AbstractRobustConnection, address: str, *, quorum: bool, patience_s: float) -> None:
        self._connection = connection
        self._address = address
        self._quorum = quorum
        self._patience_s = patience_s
        self._channel: AbstractRobustChannel | None = None
        self._opening = asyncio.Lock()  # of that channel: many publish at once
        self._exchanges: set[str] = set()
        self._given: set[str] = set()  # exchanges that others must make
        self._consumers: list[AmqpConsumer] = []
        self._presence = Presence(connection, address)

    @classmethod
    async def opened(cls, url: str, *, quorum: bool = False, patience_s: float = PATIENCE_S) -> AmqpBus:
        """BusTrouble: nobody answers there, or it does not take the password."""
        try:
            import aio_pika
            from aio_pika import exceptions
        except ImportError as error:
            raise InputError("the amqp bus needs aio-pika: pip install 'farro[amqp]'") from error
        quieten()
        parts = urlsplit(url)
        address = f"{parts.hostname}:{parts.port or 5672}"  # without the password, for messages
        try:
            async with asyncio.timeout(patience_s):
                connection = await aio_pika.connect_robust(url, reconnect_interval=_RETRY_S)
        except exceptions.ProbableAuthenticationError as error:
            raise BusTrouble(f"{address} refuses the user or the password") from error
        except (OSError, TimeoutError, *exceptions.CONNECTION_EXCEPTIONS) as error:
            raise BusTrouble(f"no RabbitMQ answers at {address}: {str(error) or 'no answer in time'}") from error
        return cls(connection, address, quorum=quorum, patience_s=patience_s)

    async def declare(
        self, queue: str, bindings: Sequence[Binding] = (), *, dead_letters: str | None = None, exclusive: bool = False
    ) -> None:
        arguments: dict[str, Any] = {}
        if dead_letters is not None:
            arguments |= {"x-dead-letter-exchange": dead_letters, "x-dead-letter-routing-key": dead_letters}
        if self._quorum and not exclusive:
            arguments["x-queue-type"] = "quorum"

        async def declare() -> None:
            channel = await self._open_channel()
            if dead_letters is not None:
                # An exchange of its own name, which goes with it. Through the broker's default exchange a user would
                # need the right to write there, and could then write into every queue.
                given_up = await channel.declare_exchange(dead_letters, "fanout", durable=True, auto_delete=True)
                await (await channel.get_queue(dead_letters)).bind(given_up)
            made = await channel.declare_queue(queue, durable=not exclusive, exclusive=exclusive, arguments=arguments)
            for binding in bindings:
                await self._declare_exchange(channel, binding.exchange)
                await made.bind(binding.exchange, binding.key)

        await self._patiently(declare, f"declare {queue}")

    async def unbind(self, queue: str, binding: Binding) -> None:
        async def unbind() -> None:
            channel = await self._open_channel()
            found = await channel.get_queue(queue)
            await found.unbind(binding.exchange, binding.key)

        await self._patiently(unbind, f"unbind {queue}")

    async def delete(self, queue: str) -> None:
        async def delete() -> None:
            channel = await self._open_channel()
            await channel.queue_delete(queue)

        await self._patiently(delete, f"delete {queue}")

    async def publish(self, exchange: str, message: Message) -> None:
        from aiormq import spec

        properties = spec.Basic.Properties(
            message_id=message.message_id,
            headers=dict(message.headers),
            content_type="application/json",
            delivery_mode=_PERSISTENT if message.lasting else _TRANSIENT,
            expiration=None if message.lasting else _STALE_MS,
        )

        async def publish() -> None:
            channel = await self._open_channel()
            await self._declare_exchange(channel, exchange)
            # Below aio-pika's own exchange, which lets nobody write before the socket took what another wrote: here
            # many wait for their confirms at once, and the confirm is what counts.
            underlay: Any = await channel.get_underlay_channel()
            await underlay.basic_publish(
                message.body, exchange=exchange, routing_key=message.key, properties=properties, wait=False
            )

        await self._patiently(publish, f"publish {message.key}")

    async def consume(self, queue: str, *, prefetch: int = 1) -> AmqpConsumer:
        from farro.swarm.bus.amqp_queue import PlainQueue

        async def consume() -> AmqpConsumer:
            await self._connected()
            if await self._counts(queue) is None:
                raise InputError(f"there is no queue {queue}; declare it first")
            channel = await self._connection.channel()
            channel.QUEUE_CLASS = PlainQueue
            await channel.set_qos(prefetch_count=max(1, prefetch))
            consumer = AmqpConsumer(channel, max(1, prefetch))
            found: Any = await channel.declare_queue(queue, passive=True)  # consumed again after a reconnect
            await found.consume(consumer.hear)
            self._consumers = [one for one in self._consumers if not one.closed] + [consumer]
            return consumer

        return await self._patiently(consume, f"consume {queue}")

    async def depth(self, queue: str) -> Depth | None:
        return await self._patiently(lambda: self._counts(queue), f"look at {queue}")

    async def _counts(self, queue: str) -> Depth | None:
        """A passive declaration of one that is not there closes its channel: so it has one of its own."""
        from aio_pika.exceptions import ChannelNotFoundEntity

        async with self._connection.channel() as channel:
            try:
                found = await channel.declare_queue(queue, passive=True, robust=False)
            except ChannelNotFoundEntity:
                return None
            counts = found.declaration_result
            return Depth(ready=counts.message_count or 0, taken=None, consumers=counts.consumer_count or 0)

    async def close(self) -> None:
        self._presence.leave()
        for consumer in self._consumers:
            await consumer.close()
        with contextlib.suppress(Exception):  # whatever it is: the connection is over
            await self._connection.close()

    async def _open_channel(self) -> AbstractRobustChannel:
        await self._connected()
        if self._channel is None or self._channel.is_closed:
            async with self._opening:
                if self._channel is None or self._channel.is_closed:
                    self._exchanges.clear()
                    self._channel = await self._connection.channel(publisher_confirms=True)
        return self._channel

    async def _connected(self) -> None:
        await self._connection.connected.wait()

    async def _declare_exchange(self, channel: AbstractRobustChannel, name: str) -> None:
        if name not in self._exchanges and name not in self._given:
            try:
                await channel.declare_exchange(name, "topic", durable=True)
            except _access_refused() as error:  # a user that may use it and not make it; the channel is over
                self._given.add(name)
                raise _OverAgain from error
            self._exchanges.add(name)

    async def _patiently(self, call: Callable[[], Awaitable[T]], what: str) -> T:
        """Again while the broker is away. What is wrong with the request itself is told at once."""
        from aio_pika import exceptions

        until_s = time.monotonic() + self._patience_s
        while True:
            try:
                async with asyncio.timeout(max(0.01, until_s - time.monotonic())):
                    return await call()
            except _OverAgain:
                continue
            except (exceptions.ChannelPreconditionFailed, exceptions.ChannelNotFoundEntity) as error:
                raise InputError(f"the broker at {self._address} refuses to {what}: {error}") from error
            except exceptions.ChannelClosed as error:
                if "RESOURCE_LOCKED" in str(error) or "ACCESS_REFUSED" in str(error):
                    raise InputError(f"the broker at {self._address} refuses to {what}: {error}") from error
                trouble: BaseException = error
            except (exceptions.AMQPError, ConnectionError, OSError, TimeoutError, RuntimeError) as error:
                trouble = error
            if time.monotonic() >= until_s:
                why = str(trouble) or "no answer in time"
                raise BusTrouble(f"the broker at {self._address} did not {what}: {why}") from trouble
            await asyncio.sleep(_RETRY_S)


@dataclass(kw_only=True)
class AmqpDelivery:
    message: Message
    redelivered: bool
    tag: int
    acks: Acknowledgements = field(repr=False)
    _settled: bool = False

    async def ack(self) -> None:
        if not self._settled:
            self._settled = True
            await self.acks.ack(self.tag)

    def ack_soon(self) -> None:
        if not self._settled:
            self._settled = True
            self.acks.ack_soon(self.tag)

    async def reject(self, *, requeue: bool) -> None:
        if not self._settled:
            self._settled = True
            await self.acks.reject(self.tag, requeue)


class Acknowledgements:
    """What a consumer got on one channel, and has settled: those that have none before them that is not are told to the
    broker in one frame, some milliseconds late, and never so late that the broker waits for room.

    A process that dies before it told them gets their messages again, as it would a moment earlier."""

    def __init__(self, channel: Any, prefetch: int) -> None:
        self.channel = channel
        self._room = prefetch
        self._given: deque[int] = deque()  # in order, as the broker numbers them; some are settled already
        self._settled: set[int] = set()
        self._told: list[int] = []  # acknowledged, and not told yet
        self._later: asyncio.TimerHandle | None = None
        self._telling: set[asyncio.Task[None]] = set()

    def give(self, tag: int) -> None:
        self._given.append(tag)

    async def ack(self, tag: int) -> None:
        if self._note(tag, _ACK_LATE_S):
            await self.flush()

    def ack_soon(self, tag: int) -> None:
        if self._note(tag, _ACK_SOON_S):
            self._flush_soon()

    def _note(self, tag: int, late_s: float) -> bool:
        """Whether it is time to tell the broker; else that is done some milliseconds later."""
        self._told.append(tag)
        if 2 * len(self._told) >= self._room:
            return True
        loop = asyncio.get_running_loop()
        if self._later is None or self._later.when() > loop.time() + late_s:
            if self._later is not None:
                self._later.cancel()
            self._later = loop.call_later(late_s, self._flush_soon)
        return False

    def _flush_soon(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        task = asyncio.create_task(self.flush())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def reject(self, tag: int, requeue: bool) -> None:
        self._settled.add(tag)
        with self._over():
            await self.channel.basic_reject(tag, requeue=requeue, wait=False)

    async def flush(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        told, self._told = self._told, []
        self._settled.update(told)
        first = set[int]()  # with none before them that is not settled
        while self._given and self._given[0] in self._settled:
            first.add(tag := self._given.popleft())
            self._settled.discard(tag)
        together = first.intersection(told)  # the others of them were told alone, and may not be told again
        with self._over():
            if together:
                await self.channel.basic_ack(max(together), multiple=True, wait=False)
            for tag in told:
                if tag not in first:
                    await self.channel.basic_ack(tag, wait=False)

    @staticmethod
    def _over() -> contextlib.AbstractContextManager[None]:
        """Its channel may be over: then others have what it gave."""
        from aio_pika.exceptions import AMQPError

        return contextlib.suppress(AMQPError, ConnectionError, RuntimeError)


class AmqpConsumer:
    def __init__(self, channel: Any, prefetch: int) -> None:
        self._channel = channel
        self._prefetch = prefetch
        self._came: asyncio.Queue[AmqpDelivery | None] = asyncio.Queue()
        self._acks: Acknowledgements | None = None  # of the channel below, which is another after a reconnect
        self._closed = False

    async def hear(self, incoming: DeliveredMessage) -> None:
        properties: Any = incoming.header.properties
        told: Any = incoming.delivery
        headers = properties.headers or {}
        message = Message(
            key=_first_key(headers) or told.routing_key or "",
            body=incoming.body,
            message_id=properties.message_id or "",
            headers={name: str(value) for name, value in headers.items() if not name.startswith("x-")},
        )
        before = bool(told.redelivered) or "x-death" in headers
        if self._acks is None or self._acks.channel is not incoming.channel:
            self._acks = Acknowledgements(incoming.channel, self._prefetch)
        tag: int = told.delivery_tag
        self._acks.give(tag)
        self._came.put_nowait(AmqpDelivery(message=message, redelivered=before, tag=tag, acks=self._acks))

    @property
    def closed(self) -> bool:
        return self._closed

    def __aiter__(self) -> AmqpConsumer:
        return self

    async def __anext__(self) -> AmqpDelivery:
        found = None if self._closed else await self._came.get()
        if found is None:
            raise StopAsyncIteration
        return found

    async def close(self) -> None:
        """The broker gives what was not acknowledged to others when the channel ends."""
        if not self._closed:
            self._closed = True
            await self._came.put(None)
            if self._acks is not None:
                await self._acks.flush()
            with contextlib.suppress(Exception):  # whatever it is: the channel is over
                await self._channel.close()


def _first_key(headers: Mapping[str, Any]) -> str:
    """The key that a dead letter was sent with: it comes under the name of its queue, and tells of the first."""
    deaths = headers.get("x-death")
    if isinstance(deaths, list) and deaths and isinstance(deaths[-1], dict):
        keys = deaths[-1].get("routing-keys")
        if isinstance(keys, list) and keys:
            return str(keys[0])
    return ""
