"""A test kit: a component on a bus in a folder, without a swarm, a controller or a second process.

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
from typing import Any

from farro.swarm.bus.files import FilesBus
from farro.swarm.bus.port import Binding, Bus, Consumer, Message
from farro.swarm.component.declare import Component
from farro.swarm.component.environment import Surroundings
from farro.swarm.component.run import Member
from farro.swarm.wire import messages, names
from farro.swarm.wire.names import Scope, Signal

SWARM = "trial"
PATIENCE_S = 30.0


class Trial:
    """What a test may do with it."""

    def __init__(self, bus: Bus, about: Surroundings, status: Consumer) -> None:
        self._bus = bus
        self._about = about
        self._status = status
        self._outputs: dict[str, Consumer] = {}

    async def feed(self, queue: str, item: Any) -> None:
        body = json.dumps(item).encode()
        await self._bus.publish(self._about.exchange, Message(key=queue, body=body, message_id=str(uuid.uuid4())))

    async def next(self, queue: str, timeout_s: float = PATIENCE_S) -> Any:
        """What comes out there next."""
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

    async def enable(self) -> messages.Status:
        return await self.update(enabled=True)

    async def disable(self) -> messages.Status:
        return await self.update(enabled=False)

    async def update(self, **args: Any) -> messages.Status:
        """Send a config update; the status that tells of it."""
        return await self._signal(Signal.CONFIG, args)

    async def ask(self) -> messages.Status:
        """Its full status."""
        return await self._signal(Signal.STATUS, None)

    async def _signal(self, signal: Signal, args: Mapping[str, Any] | None) -> messages.Status:
        scope = Scope(swarm=SWARM, role=self._about.role, instance=self._about.instance)
        told = messages.ControlSignal(
            correlation_id=str(uuid.uuid4()),
            idempotency_key=str(uuid.uuid4()),
            signal=signal.value,
            swarm_id=SWARM,
            role=scope.role,
            instance=scope.instance,
            args=None if args is None else dict(args),
        )
        key = names.signal_key(signal, scope)
        body = messages.encode(told)
        await self._bus.publish(names.CONTROL, Message(key=key, body=body, message_id=str(uuid.uuid4())))
        async with asyncio.timeout(PATIENCE_S):
            while True:
                status = await self.status()
                update = status.data.get("update") or {}
                if told.correlation_id in (update.get("correlationId"), status.data.get("correlationId")):
                    return status

    async def status(self) -> messages.Status:
        """The next that it says by itself."""
        delivery = await anext(aiter(self._status))
        await delivery.ack()
        return messages.decode(messages.Status, delivery.message.body)


@contextlib.asynccontextmanager
async def trial(
    component: Component[Any],
    folder: str,
    *,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
) -> AsyncIterator[Trial]:
    """The component runs, disabled, inside the block."""
    about = Surroundings(
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
        binding = Binding(about.exchange, suffix)
        await bus.declare(queue, [binding], dead_letters=names.dead_letters(queue))
    await bus.declare("trial-status", [Binding(names.CONTROL, "ev.#")])
    status = await bus.consume("trial-status", prefetch=100)
    member = Member(component, own, about)
    running = asyncio.create_task(member.run())
    try:
        it = Trial(bus, about, status)
        first = asyncio.create_task(it.status())  # it is up when it says so
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
