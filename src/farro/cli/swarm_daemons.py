"""`farro orchestrator` and `farro controller SWARM`: what farro starts by itself for swarms, until a signal ends it.

The loops live in services.swarms; `farro swarm` asks for them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Protocol

import click

from farro import hive
from farro.cli.background import program
from farro.cli.daemon_life import Signals, end_well, log_to_stdout
from farro.cli.options import daemon, read_root
from farro.errors import InputError
from farro.operations import swarm_place
from farro.ports.bus import Bus
from farro.settings import Settings
from farro.system.clock import SystemClock


class _Loop(Protocol):
    async def run(self) -> None: ...

    def stop(self) -> None: ...


@click.command(hidden=True)
@daemon
def orchestrator(root: str | None, as_json: bool) -> None:
    """Carry out what is asked of swarms, and see that their controllers live. One a root."""
    signals = Signals()
    path, settings = read_root(root)
    from farro.services.swarms import alone
    from farro.services.swarms.hands import environment
    from farro.services.swarms.orchestrator import Orchestrator
    from farro.services.swarms.realm import Launching, Realm

    log = log_to_stdout("orchestrator", as_json, settings.runners)
    place, durable = hive.place(path, settings), settings.durability == "power"
    place.make()
    lease = alone.hold(place.orchestrator, f"an orchestrator of {path}", SystemClock())

    def make(bus: Bus) -> Orchestrator:
        how = Launching(program=program(), root=path, env=environment(settings.secret_variables()))
        runtime, clock = hive.runtime(path), SystemClock()
        return Orchestrator(Realm(place, bus, runtime, how, log=log, clock=clock, durable=durable))

    log("info", "orchestrator started", {"pid": os.getpid(), "bus": settings.bus})
    asyncio.run(_run(path, settings, make, signals))
    log("info", "orchestrator stopped", {})
    end_well()
    lease.drop()


@click.command(hidden=True)
@click.argument("swarm")
@daemon
def controller(swarm: str, root: str | None, as_json: bool) -> None:
    """Keep one swarm as its plan and its last command say. Started by the orchestrator."""
    signals = Signals()
    path, settings = read_root(root)
    swarm_place.check_swarm(swarm)
    from farro.kernel.moments import timestamp
    from farro.services.swarms import alone
    from farro.services.swarms.controller import Controller
    from farro.services.swarms.hands import Ground, environment

    log = log_to_stdout("controller", as_json, settings.runners)
    place, clock = hive.place(path, settings), SystemClock()
    if place.desired(swarm) is None:
        raise InputError(f"there is no swarm {swarm} in {path}; `farro swarm create` makes one, and its controller")
    lease = alone.hold(place.of(swarm), f"a controller of swarm {swarm}", clock)
    ground = Ground(
        swarm=swarm,
        instance=swarm_place.controller(swarm),
        bus_address=hive.bus_address(path, settings),
        folder=place.of(swarm),
        cwd=path,
        env=environment(),
    )

    def make(bus: Bus) -> Controller:
        durable = settings.durability == "power"
        return Controller(ground, bus, hive.runtime(path), log=log, now=lambda: timestamp(clock.now()), durable=durable)

    log("info", "controller started", {"swarm": swarm, "pid": os.getpid()})
    asyncio.run(_run(path, settings, make, signals))
    log("info", "controller stopped", {"swarm": swarm})
    end_well()
    lease.drop()


async def _run(root: str, settings: Settings, make: Callable[[Bus], _Loop], signals: Signals) -> None:
    bus = await hive.open_bus(root, settings)
    try:
        loop = make(bus)
        running = asyncio.get_running_loop()

        def stop() -> None:
            running.call_soon_threadsafe(loop.stop)

        signals.end(stop)
        await loop.run()
    finally:
        await bus.close()
