"""`farro orchestrator` and `farro controller SWARM`: what farro starts by itself for swarms, until a signal ends it.

The loops live in services.swarms; `farro swarm` asks for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Protocol

import click

from farro.cli.background import program
from farro.cli.daemon_process import Signals, end_well, log_to_stdout
from farro.cli.options import daemon, read_root
from farro.config.settings import Settings
from farro.errors import BusTrouble, InputError
from farro.host.clock import SystemClock
from farro.log.structured import Log
from farro.swarm import files, orchestrator_process, service
from farro.swarm.bus.port import Bus

AGAIN_S = 2.0  # after a bus was away for longer than it is waited for


class _Loop(Protocol):
    async def run(self) -> None: ...

    def stop(self) -> None: ...


@click.command(hidden=True)
@daemon
def orchestrator(root: str | None, as_json: bool) -> None:
    """Carry out what is asked of swarms, and see that their controllers live. One a root."""
    signals = Signals()
    path, settings = read_root(root)
    from farro.swarm import single_process
    from farro.swarm.controller.actions import environment
    from farro.swarm.orchestrator.orchestrator import Orchestrator
    from farro.swarm.orchestrator.state import Launching, Realm

    log = log_to_stdout("orchestrator", as_json, settings.runners)
    place, durable = service.place(path, settings), settings.durability == "power"
    place.make()
    lease = single_process.hold(place.orchestrator, f"an orchestrator of {path}", SystemClock())

    def make(bus: Bus) -> Orchestrator:
        how = Launching(program=program(), root=path, env=environment(settings.secret_variables()))
        runtime, clock = service.runtime(path), SystemClock()
        return Orchestrator(Realm(place, bus, runtime, how, log=log, clock=clock, durable=durable))

    log("info", "orchestrator started", {"pid": os.getpid(), "bus": settings.bus})
    asyncio.run(_run(path, settings, make, signals, log))
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
    files.check_swarm(swarm)
    from farro.jobs.times import timestamp
    from farro.swarm import single_process
    from farro.swarm.controller.actions import Ground, environment
    from farro.swarm.controller.controller import Controller
    from farro.swarm.controller.orchestrator_guard import Guard

    log = log_to_stdout("controller", as_json, settings.runners)
    place, clock = service.place(path, settings), SystemClock()
    if place.desired(swarm) is None:
        raise InputError(f"there is no swarm {swarm} in {path}; `farro swarm create` makes one, and its controller")
    lease = single_process.hold(place.of(swarm), f"a controller of swarm {swarm}", clock)
    ground = Ground(
        swarm=swarm,
        instance=files.controller(swarm),
        bus_address=service.bus_address(path, settings),
        folder=place.of(swarm),
        cwd=path,
        env=environment(),
    )

    def make(bus: Bus) -> Controller:
        durable = settings.durability == "power"
        return Controller(
            ground, bus, service.runtime(path), log=log, now=lambda: timestamp(clock.now()), durable=durable
        )

    queen = orchestrator_process.component(path, program(), environment(settings.secret_variables()))
    guard = Guard(service.runtime(path), queen, place.folder, clock, log)

    async def run() -> None:
        guarding = asyncio.create_task(guard.run())
        try:
            await _run(path, settings, make, signals, log)
        finally:
            guarding.cancel()

    log("info", "controller started", {"swarm": swarm, "pid": os.getpid()})
    asyncio.run(run())
    log("info", "controller stopped", {"swarm": swarm})
    end_well()
    lease.drop()


async def _run(root: str, settings: Settings, make: Callable[[Bus], _Loop], signals: Signals, log: Log) -> None:
    """Until a signal. While the bus is away it is tried again: nobody would start an orchestrator that gave up."""
    running, over = asyncio.get_running_loop(), asyncio.Event()
    loops: list[_Loop] = []

    def end() -> None:
        over.set()
        for loop in loops:
            loop.stop()

    def stop() -> None:
        running.call_soon_threadsafe(end)

    signals.end(stop)
    while not over.is_set():
        try:
            opening, ending = asyncio.create_task(service.open_bus(root, settings)), asyncio.create_task(over.wait())
            await asyncio.wait({opening, ending}, return_when=asyncio.FIRST_COMPLETED)
            ending.cancel()
            if not opening.done():
                opening.cancel()
                await asyncio.gather(opening, return_exceptions=True)
                return
            bus = opening.result()
            try:
                loops[:] = [make(bus)]
                if not over.is_set():
                    await loops[0].run()
                return
            finally:
                await bus.close()
        except BusTrouble as error:
            log("error", f"{error}; tried again in {AGAIN_S:g} s", {})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AGAIN_S):
                await over.wait()
