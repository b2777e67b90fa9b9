"""The pipes of an agent, as a transport of the ACP library.

The library's own transport reads lines of any length, and writes what it cannot parse to this process's stderr.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

from farro.agents.programs.output import LONGEST_LINE, Lines, json_object

_MOST_UNREAD = 4 * LONGEST_LINE  # bytes that an agent has not read: then it is not talked to any more


class AgentPipes(asyncio.Protocol):
    """Sends and receives messages (acp: Transport). Used on one event loop."""

    def __init__(self) -> None:
        self.last_s = time.monotonic()  # when the agent said something
        self.opened = False
        self._messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._lines = Lines(self._take_line)
        self._reading: asyncio.BaseTransport | None = None
        self._writing: asyncio.WriteTransport | None = None

    async def open(self, stdin: int, stdout: int) -> None:
        """Take the other ends of the agent's standard input and output, which `close` closes."""
        self.opened = True
        loop = asyncio.get_running_loop()
        self._reading, _ = await loop.connect_read_pipe(lambda: self, os.fdopen(stdout, "rb", 0))
        self._writing, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(stdin, "wb", 0))

    def data_received(self, data: bytes) -> None:
        self.last_s = time.monotonic()
        self._lines.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._messages.put_nowait(None)

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message. To an agent that has gone, nothing is sent: `receive` tells its end."""
        if self._writing is None or self._writing.is_closing():
            return
        self._writing.write(json.dumps(message, separators=(",", ":")).encode("utf-8", "backslashreplace") + b"\n")
        if self._writing.get_write_buffer_size() > _MOST_UNREAD:
            self._writing.abort()

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message; None when there will be none."""
        return await self._messages.get()

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.close()
        if self._writing is not None and not self._writing.is_closing():
            self._writing.abort()  # `close` would wait for an agent that does not read

    def _take_line(self, line: str) -> None:
        message = json_object(line)
        if message is not None and isinstance(message.get("id", 0), (int, str)):
            self._messages.put_nowait(dict(message))
