"""A component at work: its control plane, which is always on, its health, its status, and its workload when enabled.

The workload itself lives in working, that of a service in serving; what its starter tells it lives in surroundings.

- Config updates and status requests are taken whether it is enabled or not. An update is checked as a whole before any
  of it holds; what was wrong with it stands in the status, under the correlation id of the signal. Updates are taken
  one after the other; status is told meanwhile, also while one of them drains the workload.
- Status: all of it at the start, when asked, and every ten seconds; a delta when something changed.
- A bus that is away, for however long, ends no component: it comes back to it, and tells then what it did meanwhile.
  [test_a_component_waits_for_a_bus_that_is_away]
- SIGTERM: what is under way ends, the rest goes back, and the last status says that it is disabled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from farro.errors import BusTrouble, FarroError, InputError
from farro.jobs.times import timestamp
from farro.swarm.bus.open import opened
from farro.swarm.bus.port import Binding, Bus, Consumer, Delivery, Message
from farro.swarm.component.declare import Component
from farro.swarm.component.environment import Surroundings
from farro.swarm.component.health import HealthServer
from farro.swarm.component.lost_queue import Ears
from farro.swarm.component.refusals import Refusals
from farro.swarm.component.service_workload import Serving
from farro.swarm.component.workload import Workload
from farro.swarm.status import HEARTBEAT_S
from farro.swarm.wire import messages, names
from farro.swarm.wire.names import Scope, Signal

DRAIN_S = 30.0  # seed 003 §8
LAST_WORD_S = 3.0  # for saying that it goes
AGAIN_S = 2.0  # after a bus was away for longer than it is waited for


class Member:
    """One component of one swarm, on a bus that is open."""

    def __init__(self, component: Component[Any], bus: Bus, about: Surroundings) -> None:
        if component.declared is None:
            raise InputError(f"{component.role} has no function: decorate one with source, transform, sink or service")
        self._component = component
        self._bus = bus
        self._about = about
        self._raw: dict[str, Any] = dict(about.config or {})
        self._config = component.read_config(self._raw)
        self._workload: Workload | Serving
        if component.declared.kind == "service":
            self._workload = Serving(component, lambda: self._config, self._turned)
        else:
            self._workload = Workload(component, bus, about, lambda: self._config)
        self._health = HealthServer(self._well)
        self._health_port = 0
        self._enabled = False
        self._told: dict[str, Any] = {}  # of the last config update: its correlation id, and what was wrong
        self._started_s = time.monotonic()
        self._control: Consumer | None = None
        self._stopped = asyncio.Event()
        self._updates: asyncio.Queue[tuple[Delivery, str, dict[str, Any]]] = asyncio.Queue()
        self._switching = asyncio.Lock()  # the workload is begun or ended by one at a time
        self._health_changed = asyncio.Event()
        self._refused = Refusals(about.instance)
        self.drained = True  # whether everything that was under way ended in time when it was left

    async def run(self) -> None:
        """Until `stop`."""
        self._health_port = await self._health.open(self._about.health_host, self._about.health_port)
        while True:
            with contextlib.suppress(BusTrouble):
                self._control = await self._join()
                break
            if await _within(AGAIN_S, self._stopped):
                await self._health.close()
                return
        with contextlib.suppress(BusTrouble):  # then the next beat tells it
            await self._say("status-full")
        tasks: list[asyncio.Task[None]] = [
            asyncio.create_task(one) for one in (self._beat(), self._listen(self._control), self._tell_health())
        ]
        updating, stopped = asyncio.create_task(self._take_updates()), asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait({*tasks, updating, stopped}, return_when=asyncio.FIRST_COMPLETED)
            for task in (*tasks, updating):
                if task.done():
                    task.result()  # raises what ended it
        finally:
            stopped.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, stopped, return_exceptions=True)
            await self._leave(updating)
        if isinstance(self._workload, Serving) and self._workload.exit is not None:
            raise self._workload.exit

    async def _join(self) -> Consumer:
        queue = names.control_queue(self._about.role, self._about.instance)
        scope = Scope(role=self._about.role, instance=self._about.instance)
        keys = [names.signal_key(signal_, scope) for signal_ in (Signal.CONFIG, Signal.STATUS)]
        await self._bus.declare(queue, [Binding(names.CONTROL, key) for key in keys])
        return await self._bus.consume(queue, prefetch=16)

    def stop(self) -> None:
        self._stopped.set()
        if isinstance(self._workload, Serving):
            self._workload.hurry()

    async def _leave(self, updating: asyncio.Task[None]) -> None:
        async with self._switching:  # an update that is being carried out is waited for, not cut off
            self.drained = await self._workload.end(DRAIN_S)
            self._enabled = False
        updating.cancel()
        await asyncio.gather(updating, return_exceptions=True)
        with contextlib.suppress(BusTrouble, TimeoutError):  # a bus that is away keeps nobody from leaving
            async with asyncio.timeout(LAST_WORD_S):
                await self._say("status-delta")
        if self._control is not None:
            await self._control.close()
        await self._health.close()

    # --- the control plane ---

    async def _listen(self, control: Consumer) -> None:
        async for delivery in control:
            try:
                if await self._obey(delivery):
                    continue  # acknowledged when it is carried out
            except InputError as error:  # forged or broken: no signal, and nobody waits for an answer
                self._refused.note(delivery.message.key, str(error))
            except BusTrouble:
                pass  # whoever asked how we are hears it with the next beat
            await delivery.ack()

    async def _obey(self, delivery: Delivery) -> bool:
        """Whether it is an update, which is carried out in its turn."""
        message = delivery.message
        key = names.read_key(message.key)
        if key.kind != "signal" or key.signal is None:
            return False
        told = messages.read_signal(message.body, key.signal, key.scope)
        if told.swarm_id not in (None, self._about.swarm):
            raise InputError(f"ControlSignal: it is of another swarm than {self._about.swarm}")
        if key.signal is Signal.STATUS:
            await self._say("status-full", {"correlationId": told.correlation_id})
            return False
        if not self._refused.first(told.correlation_id):
            if not delivery.redelivered:  # which a bus may do; whoever says it anew has an older wish than our last one
                raise InputError(f"ControlSignal: {told.correlation_id} came before, and was obeyed then")
            return False
        self._updates.put_nowait((delivery, told.correlation_id, dict(told.args or {})))
        return True

    async def _take_updates(self) -> None:
        while True:
            delivery, correlation_id, args = await self._updates.get()
            async with self._switching:
                if self._stopped.is_set():
                    return  # not acknowledged: it goes back
                await self._update(correlation_id, args)
            await delivery.ack()

    async def _update(self, correlation_id: str, args: dict[str, Any]) -> None:
        """All of it, or nothing and why. No status tells of it before it is done: who waits takes that for its end."""
        enabled = args.pop("enabled", self._enabled)
        told = {"correlationId": correlation_id}
        try:
            if not isinstance(enabled, bool):
                raise InputError("enabled must be true or false")
            if args:
                raw = {**self._raw, **args}
                config = self._component.read_config(raw)
                await self._component.told_config(config)
                self._raw, self._config = raw, config
            if not await self._switch(enabled):
                told["notes"] = f"what was under way did not end in {DRAIN_S:g} s and goes back"
        except FarroError as error:
            told["error"] = str(error)
        except Exception as error:  # noqa: BLE001 - what on_config raised is an update that was refused
            told["error"] = f"{type(error).__name__}: {error}"
        self._told = told
        with contextlib.suppress(BusTrouble):  # every status tells of it: so does the next beat
            await self._say("status-delta")

    async def _switch(self, enabled: bool) -> bool:
        """Whether what was under way ended in time."""
        drained = True
        if enabled and not self._enabled:
            await self._workload.begin()
        elif not enabled and self._enabled:
            drained = await self._workload.end(DRAIN_S)
        self._enabled = enabled
        return drained

    async def _beat(self) -> None:
        ears = Ears(self._bus, names.control_queue(self._about.role, self._about.instance))
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            with contextlib.suppress(BusTrouble):
                await self._say("status-full")
            await ears.check_sometimes(time.monotonic())

    # --- status ---

    def _turned(self) -> None:
        """The service broke, or is well again."""
        self._health_changed.set()
        if isinstance(self._workload, Serving) and self._workload.exit is not None:
            self.stop()

    async def _tell_health(self) -> None:
        while True:
            await self._health_changed.wait()
            self._health_changed.clear()
            with contextlib.suppress(BusTrouble):
                await self._say("status-delta")

    @property
    def _trouble(self) -> str | None:
        return self._workload.trouble if isinstance(self._workload, Serving) else None

    def _well(self) -> tuple[bool, dict[str, object]]:
        about = self._about
        told = {"swarmId": about.swarm, "role": about.role, "instance": about.instance, "enabled": self._enabled}
        return self._trouble is None, told

    async def _say(self, kind: Literal["status-full", "status-delta"], more: Mapping[str, Any] | None = None) -> None:
        if isinstance(self._workload, Serving):
            self._workload.count()
        counts, about = self._workload.counts, self._about
        data: dict[str, Any] = {
            "tps": counts.tps(time.monotonic()),
            "done": counts.done,
            "failed": counts.failed,
            "deadLetters": counts.dead,
            "health": "UP" if self._trouble is None else "DOWN",
            "update": dict(self._told),
            **({"told": self._component.told} if self._component.told else {}),
            **self._refused.told(),
            **(more or {}),
        }
        if counts.last_error is not None:
            data["lastError"] = counts.last_error
        if kind == "status-full":
            data |= {
                "pid": os.getpid(),
                "healthUrl": f"http://{about.health_host}:{self._health_port}/actuator/health",
                "config": self._raw,
                "uptimeSec": round(time.monotonic() - self._started_s, 3),
            }
        at, on, well = timestamp(datetime.now(UTC)), int(self._enabled), int(self._trouble is None)
        status = messages.Status(
            kind=kind,
            version=self._component.version,
            message_id=str(uuid.uuid4()),
            timestamp=at,
            role=about.role,
            instance=about.instance,
            swarm_id=about.swarm,
            enabled=self._enabled,
            state="Running" if self._enabled else "Healthy",
            watermark=at,  # its own word: as old as itself
            max_staleness_sec=0.0,
            totals=messages.Totals(desired=1, healthy=well, running=on & well, enabled=on),
            queues=messages.Queues(
                inputs=about.input_queues,
                outputs=tuple(names.work_queue(about.swarm, suffix) for suffix in about.outputs),
            ),
            data=data,
        )
        key = names.status_key(kind, about.role, about.instance)
        sent = Message(key=key, body=messages.encode(status), message_id=status.message_id, lasting=False)
        await self._bus.publish(names.CONTROL, sent)


def main(component: Component[Any]) -> None:
    """As a program: what is wrong is told in a line, and no traceback."""
    try:
        about = Surroundings.of(os.environ, component.role)
        asyncio.run(_run(component, about))
    except FarroError as error:
        print(f"{component.role}: {error}", file=sys.stderr)  # noqa: T201 - a program's own words
        sys.exit(error.exit_code)


async def _run(component: Component[Any], about: Surroundings) -> None:
    over, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    bus = await _opened(component.role, about.bus, over)
    if bus is None:
        return
    try:
        member = Member(component, bus, about)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, member.stop)
        if over.is_set():
            member.stop()
        await member.run()
    finally:
        await bus.close()
    if not member.drained:
        # A thread of the workload does not end, and the interpreter would wait for it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


async def _opened(role: str, address: str, over: asyncio.Event) -> Bus | None:
    """As soon as there is one; None: `over` came first. A controller that starts components again and again while the
    broker is away would give them up."""
    while True:
        opening, ending = asyncio.create_task(opened(address)), asyncio.create_task(over.wait())
        await asyncio.wait({opening, ending}, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if not opening.done():
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            return None
        try:
            return opening.result()
        except BusTrouble as error:
            print(f"{role}: {error}; tried again in {AGAIN_S:g} s", file=sys.stderr, flush=True)  # noqa: T201
        if await _within(AGAIN_S, over):
            return None


async def _within(seconds: float, event: asyncio.Event) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
