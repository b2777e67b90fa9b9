"""A test kit: run a component on a bus in a folder, without a swarm, a controller or a second process.

async with trial(bee, folder, inputs=["raw"], outputs=["good"], config={"limit": 3}) as it:
    await it.enable()
    await it.feed("raw", {"n": 1})
    assert await it.next("good") == {"n": 1, "good": True}
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from farro.jobs.times import timestamp
from farro.swarm.bus.files import FilesBus
from farro.swarm.bus.port import Binding, Bus, BusMessage, Consumer
from farro.swarm.component.declare import Component, ComponentEnvironment
from farro.swarm.component.run import ComponentRunner
from farro.swarm.publish import ControlPublisher
from farro.swarm.wire import messages, names
from farro.swarm.wire.names import Scope, Signal

SWARM = "trial"
PATIENCE_S = 30.0


class Trial:
    """The actions of a test on a running component."""

    def __init__(self, bus: Bus, environment: ComponentEnvironment, status: Consumer) -> None:
        self._bus = bus
        self._about = environment
        self._status = status
        self._outputs: dict[str, Consumer] = {}

    async def feed(self, queue: str, item: Any) -> None:
        body = json.dumps(item).encode()
        await self._bus.publish(self._about.exchange, BusMessage(key=queue, body=body, message_id=str(uuid.uuid4())))

    async def next(self, queue: str, timeout_s: float = PATIENCE_S) -> Any:
        """Return the next item of an output queue."""
        if queue not in self._outputs:
            self._outputs[queue] = await self._bus.consume(names.work_queue(SWARM, queue))
        async with asyncio.timeout(timeout_s):
            delivery = await anext(aiter(self._outputs[queue]))
        await delivery.ack()
        return json.loads(delivery.message.body)

    async def depth(self, queue: str) -> int:
        found = await self._bus.depth(names.work_queue(SWARM, queue))
        return 0 if found is None else found.ready + (found.taken or 0)

    async def dead_letters(self, queue: str) -> int:
        found = await self._bus.depth(names.dead_letters(names.work_queue(SWARM, queue)))
        return 0 if found is None else found.ready

    async def enable(self) -> messages.StatusReport:
        return await self.update(enabled=True)

    async def disable(self) -> messages.StatusReport:
        return await self.update(enabled=False)

    async def update(self, **args: Any) -> messages.StatusReport:
        """Send a config update, and return the status that reports its result."""
        return await self._signal(Signal.CONFIG, args)

    async def ask(self) -> messages.StatusReport:
        """Request a full status."""
        return await self._signal(Signal.STATUS, None)

    async def _signal(self, kind: Signal, args: Mapping[str, Any] | None) -> messages.StatusReport:
        scope = Scope(swarm=SWARM, role=self._about.role, instance=self._about.instance)
        publisher, correlation_id = ControlPublisher(self._bus, lambda: timestamp(datetime.now(UTC))), str(uuid.uuid4())
        await publisher.signal(kind, scope, args, origin=SWARM, correlation_id=correlation_id)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                status = await self.status()
                update = status.data.get("update") or {}
                if correlation_id in (update.get("correlationId"), status.data.get("correlationId")):
                    return status

    async def status(self) -> messages.StatusReport:
        """Return the next status that the component sends."""
        delivery = await anext(aiter(self._status))
        await delivery.ack()
        return messages.decode(messages.StatusReport, delivery.message.body)


@contextlib.asynccontextmanager
async def trial(
    component: Component[Any],
    folder: str,
    *,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
) -> AsyncIterator[Trial]:
    """Run the component, disabled at first, inside the block."""
    environment = ComponentEnvironment(
        bus=f"files:{folder}",
        swarm=SWARM,
        role=component.role,
        instance=f"{SWARM}-{component.role}",
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        config=config,
    )
    bus, own = FilesBus(folder, durable=False), FilesBus(folder, durable=False)
    for suffix in (*inputs, *outputs):
        queue = names.work_queue(SWARM, suffix)
        await bus.declare(names.dead_letters(queue))
        binding = Binding(environment.exchange, suffix)
        await bus.declare(queue, [binding], dead_letters=names.dead_letters(queue))
    await bus.declare("trial-status", [Binding(names.CONTROL, "ev.#")])
    status = await bus.consume("trial-status", prefetch=100)
    member = ComponentRunner(component, own, environment)
    running = asyncio.create_task(member.run())
    try:
        it = Trial(bus, environment, status)
        first = asyncio.create_task(it.status())  # its first status says that it is up
        await asyncio.wait({first, running}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        await first
        yield it
    finally:
        member.stop()
        await asyncio.gather(running, return_exceptions=True)
        await own.close()
        await bus.close()
