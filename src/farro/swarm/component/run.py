"""Run a component: its control queue, health and status at all times, and its workload while it is enabled.

- Config updates and status requests are taken whether it is enabled or not. An update is checked as a whole before any
  of it is used; its error is in the status, under the correlation id of the signal. Updates run one at a time;
  status is sent meanwhile, even while an update drains the workload.
- A full status is sent at the start, on request, and every ten seconds; a delta when something changed.
- An unreachable bus, for however long, ends no component: once it is back, the component reports what it did meanwhile.
  [test_a_component_waits_for_a_bus_that_is_away]
- On SIGTERM items in progress are finished, the others go back, and the last status says that it is disabled.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from farro.errors import BusTrouble, FarroError, InputError
from farro.jobs.times import timestamp
from farro.log.structured import lines
from farro.swarm.bus import AGAIN_S, LostQueueCheck, open_bus, open_until, wait
from farro.swarm.bus.port import Binding, Bus, BusMessage, Consumer, Delivery
from farro.swarm.component.declare import Component, ComponentEnvironment
from farro.swarm.component.workload import ItemWorkload, ServiceWorkload, Workload
from farro.swarm.lifecycle import HEARTBEAT_S, ComponentState
from farro.swarm.wire import messages, names
from farro.swarm.wire.names import Scope, Signal

DRAIN_S = 30.0  # seed 003 §8
LAST_STATUS_S = 3.0  # for the last status
SWITCH_STATUS_S = 1.0  # for the status before the workload is started or ended


class ComponentRunner:
    """One component of one swarm on an open bus."""

    def __init__(self, component: Component[Any], bus: Bus, environment: ComponentEnvironment) -> None:
        if component.declared is None:
            raise InputError(f"{component.role} has no function: decorate one with source, transform, sink or service")
        self._component = component
        self._bus = bus
        self._environment = environment
        self._raw: dict[str, Any] = dict(environment.config or {})
        self._config = component.read_config(self._raw)
        self._workload: Workload
        if component.declared.kind == "service":
            self._workload = ServiceWorkload(component, lambda: self._config, self._health_change)
        else:
            self._workload = ItemWorkload(component, bus, environment, lambda: self._config)
        self._health = HealthServer(self._health_data)
        self._health_port = 0
        self._enabled = False
        self._state = ComponentState.HEALTHY
        self._last_update: dict[str, Any] = {}  # of the last config update: its correlation id and error
        self._started_s = time.monotonic()
        self._control: Consumer | None = None
        self._stopped = asyncio.Event()
        self._updates: asyncio.Queue[tuple[Delivery, str, dict[str, Any]]] = asyncio.Queue()
        self._switching = asyncio.Lock()  # one task at a time starts or ends the workload
        self._health_changed = asyncio.Event()
        self._refused = RefusedSignals(environment.instance)
        self.drained = True  # whether all items in progress ended in time

    async def run(self) -> None:
        """Run until `stop`."""
        self._health_port = await self._health.open(self._environment.health_host, self._environment.health_port)
        while True:
            with contextlib.suppress(BusTrouble):
                self._control = await self._consume_control()
                break
            if await wait(self._stopped, AGAIN_S):
                await self._health.close()
                return
        with contextlib.suppress(BusTrouble):  # the next heartbeat reports it
            await self._report("status-full")
        tasks: list[asyncio.Task[None]] = [
            asyncio.create_task(one) for one in (self._beat(), self._listen(self._control), self._report_health())
        ]
        updating, stopped = asyncio.create_task(self._take_updates()), asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait({*tasks, updating, stopped}, return_when=asyncio.FIRST_COMPLETED)
            for task in (*tasks, updating):
                if task.done():
                    task.result()  # raises its error
        finally:
            stopped.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, stopped, return_exceptions=True)
            await self._leave(updating)
        if self._workload.exit is not None:
            raise self._workload.exit

    async def _consume_control(self) -> Consumer:
        queue = names.control_queue(self._environment.role, self._environment.instance)
        scope = Scope(role=self._environment.role, instance=self._environment.instance)
        keys = [names.signal_key(signal_, scope) for signal_ in (Signal.CONFIG, Signal.STATUS)]
        await self._bus.declare(queue, [Binding(names.CONTROL, key) for key in keys])
        return await self._bus.consume(queue, prefetch=16)

    def stop(self) -> None:
        self._stopped.set()
        self._workload.stop_waiting()

    async def _leave(self, updating: asyncio.Task[None]) -> None:
        async with self._switching:  # an update in progress is finished first
            self.drained = await self._switch(False) and await self._workload.end(DRAIN_S)
        updating.cancel()
        await asyncio.gather(updating, return_exceptions=True)
        with contextlib.suppress(BusTrouble, TimeoutError):  # an unreachable bus must not delay the end
            async with asyncio.timeout(LAST_STATUS_S):
                await self._report("status-delta")
        if self._control is not None:
            await self._control.close()
        await self._health.close()

    # --- control signals ---

    async def _listen(self, control: Consumer) -> None:
        async for delivery in control:
            try:
                if await self._handle(delivery):
                    continue  # acknowledged when it is carried out
            except InputError as error:  # forged or broken: not a signal, and no sender waits for an answer
                self._refused.note(delivery.message.key, str(error))
            except BusTrouble:
                pass  # the next heartbeat answers the status request
            await delivery.ack()

    async def _handle(self, delivery: Delivery) -> bool:
        """Handle a signal. Return whether it is an update, which is acknowledged later."""
        message = delivery.message
        key = names.read_key(message.key)
        received = messages.read(key, message.body)
        if not isinstance(received, messages.ControlSignal):
            return False
        if received.swarm_id not in (None, self._environment.swarm):
            raise InputError(f"ControlSignal: it names another swarm than {self._environment.swarm}")
        if key.signal is Signal.STATUS:
            await self._report("status-full", {"correlationId": received.correlation_id})
            return False
        if not self._refused.first(received.idempotency_key):
            if not delivery.redelivered:  # a bus may redeliver; a replay would undo later updates
                raise InputError(f"ControlSignal: {received.correlation_id} was received and obeyed before")
            return False
        self._updates.put_nowait((delivery, received.correlation_id, dict(received.args or {})))
        return True

    async def _take_updates(self) -> None:
        while True:
            delivery, correlation_id, args = await self._updates.get()
            async with self._switching:
                if self._stopped.is_set():
                    return  # not acknowledged, so it goes back
                await self._update(correlation_id, args)
            await delivery.ack()

    async def _update(self, correlation_id: str, args: dict[str, Any]) -> None:
        """Apply a whole update, or nothing with the error. No status mentions it before it is done: the controller
        takes the first one that does as its end."""
        enabled = args.pop("enabled", self._enabled)
        result = {"correlationId": correlation_id}
        try:
            if not isinstance(enabled, bool):
                raise InputError("enabled must be true or false")
            if args:
                raw = {**self._raw, **args}
                config = self._component.read_config(raw)
                await self._component.told_config(config)
                self._raw, self._config = raw, config
            if not await self._switch(enabled):
                result["notes"] = f"items in progress did not end in {DRAIN_S:g} s and go back"
        except FarroError as error:
            result["error"] = str(error)
        except Exception as error:  # noqa: BLE001 - an error of on_config refuses the update
            result["error"] = f"{type(error).__name__}: {error}"
        self._last_update = result
        with contextlib.suppress(BusTrouble):  # every status reports it, so the next heartbeat does
            await self._report("status-delta")

    async def _switch(self, enabled: bool) -> bool:
        """Start or end the workload. Return whether all items in progress ended in time."""
        drained, before = True, self._state
        if enabled != self._enabled:
            await self._report_state(ComponentState.STARTING if enabled else ComponentState.STOPPING)
            try:
                if enabled:
                    await self._workload.begin()
                else:
                    drained = await self._workload.end(DRAIN_S)
            except BaseException:
                self._state = before
                raise
            self._enabled, self._state = enabled, ComponentState.RUNNING if enabled else ComponentState.STOPPED
        return drained

    async def _report_state(self, state: ComponentState) -> None:
        """Report that the workload is being started or ended; the status after it reports the result."""
        self._state = state
        with contextlib.suppress(BusTrouble, TimeoutError):  # an unreachable bus must not delay it
            async with asyncio.timeout(SWITCH_STATUS_S):
                await self._report("status-delta")

    async def _beat(self) -> None:
        lost_queue = LostQueueCheck(self._bus, names.control_queue(self._environment.role, self._environment.instance))
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            with contextlib.suppress(BusTrouble):
                await self._report("status-full")
            await lost_queue.check_if_due(time.monotonic())

    # --- status ---

    def _health_change(self) -> None:
        """Report that the service failed or recovered."""
        self._health_changed.set()
        if self._workload.exit is not None:
            self.stop()

    async def _report_health(self) -> None:
        while True:
            await self._health_changed.wait()
            self._health_changed.clear()
            with contextlib.suppress(BusTrouble):
                await self._report("status-delta")

    def _health_data(self) -> tuple[bool, dict[str, object]]:
        environment = self._environment
        data = {
            "swarmId": environment.swarm,
            "role": environment.role,
            "instance": environment.instance,
            "enabled": self._enabled,
        }
        return self._workload.trouble is None, data

    async def _report(
        self, kind: Literal["status-full", "status-delta"], more: Mapping[str, Any] | None = None
    ) -> None:
        self._workload.count()
        counts, environment = self._workload.counts, self._environment
        data: dict[str, Any] = {
            "tps": counts.tps(time.monotonic()),
            "done": counts.done,
            "failed": counts.failed,
            "deadLetters": counts.dead,
            "health": "UP" if self._workload.trouble is None else "DOWN",
            "update": dict(self._last_update),
            **({"told": self._component.told} if self._component.told else {}),
            **self._refused.status(),
            **(more or {}),
        }
        if counts.last_error is not None:
            data["lastError"] = counts.last_error
        if kind == "status-full":
            data |= {
                "pid": os.getpid(),
                "healthUrl": f"http://{environment.health_host}:{self._health_port}/actuator/health",
                "config": self._raw,
                "uptimeSec": round(time.monotonic() - self._started_s, 3),
            }
        at, enabled, healthy = timestamp(datetime.now(UTC)), int(self._enabled), int(self._workload.trouble is None)
        status = messages.StatusReport(
            kind=kind,
            version=self._component.version,
            message_id=str(uuid.uuid4()),
            timestamp=at,
            role=environment.role,
            instance=environment.instance,
            swarm_id=environment.swarm,
            enabled=self._enabled,
            state=self._state,
            watermark=at,  # of a component itself: as old as this message
            max_staleness_sec=0.0,
            totals=messages.Totals(total=1, desired=1, healthy=healthy, running=enabled & healthy, enabled=enabled),
            queues=messages.StatusQueues(
                inputs=environment.input_queues,
                outputs=tuple(names.work_queue(environment.swarm, suffix) for suffix in environment.outputs),
            ),
            data=data,
        )
        key = names.status_key(kind, environment.role, environment.instance)
        sent = BusMessage(key=key, body=messages.encode(status), message_id=status.message_id, lasting=False)
        await self._bus.publish(names.CONTROL, sent)


def main(component: Component[Any]) -> None:
    """Run a component as a program: errors are printed in one line, without a traceback."""
    try:
        environment = ComponentEnvironment.of(os.environ, component.role)
        asyncio.run(_run(component, environment))
    except FarroError as error:
        print(f"{component.role}: {error}", file=sys.stderr)  # noqa: T201 - output of a program
        sys.exit(error.exit_code)


async def _run(component: Component[Any], environment: ComponentEnvironment) -> None:
    over, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)

    def complain(text: str) -> None:
        print(f"{component.role}: {text}", file=sys.stderr, flush=True)  # noqa: T201 - output of a program

    bus = await open_until(over, lambda: open_bus(environment.bus), complain)
    if bus is None:
        return
    try:
        runner = ComponentRunner(component, bus, environment)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, runner.stop)
        if over.is_set():
            runner.stop()
        await runner.run()
    finally:
        await bus.close()
    if not runner.drained:
        # A thread of the workload does not end, and the interpreter would wait for it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


# --- refused signals ---

REMEMBERED = 1000  # signals: an older one that is replayed counts as new
_KEY_LIMIT = 200


class RefusedSignals:
    """Count and log signals that were not obeyed: broken, forged, of another swarm, or repeated.

    The count and the last of them are in the status, where the controller finds them for the swarm's audit log. No part
    of a body is logged. [test_forged_signals_are_ignored_and_reported]
    """

    def __init__(self, instance: str) -> None:
        self.count = 0
        self._last: dict[str, str] = {}
        self._known: dict[str, None] = {}  # idempotency keys, oldest first
        self._log = lines(instance, lambda: datetime.now(UTC), sys.stderr)

    def first(self, key: str) -> bool:
        """Return whether no update with that idempotency key was received before."""
        if key in self._known:
            return False
        self._known[key] = None
        if len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]
        return True

    def note(self, key: str, why: str) -> None:
        self.count += 1
        self._last = {"lastKey": ascii(key)[1:-1][:_KEY_LIMIT], "lastReason": why[:500]}
        self._log("warning", "ignored", {"key": self._last["lastKey"], "why": self._last["lastReason"]})

    def status(self) -> dict[str, Any]:
        """Return the entry for the status."""
        return {"refused": {"count": self.count, **self._last}} if self.count else {}


# --- health ---

PATHS = (b"/actuator/health", b"/healthz")
_LINE_LIMIT = 4096
_PATIENCE_S = 5.0


class HealthServer:
    """A small HTTP server: /actuator/health and /healthz, GET and HEAD only. No part of a request is repeated in an
    answer. `health` returns whether the component is up, and more data for the answer."""

    def __init__(self, health: Callable[[], tuple[bool, dict[str, object]]]) -> None:
        self._health = health
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen and return the port."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_LINE_LIMIT)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_PATIENCE_S):
                line = await reader.readline()
                for _ in range(100):  # the headers are read, so that the client is not cut off, and ignored
                    if (await reader.readline()).strip() == b"":
                        break
                writer.write(self._answer(line))
                await writer.drain()
        writer.close()

    def _answer(self, line: bytes) -> bytes:
        words = line.split()
        if len(words) != 3 or words[0] not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", {"error": "only GET"}, body=True)
        if words[1].split(b"?", 1)[0] not in PATHS:
            return _response("404 Not Found", {"error": "there is /actuator/health and /healthz"}, body=True)
        up, more = self._health()
        answer = {"status": "UP" if up else "DOWN", **more}
        return _response("200 OK" if up else "503 Service Unavailable", answer, body=words[0] == b"GET")


def _response(status: str, answer: dict[str, object], *, body: bool) -> bytes:
    data = json.dumps(answer).encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (data if body else b"")
