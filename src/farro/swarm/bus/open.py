"""Which bus an address means: `files:FOLDER`, or `amqp://…`.

Each adapter lives in a module of its own; amqp is imported when it is asked for.
"""

from __future__ import annotations

from farro.errors import InputError
from farro.swarm.bus.port import Bus


async def opened(address: str, *, durable: bool = True, quorum: bool = False) -> Bus:
    if address.startswith(("amqp://", "amqps://")):
        from farro.swarm.bus.amqp import AmqpBus

        return await AmqpBus.opened(address, quorum=quorum)
    if address.startswith("files:") and len(address) > len("files:"):
        from farro.swarm.bus.files import FilesBus

        return FilesBus(address.removeprefix("files:"), durable=durable)
    shown = address.split("@", 1)[-1]  # a password stands before it
    raise InputError(f"{shown!r} is no bus; it must be files:FOLDER, amqp://… or amqps://…")
