"""Serving the application on a port: uvicorn with bounds, our signals, an end that waits for nobody long.

What it serves is `app`; the command is cli.web.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from farro.log.structured import Log
from farro.web.application import Web

HEAD_S = 10.0  # in which the head of a request must have arrived
HEAD_BYTES = 32 << 10
CONNECTIONS = 2000
GRACE_S = 4.0  # for answers that are on their way when it is told to stop
TICK_S = 1.0  # the finest that the date in an answer's head can tell


class Patient(H11Protocol):
    """Closes a connection that does not say what it wants: those that drip bytes would keep all others out."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._late: asyncio.TimerHandle | None = self.loop.call_later(HEAD_S, self._end_if_silent)

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._waits():
            self._in_time()
        elif self._late is None:  # the beginning of another request, after one that was answered
            self._late = self.loop.call_later(HEAD_S, self._end_if_silent)

    def _waits(self) -> bool:
        """For the head of a request."""
        cycle: Any = self.cycle
        return cycle is None or bool(cycle.response_complete)

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _end_if_silent(self) -> None:
        self._late = None
        if self._waits() and not self.transport.is_closing():
            self.transport.close()


class Unhurried(uvicorn.Server):
    """uvicorn wakes ten times a second, to see what time it is and whether it shall leave: with nobody there that was a
    quarter of what a whole house of idle workers costs."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._called = asyncio.Event()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # each is the first of a second
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._called.wait()

    def call(self) -> None:
        """On its loop: it sees at once that it shall leave."""
        self._called.set()


class Serving:
    """One server. `start` binds and answers where; `ended` runs until `stop`."""

    def __init__(self, web: Web, log: Log) -> None:
        self._web = web
        config = uvicorn.Config(
            web.app,
            http=Patient,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=int(GRACE_S),
            limit_concurrency=CONNECTIONS,
            h11_max_incomplete_event_size=HEAD_BYTES,
        )
        _tell(log)
        self._server = Unhurried(config)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, listening: socket.socket) -> None:
        """Until `stop`. The signals are the caller's: uvicorn would take them for itself."""
        self._loop = asyncio.get_running_loop()
        sys.setswitchinterval(0.001)  # a request must not wait 5 ms for each turn of the thread that reads jobs
        await self._server._serve([listening])

    @property
    def started(self) -> bool:
        return self._server.started

    def stop(self) -> None:
        """From any thread or signal handler."""
        self._server.should_exit = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._server.call)
            self._loop.call_soon_threadsafe(self._web.stop)


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens there. OSError: it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol by name: asyncio switches Nagle's algorithm off only where it stands, and without that each answer
    # waits 40 ms for the other side's acknowledgement of its head.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(512)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


def _tell(log: Log) -> None:
    """What uvicorn has to say, in our log; its everyday words are nobody's."""

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            why = {} if error is None else {"why": f"{type(error).__name__}: {error}"}
            log("error" if record.levelno >= logging.ERROR else "warning", record.getMessage().splitlines()[0], why)

    ours = logging.getLogger("uvicorn")
    ours.handlers = [Told()]
    ours.setLevel(logging.WARNING)
    ours.propagate = False
