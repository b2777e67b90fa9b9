"""Offer swarms to other slices: queries, commands, and the adapters that a root's settings choose.

The web, the terminal UI and the MCP server import this module only. Buses and the process runtime are imported when
they are used.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from farro.config.settings import Settings
from farro.host.clock import SystemClock
from farro.swarm.files import COMPONENTS, FOLDER, SwarmFiles
from farro.swarm.files import check_swarm as check_swarm
from farro.swarm.requests import CommandReceipt as CommandReceipt
from farro.swarm.requests import CommandRequest as CommandRequest
from farro.swarm.requests import submit as submit
from farro.swarm.requests import wait as wait
from farro.swarm.views import CommandView as CommandView
from farro.swarm.views import ComponentView as ComponentView
from farro.swarm.views import SwarmView as SwarmView
from farro.swarm.views import command as command
from farro.swarm.views import commands as commands
from farro.swarm.views import orchestrator_runs as orchestrator_runs
from farro.swarm.views import swarm as swarm
from farro.swarm.views import swarms as swarms
from farro.swarm.wire.names import NAME_PATTERN as NAME_PATTERN
from farro.swarm.wire.names import Signal as Signal

if TYPE_CHECKING:
    from farro.swarm.bus.port import Bus
    from farro.worker.runtime import ProcessView, Runtime


def folder(root: str) -> str:
    """Return the folder of a root's swarms, which most functions here take."""
    return f"{root}/{FOLDER}"


def files(root: str, settings: Settings) -> SwarmFiles:
    return SwarmFiles(folder(root), durable=settings.durability == "power")


def runtime(root: str) -> Runtime:
    """Return the runtime that starts the orchestrator, the controllers and the components."""
    from farro.worker.process_runtime import ProcessRuntime

    return ProcessRuntime(f"{folder(root)}/{COMPONENTS}", SystemClock())


def ensure_orchestrator(root: str, program: Sequence[str]) -> ProcessView | None:
    """Start the orchestrator of a root unless one runs. `program` is the command that starts farro here."""
    from farro.swarm import processes

    spec = processes.orchestrator_spec(root, program, dict(os.environ))
    return processes.ensure_orchestrator(runtime(root), spec, SystemClock())


def end_idle_orchestrator(root: str) -> tuple[list[str], int | None]:
    """End the orchestrator of a root unless a swarm needs it. Return the swarms, and the PID of one that ended."""
    from farro.swarm import processes

    return processes.end_idle_orchestrator(folder(root), runtime(root), SystemClock())


# --- the bus ---


def check_bus(root: str, settings: Settings) -> None:
    """Raise InputError if an orchestrator started here could not find its bus. A running one already has it."""
    if not orchestrator_runs(folder(root)):
        bus_address(root, settings)


def bus_address(root: str, settings: Settings) -> str:
    """Return the address of the bus with its password: for the bus and environments, never for messages."""
    if settings.bus == "files":
        return f"files:{root}/bus"
    if settings.bus.startswith("files:"):
        return f"files:{os.path.join(root, settings.bus.removeprefix('files:'))}"
    section, (scheme, _, rest) = settings.amqp, settings.bus.partition("://")
    if section.user is None:
        return settings.bus
    from urllib.parse import quote

    secret = "" if section.password is None else section.password.reveal(os.environ, "amqp.password")
    return f"{scheme}://{quote(section.user, safe='')}:{quote(secret, safe='')}@{rest}"


async def open_bus(root: str, settings: Settings) -> Bus:
    from farro.swarm import bus

    durable = settings.durability == "power"
    return await bus.open_bus(bus_address(root, settings), durable=durable, quorum=settings.amqp.quorum)
