"""Serve the application on a port: uvicorn with limits, our signal handling and a bounded shutdown."""

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
from farro.web.application import WebApplication

HEAD_TIMEOUT_S = 10.0  # for the head of a request to arrive
HEAD_BYTES = 32 << 10
CONNECTIONS = 2000
GRACE_S = 4.0  # for running requests to finish when the server stops
TICK_S = 1.0  # the resolution of the Date header


class TimedHttpProtocol(H11Protocol):
    """Close connections whose request head does not arrive in time.

    Without this, clients that send a byte now and then would use up all connections.
    """

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._head_timer: asyncio.TimerHandle | None = self.loop.call_later(HEAD_TIMEOUT_S, self._close_if_waiting)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._waits_for_head():
            self._cancel_timer()
        elif self._head_timer is None:  # the beginning of the next request on this connection
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._close_if_waiting)

    def _waits_for_head(self) -> bool:
        cycle: Any = self.cycle
        return cycle is None or bool(cycle.response_complete)

    def _cancel_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_if_waiting(self) -> None:
        self._head_timer = None
        if self._waits_for_head() and not self.transport.is_closing():
            self.transport.close()


class QuietServer(uvicorn.Server):
    """Wake once a second instead of ten times.

    uvicorn polls the time and its exit flag every 0.1 s. Without requests that was a quarter of the processor time that
    all idle processes of a root use.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._wake = asyncio.Event()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # 0: uvicorn renews the Date header at every tenth tick, beginning with this
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._wake.wait()

    def wake(self) -> None:
        """Make the loop check its exit flag at once. Call this in the loop's thread."""
        self._wake.set()


class WebServer:
    """Serve an application until `stop`."""

    def __init__(self, web: WebApplication, log: Log) -> None:
        self._web = web
        config = uvicorn.Config(
            web.app,
            http=TimedHttpProtocol,
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
        _log_uvicorn(log)
        self._server = QuietServer(config)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, listening: socket.socket) -> None:
        """Answer requests until `stop`. The caller handles signals: `_serve` skips uvicorn's own handlers."""
        self._loop = asyncio.get_running_loop()
        sys.setswitchinterval(0.001)  # else a request waits 5 ms for each turn of the thread that reads jobs
        await self._server._serve([listening])

    @property
    def started(self) -> bool:
        return self._server.started

    def stop(self) -> None:
        """Stop the server. Any thread or signal handler may call this."""
        self._server.should_exit = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._server.wake)
            self._loop.call_soon_threadsafe(self._web.stop)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens on the address, or raise OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Name the protocol: asyncio disables Nagle's algorithm only for IPPROTO_TCP. With it each response would wait 40 ms
    # for the client to acknowledge the head.
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


def _log_uvicorn(log: Log) -> None:
    """Write uvicorn's warnings and errors to our log."""

    class LogHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            why = {} if error is None else {"why": f"{type(error).__name__}: {error}"}
            log("error" if record.levelno >= logging.ERROR else "warning", record.getMessage().splitlines()[0], why)

    logger = logging.getLogger("uvicorn")
    logger.handlers = [LogHandler()]
    logger.setLevel(logging.WARNING)
    logger.propagate = False
