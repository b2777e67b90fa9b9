"""A small HTTP server for the health of a component: /actuator/health and /healthz, GET and HEAD only.

No part of a request is repeated in an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable

PATHS = (b"/actuator/health", b"/healthz")
_LINE_LIMIT = 4096
_PATIENCE_S = 5.0


class HealthServer:
    """`health` returns whether the component is up, and more data for the answer."""

    def __init__(self, health: Callable[[], tuple[bool, dict[str, object]]]) -> None:
        self._health = health
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen and return the port."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_LINE_LIMIT)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_PATIENCE_S):
                line = await reader.readline()
                for _ in range(100):  # the headers are read, so that the client is not cut off, and ignored
                    if (await reader.readline()).strip() == b"":
                        break
                writer.write(self._answer(line))
                await writer.drain()
        writer.close()

    def _answer(self, line: bytes) -> bytes:
        words = line.split()
        if len(words) != 3 or words[0] not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", {"error": "only GET"}, body=True)
        if words[1].split(b"?", 1)[0] not in PATHS:
            return _response("404 Not Found", {"error": "there is /actuator/health and /healthz"}, body=True)
        up, more = self._health()
        answer = {"status": "UP" if up else "DOWN", **more}
        return _response("200 OK" if up else "503 Service Unavailable", answer, body=words[0] == b"GET")


def _response(status: str, answer: dict[str, object], *, body: bool) -> bytes:
    data = json.dumps(answer).encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (data if body else b"")
