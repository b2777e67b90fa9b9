"""The adapters of a root's swarms: their files, the bus that carries what they say, and what starts their components.

What a swarm does lives in services.swarms; the adapters of jobs are chosen in app.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from farro.config.settings import Settings
from farro.host.clock import SystemClock

if TYPE_CHECKING:
    from farro.swarm.bus.port import Bus
    from farro.swarm.files import Place
    from farro.worker.runtime import Runtime


def place(root: str, settings: Settings) -> Place:
    """The files of a root's swarms."""
    from farro.swarm.files import FOLDER, Place

    return Place(f"{root}/{FOLDER}", durable=settings.durability == "power")


def runtime(root: str) -> Runtime:
    """What starts the orchestrator, the controllers and the components of swarms."""
    from farro.swarm.files import COMPONENTS, FOLDER
    from farro.worker.process_runtime import ProcessRuntime

    return ProcessRuntime(f"{root}/{FOLDER}/{COMPONENTS}", SystemClock())


def check_bus(root: str, settings: Settings) -> None:
    """InputError where an orchestrator that is started here would not know how to get to its bus: then nothing is
    asked of it. One that runs knows by itself."""
    from farro.swarm import requests

    if not requests.running(place(root, settings).folder):
        bus_address(root, settings)


def bus_address(root: str, settings: Settings) -> str:
    """What carries what swarms say, with the password: for the bus and the environment, never for a message."""
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
    from farro.swarm.bus.open import opened

    durable = settings.durability == "power"
    return await opened(bus_address(root, settings), durable=durable, quorum=settings.amqp.quorum)
