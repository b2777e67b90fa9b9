"""The Bus port: what carries signals, events and work items between the members of a swarm. Guarantees in words; every
adapter passes tests/contracts/test_bus.py.

Which exchanges, queues and keys there are lives in swarm.names; who says what lives in the services.

- `publish` returns when every queue that was bound to the exchange by a fitting key has the message, as durably as the
  bus promises. When it raises, or never returns, any of them may have it: publish again with the same message id, by
  which whoever reads knows a second one. [test_what_was_published_is_there, tests/crash/test_bus.py]
- A queue that was declared before a publish gets the message; one declared later does not. Nobody bound: it is gone.
- A message of a queue is given to one consumer at a time, in the order of arrival. Until it is acknowledged it is not
  lost: when its consumer ends, or dies at any instruction, another gets it, marked as given before.
  [test_a_dead_consumers_messages_come_back]
- A consumer holds at most `prefetch` messages that it has not acknowledged. [test_a_consumer_holds_no_more_than_it_may]
- A rejected message goes back to its queue, or to the queue's dead letters, or, where it has none, away.
- A waiting consumer wakes at once; nobody polls.
- Declaring a queue again adds the bindings that it has not, and keeps everything else; `unbind` takes one away.
- An `exclusive` queue ends with whoever declared it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from farro.lazy_dataclass import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """`message_id` is the sender's: the same for the same message, however often it is sent. `lasting` is for the bus;
    who reads does not get it."""

    key: str
    body: bytes
    message_id: str
    headers: Mapping[str, str] = field(default_factory=dict)
    lasting: bool = True  # False: it need not survive the machine's or the broker's end, only its sender's and reader's


@dataclass(frozen=True, slots=True)
class Binding:
    exchange: str
    key: str  # may hold * and #


@dataclass(frozen=True, kw_only=True, slots=True)
class Depth:
    ready: int
    taken: int | None  # given to a consumer, and not acknowledged; None: this bus does not tell
    consumers: int


class Delivery(Protocol):
    @property
    def message(self) -> Message: ...

    @property
    def redelivered(self) -> bool:
        """It was given to somebody before."""

    async def ack(self) -> None:
        """Done with. When it was taken away meanwhile nothing happens: somebody else has it."""

    def ack_soon(self) -> None:
        """As `ack`, without a wait for it: many go together. Its consumer's `close` waits for them.
        [test_what_was_acknowledged_without_a_wait_does_not_come_back]"""

    async def reject(self, *, requeue: bool) -> None: ...


class Consumer(Protocol):
    """Gives deliveries, one after the other, until it is closed."""

    def __aiter__(self) -> AsyncIterator[Delivery]: ...

    async def close(self) -> None:
        """What it had not acknowledged goes back."""


class Bus(Protocol):
    async def declare(
        self, queue: str, bindings: Sequence[Binding] = (), *, dead_letters: str | None = None, exclusive: bool = False
    ) -> None: ...

    async def unbind(self, queue: str, binding: Binding) -> None: ...

    async def delete(self, queue: str) -> None:
        """With everything in it. One that is not there is no error."""

    async def publish(self, exchange: str, message: Message) -> None: ...

    async def consume(self, queue: str, *, prefetch: int = 1) -> Consumer: ...

    async def depth(self, queue: str) -> Depth | None:
        """None: there is no such queue."""

    async def close(self) -> None: ...
