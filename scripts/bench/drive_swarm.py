"""Measure the control plane of swarms: the cost of a component beyond its process, and of the status of 500 components.

    python -m bench.drive_swarm start bare|swarm N   N components: started bare, or by a controller; seconds and CPU
    python -m bench.drive_swarm fan-in N SECONDS     N idle processes; this one sends the status of each once a second
    python -m bench.drive_swarm controller|component|bare  the processes that the other two start

The bus is BENCH_BUS, the folder BENCH_HOME. `bare` is the same program as `component` until it has read its environment
and opened its bus; everything after that (queue, status, signals) is the control plane. Each component reports the CPU
that it had used after its imports, because the difference between two starts of fifty processes is mostly noise.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any

from bench import gear
from bench.own import cpu_ns
from farro.host.clock import SystemClock
from farro.jobs.times import timestamp
from farro.swarm import plan
from farro.swarm.bus import open_bus
from farro.swarm.bus.port import Binding, Bus, BusMessage
from farro.swarm.component import Component
from farro.swarm.component.declare import ComponentEnvironment
from farro.swarm.wire import messages, names
from farro.swarm.wire.names import Scope, Signal
from farro.worker.process_runtime import ProcessRuntime

SWARM, ROLE, CONTROLLER = "bench", "member", "bench-marshal"
LIMIT_S = 240.0


def now() -> str:
    return timestamp(datetime.now(UTC))


# --- what is started -------------------------------------------------------------------------------------------------


def component() -> None:
    bee: Component[Any] = Component(ROLE)
    bee.source(every_s=3600)(lambda: None)
    import farro.swarm.bus.files  # opening the bus would import it
    import farro.swarm.component.run  # noqa: F401 - as `bare` does

    with open(f"{gear.home()}/begun-{os.getpid()}", "w") as file:
        file.write(str(time.process_time_ns()))
    bee.run()


async def bare() -> None:
    import farro.swarm.component.run  # noqa: F401 - as `component` does

    about = ComponentEnvironment.of(os.environ, ROLE)
    bus = await open_bus(about.bus)
    with open(f"{gear.home()}/up-{about.instance}", "w"):
        pass
    await asyncio.Event().wait()
    await bus.close()


async def controller() -> None:
    from farro.swarm.controller import Controller
    from farro.swarm.controller.actions import ControllerContext
    from farro.swarm.processes import environment

    home, address = gear.home(), os.environ["BENCH_BUS"]
    bus = await open_bus(address)
    env = {**environment(), "PYTHONPATH": os.environ["PYTHONPATH"]}
    context = ControllerContext(swarm=SWARM, instance=CONTROLLER, bus_address=address, folder=home, cwd=home, env=env)
    made = Controller(context, bus, runtime(), log=lambda level, message, fields: None, now=now)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, made.stop)
    await made.run()
    await bus.close()


def runtime() -> ProcessRuntime:
    return ProcessRuntime(f"{gear.home()}/components", SystemClock())


# --- a swarm, from outside -------------------------------------------------------------------------------------------


class Swarm:
    """A swarm whose controller runs in another process; this object sends signals and receives the answers."""

    def __init__(self, bus: Bus, process: subprocess.Popen[bytes]) -> None:
        self.bus = bus
        self.process = process
        self._ends: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self.up = asyncio.Event()

    async def listen(self, queue: str) -> None:
        async for delivery in await self.bus.consume(queue, prefetch=100):
            body = json.loads(delivery.message.body)
            if delivery.message.key == names.controller_up_key(CONTROLLER):
                self.up.set()
            elif (end := self._ends.get(body.get("correlationId", ""))) and not end.done():
                end.set_result(body)
            await delivery.ack()

    async def ask(self, what: Signal, args: Mapping[str, Any] | None = None) -> None:
        own = str(uuid.uuid4())
        self._ends[own] = asyncio.get_running_loop().create_future()
        told = messages.ControlSignal(
            correlation_id=own,
            idempotency_key=own,
            signal=what.value,
            swarm_id=SWARM,
            args=None if args is None else dict(args),
        )
        key = names.signal_key(what, Scope(swarm=SWARM))
        await self.bus.publish(names.CONTROL, BusMessage(key=key, body=messages.encode(told), message_id=own))
        end = await self._ends[own]
        if end["result"] != "success":
            raise SystemExit(f"{what}: {end['code']}: {end['message']}")


@contextlib.asynccontextmanager
async def swarm() -> AsyncIterator[Swarm]:
    os.makedirs(f"{gear.home()}/logs", exist_ok=True)
    bus = await open_bus(os.environ["BENCH_BUS"])
    keys = [
        f"ev.{outcome}.{what}.{SWARM}" for outcome in ("ready", "error") for what in Signal if not what.of_component
    ]
    keys.append(names.controller_up_key(CONTROLLER))
    queue = f"bench-{uuid.uuid4().hex}"
    await bus.declare(queue, [Binding(names.CONTROL, key) for key in keys])
    made = Swarm(bus, started("controller", {}))
    listening = asyncio.create_task(made.listen(queue))
    try:
        async with asyncio.timeout(LIMIT_S):
            await made.up.wait()
            yield made
    finally:
        listening.cancel()
        made.process.terminate()
        made.process.wait()
        living = runtime()
        living.stop([seen.name for seen in living.list()], 1.0)
        await bus.delete(names.control_queue(names.CONTROLLER, CONTROLLER))
        await bus.delete(queue)
        await bus.close()


def started(what: str, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench.drive_swarm", what]
    return subprocess.Popen(command, env={**os.environ, **env}, stdin=subprocess.DEVNULL, start_new_session=True)


# --- starting --------------------------------------------------------------------------------------------------------


def start_bare(count: int) -> dict[str, float]:
    home, running = gear.home(), []
    began_s = time.monotonic()
    try:
        for number in range(count):
            about = ComponentEnvironment(bus=os.environ["BENCH_BUS"], swarm=SWARM, role=ROLE, instance=f"bare-{number}")
            running.append(started("bare", about.to_env()))
        while any(not os.path.exists(f"{home}/up-bare-{number}") for number in range(count)):
            if time.monotonic() > began_s + LIMIT_S or any(process.poll() is not None for process in running):
                raise SystemExit("bare processes did not come up")
            time.sleep(0.005)
        return {"wall_s": time.monotonic() - began_s, "cpu_s": sum(cpu_ns(process.pid) for process in running) / 1e9}
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()


async def start_by_controller(count: int) -> dict[str, float]:
    command = ["python", "-m", "bench.drive_swarm", "component"]
    wanted = {"id": SWARM, "bees": [{"role": ROLE, "command": command, "instances": count}]}
    async with swarm() as made:
        before_ns, began_s = cpu_ns(made.process.pid), time.monotonic()
        await made.ask(Signal.TEMPLATE, {"plan": wanted})
        ready_s = time.monotonic()
        await made.ask(Signal.START)
        end_s = time.monotonic()
        own_s = (cpu_ns(made.process.pid) - before_ns) / 1e9
        pids = [seen.pid for seen in runtime().list() if seen.pid is not None]
        members_s = sum(cpu_ns(pid) - _begun_ns(pid) for pid in pids) / 1e9
        return {
            "wall_s": end_s - began_s,
            "enable_s": end_s - ready_s,
            "cpu_s": own_s + members_s,
            "controller_s": own_s,
        }


def _begun_ns(pid: int) -> int:
    with open(f"{gear.home()}/begun-{pid}") as file:
        return int(file.read())


# --- status ----------------------------------------------------------------------------------------------------------


async def fan_in(count: int, seconds: float) -> dict[str, float]:
    """Measure a controller whose components only sleep: it sees them in the runtime, and this process sends their
    status."""
    wanted = {"id": SWARM, "bees": [{"role": ROLE, "command": ["sleep", "86400"], "instances": count}]}
    loaded = plan.load(plan.Document(wanted, "bench"))
    members = [one.instance for one in loaded.members()]
    async with swarm() as made:
        told = [0]
        telling = asyncio.create_task(tell(members, told))
        queue = names.control_queue(names.CONTROLLER, CONTROLLER)
        try:
            await made.ask(Signal.TEMPLATE, {"plan": wanted})
            await asyncio.sleep(2)  # the command and its last messages are over
            waited, told_before = await made.bus.depth(queue), told[0]
            before_ns, began_s = cpu_ns(made.process.pid), time.monotonic()
            await asyncio.sleep(seconds)
            used_s, took_s = (cpu_ns(made.process.pid) - before_ns) / 1e9, time.monotonic() - began_s
            waiting, told_after = await made.bus.depth(queue), told[0]
        finally:
            telling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await telling
        # The share of a core for `count` messages a second: on a shared machine fewer may have been sent.
        assert waited is not None
        assert waiting is not None
        heard = told_after - told_before - (waiting.ready - waited.ready)
        return {"percent": 100 * used_s * count / max(1, heard), "seconds": took_s, "components": count, "heard": heard}


async def tell(members: list[str], told: list[int]) -> None:
    """Send the status of each component once a second, in turn; `told` counts the messages."""
    bus = await open_bus(os.environ["BENCH_BUS"], durable=False)
    due_s, number = time.monotonic(), 0
    while True:
        due_s += 0.02
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        some = members[number * len(members) // 50 : (number + 1) * len(members) // 50]
        number = (number + 1) % 50
        await asyncio.gather(*(bus.publish(names.CONTROL, status(instance)) for instance in some))
        told[0] += len(some)


def status(instance: str) -> BusMessage:
    told = messages.StatusReport(
        kind="status-full",
        message_id=str(uuid.uuid4()),
        timestamp=now(),
        role=ROLE,
        instance=instance,
        swarm_id=SWARM,
        enabled=False,
        state="Healthy",
        queues=messages.StatusQueues(inputs=("ph.bench.raw",), outputs=("ph.bench.done",)),
        data={
            "tps": 12.5,
            "done": 1000,
            "failed": 0,
            "deadLetters": 0,
            "health": "UP",
            "update": {},
            "pid": 1,
            "healthUrl": "http://127.0.0.1:1/actuator/health",
            "config": {"rate": 5},
            "uptimeSec": 60.5,
        },
    )
    return BusMessage(
        key=names.status_key("status-full", ROLE, instance), body=messages.encode(told), message_id=told.message_id
    )


def main() -> None:
    match sys.argv[1:]:
        case ["component"]:
            component()
        case ["bare"]:
            asyncio.run(bare())
        case ["controller"]:
            asyncio.run(controller())
        case ["start", "bare", count]:
            gear.answer(start_bare(int(count)))
        case ["start", "swarm", count]:
            gear.answer(asyncio.run(start_by_controller(int(count))))
        case ["fan-in", count, seconds]:
            gear.answer(asyncio.run(fan_in(int(count), float(seconds))))


if __name__ == "__main__":
    main()
