"""The bus on RabbitMQ with aio-pika: topic exchanges, durable queues, publisher confirms, automatic reconnect.

- `publish` waits for the broker's confirm. While the broker is unreachable it retries with the same message id, until
  `patience_s` is over: a lost confirm makes a second message, which readers recognise by its id.
- A consumer that lost its connection goes on after the reconnect. The broker has given its messages to other consumers;
  acknowledging them then does nothing.
- A queue keeps its kind: the broker refuses to declare it with other dead letters or another `quorum`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import aio_pika
from aio_pika import exceptions
from aio_pika.robust_queue import RobustQueue
from aiormq import spec
from aiormq.exceptions import ChannelAccessRefused

from farro.errors import BusTrouble, InputError
from farro.swarm.bus.port import Binding, BusMessage, BusQueueDepth, Delivery

if TYPE_CHECKING:
    from aio_pika.abc import AbstractRobustChannel, AbstractRobustConnection
    from aiormq.abc import DeliveredMessage

PATIENCE_S = 30.0
_RETRY_S = 0.2
_ACK_LATE_S = 0.005
_ACK_SOON_S = 0.05  # for acknowledgements that no caller waits for
_STALE_MS = "600000"  # messages that need not last expire in a queue without a reader
_TRANSIENT, _PERSISTENT = 1, 2  # delivery modes; the broker confirms a persistent message once it is on disk
_CLOSED = (exceptions.AMQPError, ConnectionError, RuntimeError)  # a closed channel's messages go to other consumers
T = TypeVar("T")


class _RetryOnNewChannel(Exception):
    """Repeat the call on a new channel."""


class AmqpBus:
    """The Bus port on RabbitMQ. Use `connect` to make one."""

    def __init__(self, connection: AbstractRobustConnection, address: str, *, quorum: bool, patience_s: float) -> None:
        self._connection = connection
        self._address = address
        self._quorum = quorum
        self._patience_s = patience_s
        self._channel: AbstractRobustChannel | None = None
        self._opening = asyncio.Lock()  # for that channel: many tasks publish at once
        self._exchanges: set[str] = set()
        self._not_declarable: set[str] = set()  # exchanges that this user may not declare
        self._consumers: list[AmqpConsumer] = []
        self._connection_log = ConnectionLog(connection, address)

    @classmethod
    async def connect(cls, url: str, *, quorum: bool = False, patience_s: float = PATIENCE_S) -> AmqpBus:
        """Connect to a broker. Raises BusTrouble if it does not answer, or refuses the password."""
        silence_libraries()
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

    async def declare(self, queue: str, bindings: Sequence[Binding] = (), *, dead_letters: str | None = None) -> None:
        arguments: dict[str, Any] = {}
        if dead_letters is not None:
            arguments |= {"x-dead-letter-exchange": dead_letters, "x-dead-letter-routing-key": dead_letters}
        if self._quorum:
            arguments["x-queue-type"] = "quorum"

        async def declare() -> None:
            channel = await self._open_channel()
            if dead_letters is not None:
                # The dead letters have an exchange of the same name, which is deleted with the queue. For the broker's
                # default exchange a user would need the right to write there, and could then write into every queue.
                given_up = await channel.declare_exchange(dead_letters, "fanout", durable=True, auto_delete=True)
                await (await channel.get_queue(dead_letters)).bind(given_up)
            made = await channel.declare_queue(queue, durable=True, arguments=arguments)
            for binding in bindings:
                await self._declare_exchange(channel, binding.exchange)
                await made.bind(binding.exchange, binding.key)

        await self._retry(declare, f"declare {queue}")

    async def unbind(self, queue: str, binding: Binding) -> None:
        async def unbind() -> None:
            channel = await self._open_channel()
            found = await channel.get_queue(queue)
            await found.unbind(binding.exchange, binding.key)

        await self._retry(unbind, f"unbind {queue}")

    async def delete(self, queue: str) -> None:
        async def delete() -> None:
            channel = await self._open_channel()
            await channel.queue_delete(queue)

        await self._retry(delete, f"delete {queue}")

    async def publish(self, exchange: str, message: BusMessage) -> None:
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
            # Not through aio-pika's exchange, which waits for the socket between two messages: here many tasks wait for
            # their confirms at once, and only the confirm counts.
            underlay: Any = await channel.get_underlay_channel()
            await underlay.basic_publish(
                message.body, exchange=exchange, routing_key=message.key, properties=properties, wait=False
            )

        await self._retry(publish, f"publish {message.key}")

    async def consume(self, queue: str, *, prefetch: int = 1) -> AmqpConsumer:
        async def consume() -> AmqpConsumer:
            await self._connected()
            if await self._counts(queue) is None:
                raise InputError(f"there is no queue {queue}; declare it first")
            channel = await self._connection.channel()
            channel.QUEUE_CLASS = PlainQueue
            await channel.set_qos(prefetch_count=max(1, prefetch))
            consumer = AmqpConsumer(channel, max(1, prefetch))
            found: Any = await channel.declare_queue(
                queue, passive=True
            )  # aio-pika consumes it again after a reconnect
            await found.consume(consumer.receive)
            self._consumers = [one for one in self._consumers if not one.closed] + [consumer]
            return consumer

        return await self._retry(consume, f"consume {queue}")

    async def depth(self, queue: str) -> BusQueueDepth | None:
        return await self._retry(lambda: self._counts(queue), f"look at {queue}")

    async def _counts(self, queue: str) -> BusQueueDepth | None:
        """Count on a channel of its own: a passive declaration of a missing queue closes the channel."""
        async with self._connection.channel() as channel:
            try:
                found = await channel.declare_queue(queue, passive=True, robust=False)
            except exceptions.ChannelNotFoundEntity:
                return None
            counts = found.declaration_result
            return BusQueueDepth(ready=counts.message_count or 0, taken=None, consumers=counts.consumer_count or 0)

    async def close(self) -> None:
        self._connection_log.closing()
        for consumer in self._consumers:
            await consumer.close()
        with contextlib.suppress(Exception):  # the connection is being given up, whatever the error
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
        if name not in self._exchanges and name not in self._not_declarable:
            try:
                await channel.declare_exchange(name, "topic", durable=True)
            except ChannelAccessRefused as error:  # the user may use it but not declare it; the channel is closed
                self._not_declarable.add(name)
                raise _RetryOnNewChannel from error
            self._exchanges.add(name)

    async def _retry(self, call: Callable[[], Awaitable[T]], what: str) -> T:
        """Retry while the broker is unreachable. Errors in the request itself are raised at once."""
        until_s = time.monotonic() + self._patience_s
        while True:
            try:
                async with asyncio.timeout(max(0.01, until_s - time.monotonic())):
                    return await call()
            except _RetryOnNewChannel:
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


class PlainQueue(RobustQueue):
    """A queue whose `callback` gets aiormq's raw message. aio-pika calls `consume` again on a new channel.

    aio-pika would wrap each message in a large object and start a task for it: a tenth of the cost of a message for a
    controller that receives hundreds a second.
    """

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


class Acknowledgements:
    """Acknowledge the settled deliveries of one channel in order, in one frame, some milliseconds late.

    Acknowledgements are never so late that the broker waits for free prefetch slots. A process that dies before it
    sends them gets the messages again.
    """

    def __init__(self, channel: Any, prefetch: int) -> None:
        self.channel = channel
        self._prefetch = prefetch
        self._unsettled: deque[int] = deque()  # in the broker's order; some are settled already
        self._settled: set[int] = set()
        self._unsent: list[int] = []  # acknowledged, but not sent to the broker yet
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: set[asyncio.Task[None]] = set()

    def delivered(self, tag: int) -> None:
        self._unsettled.append(tag)

    async def ack(self, tag: int) -> None:
        if self._note(tag, _ACK_LATE_S):
            await self.flush()

    def ack_soon(self, tag: int) -> None:
        if self._note(tag, _ACK_SOON_S):
            self._flush_soon()

    def _note(self, tag: int, late_s: float) -> bool:
        """Return whether to acknowledge at the broker now; else a timer does so some milliseconds later."""
        self._unsent.append(tag)
        if 2 * len(self._unsent) >= self._prefetch:
            return True
        loop = asyncio.get_running_loop()
        if self._timer is None or self._timer.when() > loop.time() + late_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_later(late_s, self._flush_soon)
        return False

    def _flush_soon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        task = asyncio.create_task(self.flush())
        self._flushing.add(task)
        task.add_done_callback(self._flushing.discard)

    async def reject(self, tag: int, *, requeue: bool) -> None:
        self._settled.add(tag)
        with contextlib.suppress(*_CLOSED):
            await self.channel.basic_reject(tag, requeue=requeue, wait=False)

    async def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        acknowledged, self._unsent = self._unsent, []
        self._settled.update(acknowledged)
        first = set[int]()  # without an unsettled delivery before them
        while self._unsettled and self._unsettled[0] in self._settled:
            first.add(tag := self._unsettled.popleft())
            self._settled.discard(tag)
        together = first.intersection(acknowledged)  # the others were already acknowledged one by one
        with contextlib.suppress(*_CLOSED):
            if together:
                await self.channel.basic_ack(max(together), multiple=True, wait=False)
            for tag in acknowledged:
                if tag not in first:
                    await self.channel.basic_ack(tag, wait=False)


class AmqpConsumer:
    def __init__(self, channel: Any, prefetch: int) -> None:
        self._channel = channel
        self._prefetch = prefetch
        self._deliveries: asyncio.Queue[Delivery | None] = asyncio.Queue()
        self._acks: Acknowledgements | None = None  # of the current channel, which changes after a reconnect
        self._closed = False

    async def receive(self, incoming: DeliveredMessage) -> None:
        properties: Any = incoming.header.properties
        delivery: Any = incoming.delivery
        headers = properties.headers or {}
        message = BusMessage(
            key=_first_key(headers) or delivery.routing_key or "",
            body=incoming.body,
            message_id=properties.message_id or "",
            headers={name: str(value) for name, value in headers.items() if not name.startswith("x-")},
        )
        before = bool(delivery.redelivered) or "x-death" in headers
        if self._acks is None or self._acks.channel is not incoming.channel:
            self._acks = Acknowledgements(incoming.channel, self._prefetch)
        tag: int = delivery.delivery_tag
        self._acks.delivered(tag)
        self._deliveries.put_nowait(Delivery(message=message, redelivered=before, tag=tag, settler=self._acks))

    @property
    def closed(self) -> bool:
        return self._closed

    def __aiter__(self) -> AmqpConsumer:
        return self

    async def __anext__(self) -> Delivery:
        found = None if self._closed else await self._deliveries.get()
        if found is None:
            raise StopAsyncIteration
        return found

    async def close(self) -> None:
        """Close the channel; the broker gives unacknowledged messages to other consumers."""
        if not self._closed:
            self._closed = True
            await self._deliveries.put(None)
            if self._acks is not None:
                await self._acks.flush()
            with contextlib.suppress(Exception):  # the channel is being given up, whatever the error
                await self._channel.close()


def _first_key(headers: Mapping[str, Any]) -> str:
    """Return the routing key with which a dead letter was first published: it arrives with its queue's name as the
    key."""
    deaths = headers.get("x-death")
    if isinstance(deaths, list) and deaths and isinstance(deaths[-1], dict):
        keys = deaths[-1].get("routing-keys")
        if isinstance(keys, list) and keys:
            return str(keys[0])
    return ""


# --- the log: one line when the broker goes, one when it is back ---

LOGGER = logging.getLogger("farro.bus")
_LIBRARIES = ("aio_pika", "aiormq")


def _only_blocked(record: logging.LogRecord) -> bool:
    """Filter the log of aio-pika and aiormq: pass on only the line about a broker that takes no messages because its
    disk or memory is full."""
    if "blocked" in str(record.msg):
        LOGGER.log(record.levelno, record.getMessage().splitlines()[0])
    return False


def silence_libraries() -> None:
    """Silence aio-pika and aiormq, which log each of five attempts a second and a traceback for a lost connection.

    Call it after they were imported. Loggers that the program has configured are left alone.
    """
    loggers = [logging.getLogger(name) for name in _LIBRARIES]
    if any(logger.handlers or logger.level != logging.NOTSET for logger in loggers):
        return
    for name in list(logging.root.manager.loggerDict):
        if name.split(".")[0] in _LIBRARIES:
            logging.getLogger(name).addFilter(_only_blocked)  # adding the same filter twice has no effect


class ConnectionLog:
    """Log when the broker of a connection becomes unreachable, and when it is back."""

    def __init__(self, connection: AbstractRobustConnection, address: str) -> None:
        self._address = address
        self._away = False
        self._closing = False
        connection.close_callbacks.add(self._lost)
        connection.reconnect_callbacks.add(self._back)

    def closing(self) -> None:
        """Note that this process closes the connection, which is not logged."""
        self._closing = True

    def _lost(self, _: Any, why: BaseException | None = None) -> None:
        if not self._away and not self._closing:
            self._away = True
            reason = " ".join(str(why or "").split())[:200] or "it closed the connection"
            LOGGER.warning("the broker at %s is unreachable: %s; retrying until it is back", self._address, reason)

    def _back(self, *_: Any) -> None:
        if self._away:
            self._away = False
            LOGGER.warning("the broker at %s is back", self._address)
