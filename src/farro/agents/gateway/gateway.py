"""Open the gateway of this process: one server on a port of loopback, started by its first use.

It runs on the event loop of the providers. A forked process gets a gateway of its own.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING

from farro.agents.gateway.port import Admission, GatewayRun
from farro.agents.providers import event_loop
from farro.agents.providers.port import ProviderTrouble

if TYPE_CHECKING:
    from farro.agents.gateway.server import GatewayServer

_START_S = 60.0  # importing the library takes 0.2 s on a quiet machine


class Gateway:
    """The gateway of a process. Safe from many threads."""

    def __init__(self) -> None:
        # Used by the loop's thread alone.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Task[GatewayServer] | None = None

    def admit(self, run: GatewayRun) -> Admission:
        """Admit a run until its admission is closed.

        Raises ProviderTrouble of kind `failed` if the library that the gateway needs is not installed.
        """
        return event_loop.run(lambda: self._admit(run), _START_S)

    def close(self) -> None:
        """End all runs. The next one starts a new server."""
        event_loop.run(self._close, _START_S)

    async def _admit(self, run: GatewayRun) -> Admission:
        running = asyncio.get_running_loop()
        if self._starting is None or self._loop is not running:
            self._loop, self._starting = running, running.create_task(_start())
            event_loop.call_at_end(self._close)
        try:
            server = await asyncio.shield(self._starting)
        except ImportError as error:
            self._starting = None
            raise ProviderTrouble(
                f"the gateway needs a library that is not installed ({error.name}): install farro[agents]",
                kind="failed",
                retryable=False,
                charged=False,
            ) from None
        return await server.admit(run)

    async def _close(self) -> None:
        starting, self._starting = self._starting, None
        if starting is not None and self._loop is asyncio.get_running_loop():  # else it is the parent's
            await (await starting).close()


async def _start() -> GatewayServer:
    # Imported on a thread into which no exception is raised: a half-imported library stays broken.
    module = await asyncio.to_thread(importlib.import_module, "farro.agents.gateway.server")
    server: GatewayServer = module.GatewayServer()
    await server.open()
    return server


_gateway = Gateway()


def open_gateway() -> Gateway:
    """Return the gateway of this process."""
    return _gateway
