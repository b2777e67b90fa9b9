"""Capture all messages on the control exchange of a bus during a test, and check them.

    async with Capture.of(address, swarms=["demo"]) as capture:
        ...
        await capture.check()

`check` waits until all messages sent before have arrived, checks each against the schema that the AsyncAPI document has
for its key, and the whole trace with farro.swarm.conformance. A test declares messages that it forges with `forged`.
"""

from __future__ import annotations

import asyncio
import functools
import json
import time
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncapi
import jsonschema

from farro.swarm import conformance
from farro.swarm.bus import open_bus
from farro.swarm.bus.port import Binding, Bus, BusMessage, Consumer
from farro.swarm.conformance import Captured
from farro.swarm.wire import names
from support import ROOT

END = "capture.end"  # not a key of a swarm, so no other process receives it
PATIENCE_S = 60.0


class Capture:
    """`messages` are in the order of their arrival."""

    def __init__(self, bus: Bus, consumer: Consumer, swarms: Iterable[str] | None) -> None:
        self._bus = bus
        self._consumer = consumer
        self._swarms = None if swarms is None else list(swarms)
        self._ends: set[str] = set()
        self._came = asyncio.Condition()
        self._forged: set[str] = set()
        self.messages: list[Captured] = []

    @classmethod
    @asynccontextmanager
    async def of(cls, address: str, swarms: Iterable[str] | None = None) -> AsyncIterator[Capture]:
        bus = await open_bus(address, durable=False)
        queue = names.control_queue("capture", uuid.uuid4().hex[:12])
        await bus.declare(queue, [Binding(names.CONTROL, "#")])
        capture = cls(bus, await bus.consume(queue, prefetch=500), swarms)
        listening = asyncio.create_task(capture._listen())
        try:
            yield capture
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            await bus.delete(queue)
            await bus.close()

    async def _listen(self) -> None:
        async for delivery in self._consumer:
            one = delivery.message
            async with self._came:
                if one.key == END:
                    self._ends.add(one.message_id)
                else:
                    own = one.message_id
                    heard = Captured(
                        at_s=time.time(), exchange=names.CONTROL, key=one.key, body=one.body, message_id=own
                    )
                    self.messages.append(heard)
                self._came.notify_all()
            await delivery.ack()

    def forged(self, message_id: str) -> None:
        """Exclude a message that the test forged."""
        self._forged.add(message_id)

    async def settle(self) -> None:
        """Wait until all messages sent so far have arrived."""
        own = str(uuid.uuid4())
        await self._bus.publish(names.CONTROL, BusMessage(key=END, body=b"{}", message_id=own))
        async with asyncio.timeout(PATIENCE_S), self._came:
            await self._came.wait_for(lambda: own in self._ends)

    def said(self, key: str) -> list[dict[str, Any]]:
        """Return the bodies under a routing key, which may contain * and # as in bindings."""
        return [json.loads(one.body) for one in self.trace() if names.matches(key, one.key)]

    def trace(self) -> list[Captured]:
        """Return the messages that the test did not forge."""
        return [one for one in self.messages if one.message_id not in self._forged]

    async def check(self, *, complete: bool = True) -> None:
        """Raise AssertionError if a message breaks its schema or a rule."""
        await self.settle()
        trace = self.trace()
        assert trace, "nothing was heard"
        wrong = [f"schema: {fault}" for one in trace for fault in schema_faults(one)]
        wrong += map(str, conformance.check(trace, complete=complete, swarms=self._swarms))
        assert not wrong, "\n".join([*wrong[:20], f"{len(wrong)} faults in {len(trace)} messages"])


def _captured(one: BusMessage) -> Captured:
    return Captured(at_s=time.time(), exchange=names.CONTROL, key=one.key, body=one.body, message_id=one.message_id)


@functools.cache
def _validators() -> list[tuple[str, jsonschema.protocols.Validator]]:
    document = json.loads(Path(ROOT, "schemas", asyncapi.FILE).read_text(encoding="utf-8"))
    found = []
    for channel in document["channels"].values():
        (message,) = channel["messages"]
        validator = jsonschema.Draft202012Validator(document["components"]["schemas"][message])
        found.append((channel["address"], validator))
    return found


def schema_faults(one: Captured) -> list[str]:
    """Return how a message breaks the schema of its channel."""
    fitting = [validator for address, validator in _validators() if asyncapi.address_fits(address, one.key)]
    if not fitting:
        return [f"{one.key} is not a channel"]
    return [f"{one.key}: {error.json_path}: {error.message}" for error in fitting[0].iter_errors(json.loads(one.body))]
