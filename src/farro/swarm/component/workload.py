"""The workload of a component while it is enabled: items in, the function, items out, and then the acknowledgement.

The control plane, which is always on, lives in running.

- An item is acknowledged when all that came of it was accepted by the bus: a crash in between repeats it, and what goes
  on carries ids that are made of the item's own, so that whoever comes next can tell. [test_nothing_is_lost_on_the_way]
- A function that raises gets the item again, up to `tries` times; then it lies among the queue's dead letters, never
  nowhere. [test_what_fails_for_good_is_a_dead_letter]
- A source is called again when all that it made before was accepted by the bus: one that notes its own progress when it
  is called loses nothing, whatever dies. [test_a_source_is_called_again_when_what_it_made_was_accepted]
- Stopping drains: nothing new is taken, what is under way ends, the rest goes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

from farro.errors import BusTrouble
from farro.lazy_dataclass import dataclass, field
from farro.plans.cron import due
from farro.swarm.bus.port import Bus, Consumer, Delivery, Message
from farro.swarm.component.call import NotCalled, OwnThread
from farro.swarm.component.declare import Component, Drop
from farro.swarm.component.environment import Surroundings

TPS_WINDOW_S = 10.0
_PAUSE_S = 0.2  # before an item that failed is tried again, and after trouble of the bus
_SPACE = uuid.UUID("6f9a3d1e-6b1c-4b8f-9b2f-6a1c5a3c7f10")  # names of ours, for ids that follow from others


@dataclass
class Counts:
    """What was done, and when: for the status."""

    done: int = 0
    failed: int = 0
    dead: int = 0
    last_error: str | None = None
    _times: deque[float] = field(default_factory=deque)

    def count(self, now_s: float) -> None:
        self.done += 1
        self._times.append(now_s)

    def tps(self, now_s: float) -> float:
        while self._times and now_s - self._times[0] > TPS_WINDOW_S:
            self._times.popleft()
        return round(len(self._times) / TPS_WINDOW_S, 3)


class Workload:
    """Runs while it is told to. `begin` and `end` may be called again and again."""

    def __init__(self, component: Component[Any], bus: Bus, about: Surroundings, config: Callable[[], Any]) -> None:
        assert component.declared is not None
        self._component = component
        self._declared = component.declared
        self._bus = bus
        self._about = about
        self._config = config
        self.counts = Counts()
        self._readers: list[asyncio.Task[None]] = []  # they hold no item, and may be cancelled
        self._under_way: set[asyncio.Task[None]] = set()  # a source's loop, or a task for each item that was taken
        self._consumers: list[Consumer] = []
        self._thread: OwnThread | None = None
        self._unsent: tuple[Any, str] | None = None  # what a source made, and nobody has accepted yet
        self._ending = asyncio.Event()

    @property
    def running(self) -> bool:
        return bool(self._readers or self._under_way)

    async def begin(self) -> None:
        if self.running:
            return
        self._ending.clear()
        if not self._declared.is_async:
            self._thread = OwnThread()
        if self._declared.kind == "source":
            self._go(self._make())
            return
        try:
            for queue in self._about.input_queues:
                self._consumers.append(await self._bus.consume(queue, prefetch=self._component.prefetch))
        except BaseException:  # all of its queues, or none: half a workload would be taken for a whole one
            await self.end(0)
            raise
        self._readers = [asyncio.create_task(self._read(consumer)) for consumer in self._consumers]

    async def end(self, grace_s: float) -> bool:
        """Whether everything that was under way ended in time."""
        self._ending.set()
        readers, self._readers = self._readers, []
        consumers, self._consumers = self._consumers, []
        if self._thread is not None:
            self._thread.end()
            self._thread = None
        for task in readers:
            task.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        tasks = set(self._under_way)
        _, late = await asyncio.wait(tasks, timeout=grace_s) if tasks else (set(), set())
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for consumer in consumers:
            await consumer.close()  # what was not acknowledged goes back
        return not late

    def _go(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    # --- sources ---

    async def _make(self) -> None:
        due_s = time.monotonic()
        while not self._ending.is_set():
            due_s = self._due_s(due_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due_s - time.monotonic())):
                    await self._ending.wait()
                    return
            try:
                if self._unsent is None:
                    self._unsent = (await self._called(), str(uuid.uuid4()))
                await self._send(*self._unsent)
            except NotCalled:
                return
            except BusTrouble as error:  # sent again, as the same messages, before anything else is made
                self._failed(error)
                await asyncio.sleep(_PAUSE_S)
            except Exception as error:  # noqa: BLE001 - a source's mistake is told, and does not end it
                self._unsent = None
                self._failed(error)
            else:
                self._unsent = None
                self.counts.count(time.monotonic())

    def _due_s(self, before_s: float) -> float:
        """When it is called next, on the monotonic clock."""
        if self._declared.cron is not None:
            now = datetime.now(UTC)
            moment = next(due(self._declared.cron, UTC, now), now)  # a line that never falls due is not declared
            return time.monotonic() + (moment - now).total_seconds()
        pause_s = self._pause_s()
        return max(before_s + pause_s, time.monotonic() - pause_s)  # behind by more than one: not made up for

    def _pause_s(self) -> float:
        config = self._config()
        named = config.get("rate") if isinstance(config, dict) else getattr(config, "rate", None)
        rate = named if isinstance(named, int | float) and named > 0 else self._declared.rate
        return 1.0 / rate if rate is not None else float(self._declared.every_s or 1.0)

    # --- transforms and sinks ---

    async def _read(self, consumer: Consumer) -> None:
        """A task for each item. There are at most `prefetch` of them: a consumer holds no more."""
        while True:
            try:
                async for delivery in consumer:
                    self._go(self._work(delivery))
            except Exception as error:  # noqa: BLE001 - a disk that does not answer: told, and tried again, never silent
                self._failed(error)
                await asyncio.sleep(_PAUSE_S)
            else:
                return

    async def _work(self, delivery: Delivery) -> None:
        for number in range(1, self._component.tries + 1):
            try:
                item = json.loads(delivery.message.body)
                made = await self._called(item)
                if self._declared.kind == "transform":
                    await self._send(made, delivery.message.message_id)
            except NotCalled:
                return  # it goes back when its consumer is closed
            except (Drop, ValueError) as error:
                self._failed(error)
                break
            except BusTrouble as error:
                self._failed(error)
                await delivery.reject(requeue=True)
                await asyncio.sleep(_PAUSE_S)
                return
            except Exception as error:  # noqa: BLE001 - the function's own mistake is this item's, not the component's
                self._failed(error)
                if self._ending.is_set():
                    return  # its other tries are somebody else's
                if number < self._component.tries:
                    await asyncio.sleep(_PAUSE_S)
            else:
                await delivery.ack()
                self.counts.count(time.monotonic())
                return
        self.counts.dead += 1
        await delivery.reject(requeue=False)

    def _failed(self, error: BaseException) -> None:
        self.counts.failed += 1
        self.counts.last_error = f"{type(error).__name__}: {error}"[:500]

    async def _called(self, *items: Any) -> Any:
        arguments = (*items, self._config()) if self._declared.takes_config else items
        if self._declared.is_async:
            return await self._declared.function(*arguments)
        if self._thread is None:
            raise NotCalled
        return await self._thread.call(self._declared.function, arguments)

    async def _send(self, made: Any, origin: str) -> None:
        """Every item into every output. The ids follow from the origin's: the same again when it is done again."""
        items = made if isinstance(made, list) else [] if made is None else [made]
        sends: list[Coroutine[Any, Any, None]] = []
        for index, item in enumerate(items):
            body = json.dumps(item, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
            for suffix in self._about.outputs:
                message_id = str(uuid.uuid5(_SPACE, f"{origin}/{self._about.role}/{suffix}/{index}"))
                sends.append(
                    self._bus.publish(self._about.exchange, Message(key=suffix, body=body, message_id=message_id))
                )
        if len(sends) == 1:
            await sends[0]
        elif sends:
            await asyncio.gather(*sends)
