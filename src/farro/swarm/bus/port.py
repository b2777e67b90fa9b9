"""The Bus port: carries signals, events and work items between the members of a swarm.

Every adapter passes tests/contracts/test_bus.py. Guarantees:

- `publish` returns when every queue with a matching binding has the message, as durably as the bus promises. When it
  raises, or never returns, any of them may have it: publish again with the same message id, by which readers recognise
  the second one. [test_a_published_message_is_delivered, tests/crash/test_bus.py]
- A queue gets the messages published after its declaration. A message without a matching queue is dropped.
- A message of a queue is given to one consumer at a time, in the order of arrival. Until it is acknowledged it is not
  lost: when its consumer ends, or dies at any instruction, another gets it, marked as redelivered.
  [test_messages_of_a_dead_consumer_return_to_the_queue]
- A consumer holds at most `prefetch` unacknowledged messages. [test_a_consumer_holds_no_more_than_its_prefetch]
- A rejected message goes back to its queue, or to the queue's dead letters, or is dropped if there are none.
- A waiting consumer wakes at once; there is no polling.
- Declaring a queue again adds missing bindings and keeps everything else; `unbind` removes one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from farro.lazy_dataclass import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class BusMessage:
    """A message. `message_id` is the sender's: the same however often the message is sent. `lasting` is for the bus;
    readers do not get it."""

    key: str
    body: bytes
    message_id: str
    headers: Mapping[str, str] = field(default_factory=dict)
    lasting: bool = True  # False: it must survive its sender's and reader's end, but not the machine's or the broker's


@dataclass(frozen=True, slots=True)
class Binding:
    exchange: str
    key: str  # may contain * and #


@dataclass(frozen=True, kw_only=True, slots=True)
class BusQueueDepth:
    ready: int
    taken: int | None  # given to a consumer and not acknowledged; None if the bus does not know
    consumers: int


class Settler(Protocol):
    """What an adapter does with a delivery of one of its consumers; `tag` is the adapter's own."""

    async def ack(self, tag: Any) -> None: ...

    def ack_soon(self, tag: Any) -> None: ...

    async def reject(self, tag: Any, *, requeue: bool) -> None: ...


@dataclass(kw_only=True)
class Delivery:
    """A message that a consumer holds until it settles it, once: further calls do nothing."""

    message: BusMessage
    redelivered: bool  # it was given to a consumer before
    tag: Any
    settler: Settler = field(repr=False)
    _settled: bool = False

    async def ack(self) -> None:
        """Acknowledge. Nothing happens if the message was given to another consumer meanwhile."""
        if self._settles():
            await self.settler.ack(self.tag)

    def ack_soon(self) -> None:
        """Acknowledge without waiting, in batches. The consumer's `close` waits for them.
        [test_a_message_acknowledged_without_waiting_is_not_redelivered]"""
        if self._settles():
            self.settler.ack_soon(self.tag)

    async def reject(self, *, requeue: bool) -> None:
        if self._settles():
            await self.settler.reject(self.tag, requeue=requeue)

    def _settles(self) -> bool:
        first, self._settled = not self._settled, True
        return first


class Consumer(Protocol):
    """Yields deliveries until it is closed."""

    def __aiter__(self) -> AsyncIterator[Delivery]: ...

    async def close(self) -> None:
        """Close it; unacknowledged messages go back."""


class Bus(Protocol):
    async def declare(
        self, queue: str, bindings: Sequence[Binding] = (), *, dead_letters: str | None = None
    ) -> None: ...

    async def unbind(self, queue: str, binding: Binding) -> None: ...

    async def delete(self, queue: str) -> None:
        """Delete a queue with its messages. A missing queue is no error."""

    async def publish(self, exchange: str, message: BusMessage) -> None: ...

    async def consume(self, queue: str, *, prefetch: int = 1) -> Consumer: ...

    async def depth(self, queue: str) -> BusQueueDepth | None:
        """Count the messages of a queue; None if there is no such queue."""

    async def close(self) -> None: ...
