"""`farro orchestrator` and `farro controller SWARM`: the processes that farro starts for swarms."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Protocol

import click

from farro.cli.daemons import Signals, end_well, log_to_stdout
from farro.cli.options import daemon, program, read_root
from farro.config.settings import Settings
from farro.errors import BusTrouble, InputError
from farro.host.clock import SystemClock
from farro.log.structured import Log
from farro.swarm import files, processes, service
from farro.swarm.bus import AGAIN_S, open_until, wait
from farro.swarm.bus.port import Bus


class _Loop(Protocol):
    async def run(self) -> None: ...

    def stop(self) -> None: ...


@click.command(hidden=True)
@daemon
def orchestrator(root: str | None, as_json: bool) -> None:
    """Carry out the commands of swarms and keep their controllers running. One per root."""
    signals = Signals()
    path, settings = read_root(root)
    from farro.swarm.orchestrator import Orchestrator
    from farro.swarm.orchestrator.state import LaunchOptions, OrchestratorContext

    log = log_to_stdout("orchestrator", as_json, settings.runners)
    swarm_files, durable = service.files(path, settings), settings.durability == "power"
    swarm_files.make()
    lease = processes.hold_lease(swarm_files.orchestrator, f"an orchestrator of {path}", SystemClock())

    def make(bus: Bus) -> Orchestrator:
        how = LaunchOptions(program=program(), root=path, env=processes.environment(settings.secret_variables()))
        context = OrchestratorContext(
            swarm_files,
            bus,
            service.runtime(path),
            how,
            log=log,
            clock=SystemClock(),
            durable=durable,
            foreign_signals=settings.swarm.foreign_signals,
        )
        return Orchestrator(context)

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
    from farro.swarm.controller import Controller
    from farro.swarm.controller.actions import ControllerContext

    log = log_to_stdout("controller", as_json, settings.runners)
    swarm_files, clock = service.files(path, settings), SystemClock()
    if swarm_files.desired(swarm) is None:
        raise InputError(f"there is no swarm {swarm} in {path}; `farro swarm create` makes one, and its controller")
    lease = processes.hold_lease(swarm_files.swarm_folder(swarm), f"a controller of swarm {swarm}", clock)
    context = ControllerContext(
        swarm=swarm,
        instance=files.controller_instance(swarm),
        bus_address=service.bus_address(path, settings),
        folder=swarm_files.swarm_folder(swarm),
        cwd=path,
        env=processes.environment(),
        foreign_signals=settings.swarm.foreign_signals,
    )

    def make(bus: Bus) -> Controller:
        durable = settings.durability == "power"
        return Controller(
            context, bus, service.runtime(path), log=log, now=lambda: timestamp(clock.now()), durable=durable
        )

    spec = processes.orchestrator_spec(path, program(), processes.environment(settings.secret_variables()))
    guard = processes.OrchestratorGuard(service.runtime(path), spec, swarm_files.folder, clock, log)

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
    """Run until a signal. An unreachable bus is retried: no process would restart an orchestrator that gave up."""
    running, over = asyncio.get_running_loop(), asyncio.Event()
    loops: list[_Loop] = []

    def end() -> None:
        over.set()
        for loop in loops:
            loop.stop()

    def stop() -> None:
        running.call_soon_threadsafe(end)

    def complain(text: str) -> None:
        log("error", text, {})

    signals.end(stop)
    while (bus := await open_until(over, lambda: service.open_bus(root, settings), complain)) is not None:
        try:
            loops[:] = [make(bus)]
            if not over.is_set():
                await loops[0].run()
            return
        except BusTrouble as error:
            complain(f"{error}; retrying in {AGAIN_S:g} s")
        finally:
            await bus.close()
        await wait(over, AGAIN_S)
