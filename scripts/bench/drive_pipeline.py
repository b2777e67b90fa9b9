"""Run a pipeline of three processes, source → transform → sink, with farro's SDK or directly on aio-pika.

    python -m bench.drive_pipeline farro ITEMS      on the bus BENCH_BUS; its answer: rate, CPU of the three processes
    python -m bench.drive_pipeline bare ITEMS       the same promises by hand, on the RabbitMQ of BENCH_BUS
    python -m bench.drive_pipeline member farro|bare source|transform|sink

Both use durable queues, persistent messages, publisher confirms, the same prefetch, and JSON in and out. An item is
acknowledged when its result was confirmed; the source is up to a hundred items ahead of its confirms; the functions do
nothing else. The sink records when each item arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
import uuid
from typing import Any

from bench import gear
from bench.cpu import used_s

PREFETCH, BATCH = 100, 100
QUEUES = ("raw", "done")
ROLES = {"source": ((), ("raw",)), "transform": (("raw",), ("done",)), "sink": (("done",), ())}
SWARM = "bench"
_numbers = itertools.count()


def make() -> list[dict[str, int]]:
    return [{"n": next(_numbers), "at": time.time_ns()} for _ in range(BATCH)]


def change(item: dict[str, int]) -> dict[str, int]:
    return {**item, "changed": 1}


def keep(item: dict[str, int]) -> None:
    gear.work()


# --- farro -----------------------------------------------------------------------------------------------------------


def member_of_farro(role: str) -> None:
    from farro.swarm.component import Component

    bee: Component[Any] = Component(role, prefetch=PREFETCH)
    match role:
        case "source":
            bee.source(rate=1_000_000)(make)
        case "transform":
            bee.transform(change)
        case "sink":
            bee.sink(keep)
    bee.run()


async def enabled(address: str) -> dict[str, subprocess.Popen[bytes]]:
    """Start and enable the three components, readers first, so that no item waits for them."""
    from farro.swarm.bus import open_bus
    from farro.swarm.bus.port import Binding, BusMessage
    from farro.swarm.component.declare import ComponentEnvironment
    from farro.swarm.wire import messages, names
    from farro.swarm.wire.names import Scope, Signal

    bus = await open_bus(address)
    exchange = names.work_exchange(SWARM)
    for suffix in QUEUES:
        queue = names.work_queue(SWARM, suffix)
        await bus.declare(names.dead_letters(queue))
        await bus.declare(queue, [Binding(exchange, suffix)], dead_letters=names.dead_letters(queue))
    await bus.declare("bench-status", [Binding(names.CONTROL, "ev.status-full.#")])
    told = aiter(await bus.consume("bench-status", prefetch=100))
    running = {}
    for role, (inputs, outputs) in reversed(ROLES.items()):
        about = ComponentEnvironment(
            bus=address, swarm=SWARM, role=role, instance=f"{SWARM}-{role}", inputs=inputs, outputs=outputs
        )
        running[role] = start("farro", role, dict(about.to_env()))
    up: set[str] = set()
    while up != set(ROLES):
        delivery = await anext(told)
        up.add(json.loads(delivery.message.body)["role"])
        await delivery.ack()
    for role in reversed(ROLES):
        scope = Scope(swarm=SWARM, role=role, instance=f"{SWARM}-{role}")
        own = str(uuid.uuid4())
        body = messages.ControlSignal(
            correlation_id=own,
            idempotency_key=own,
            signal=Signal.CONFIG.value,
            swarm_id=SWARM,
            role=role,
            instance=scope.instance,
            args={"enabled": True},
        )
        key = names.signal_key(Signal.CONFIG, Scope(role=role, instance=scope.instance))
        await bus.publish(names.CONTROL, BusMessage(key=key, body=messages.encode(body), message_id=own))
    await bus.close()
    return running


# --- bare ------------------------------------------------------------------------------------------------------------


async def member_by_hand(role: str) -> None:
    import aio_pika

    inputs, outputs = ROLES[role]
    connection = await aio_pika.connect_robust(os.environ["BENCH_BUS"])
    sending = await connection.channel(publisher_confirms=True)
    exchange = await sending.declare_exchange("bare.hive", "topic", durable=True)

    async def publish(item: Any) -> None:
        message = aio_pika.BusMessage(
            json.dumps(item, separators=(",", ":")).encode(),
            message_id=os.urandom(16).hex(),
            content_type="application/json",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        await exchange.publish(message, outputs[0], mandatory=False)

    async def take(incoming: aio_pika.abc.AbstractIncomingMessage) -> None:
        item = json.loads(incoming.body)
        if outputs:
            await publish(change(item))
        else:
            keep(item)
        await incoming.ack()

    if not inputs:
        while True:
            await asyncio.gather(*(publish(item) for item in make()))
    taking = await connection.channel()
    await taking.set_qos(prefetch_count=PREFETCH)
    queue = await taking.get_queue(f"bare.{inputs[0]}")
    await queue.consume(take)
    await asyncio.Future()


async def declared() -> dict[str, subprocess.Popen[bytes]]:
    import aio_pika

    connection = await aio_pika.connect_robust(os.environ["BENCH_BUS"])
    channel = await connection.channel()
    exchange = await channel.declare_exchange("bare.hive", "topic", durable=True)
    for suffix in QUEUES:
        queue = await channel.declare_queue(f"bare.{suffix}", durable=True)
        await queue.purge()
        await queue.bind(exchange, suffix)
    await connection.close()
    return {role: start("bare", role, {}) for role in reversed(ROLES)}


# --- both ------------------------------------------------------------------------------------------------------------


def start(kind: str, role: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench.drive_pipeline", "member", kind, role]
    return subprocess.Popen(command, env={**os.environ, **env}, stdin=subprocess.DEVNULL, start_new_session=True)


def measure(kind: str, items: int) -> dict[str, float]:
    """Return the rate at the sink between the first tenth and the last item; items sent before do not count."""
    tally = os.environ["BENCH_TALLY"]
    running = asyncio.run(enabled(os.environ["BENCH_BUS"]) if kind == "farro" else declared())
    try:
        pids = {process.pid for process in running.values()}
        reach(tally, items // 10, running)
        before_s = used_s(pids)
        reach(tally, items, running)
        cpu_s, counted = used_s(pids) - before_s, gear.ran(tally) - items // 10
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    times = [at for at, _ in gear.records(tally)]
    took_ns = times[items - 1] - times[items // 10]
    return {"per_s": (items - 1 - items // 10) * 1e9 / took_ns, "cpu_us": cpu_s * 1e6 / counted}


def reach(tally: str, items: int, running: dict[str, subprocess.Popen[bytes]]) -> None:
    until_s = time.monotonic() + 120
    while gear.ran(tally) < items:
        ended = [role for role, process in running.items() if process.poll() is not None]
        if ended or time.monotonic() > until_s:
            why = f"{ended[0]} ended" if ended else "it takes too long"
            raise SystemExit(f"{why} at {gear.ran(tally)} of {items} items")
        time.sleep(0.01)


def main() -> None:
    if sys.argv[1] == "member":
        _, _, kind, role = sys.argv
        with contextlib.suppress(KeyboardInterrupt):
            member_of_farro(role) if kind == "farro" else asyncio.run(member_by_hand(role))
    else:
        gear.answer(measure(sys.argv[1], int(sys.argv[2])))


if __name__ == "__main__":
    main()
