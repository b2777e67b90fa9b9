"""A coding agent for the tests of `farro mcp`: the SDK's own client, which starts it as such an agent does.

The fixtures are in mcp/conftest.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from farro.app import App
from farro.config import reader
from farro.config.settings import Allowed
from farro.mcp import server
from farro.mcp.cli import make_context
from flows.program import FARRO, PATIENCE_S, Program
from mcp import Client, StdioServerParameters

Talk = Callable[[Client], Awaitable[None]]


class Agent:
    """A coding agent: talks to a `farro mcp` of its own."""

    def __init__(self, program: Program) -> None:
        self.program = program

    @asynccontextmanager
    async def client(self, *args: str) -> AsyncIterator[Client]:
        command = StdioServerParameters(
            command=FARRO, args=["mcp", *args], env=dict(self.program.env), cwd=str(self.program.path)
        )
        async with asyncio.timeout(3 * PATIENCE_S), Client(command) as client:
            yield client

    def talk_here(self, what: Talk, *permitted: Allowed) -> None:
        """The same with the server inside this process: all of it but its start and the pipes."""
        root = str(self.program.path)
        settings = reader.load(root)
        store = App().open_store(root, settings, brief=True)
        context = replace(make_context(App(), store, settings), folder=root)

        async def run() -> None:
            async with asyncio.timeout(3 * PATIENCE_S), Client(server.make(context, permitted, "0")) as client:
                await what(client)

        try:
            asyncio.run(run())
        finally:
            store.close()

    def talk(self, what: Talk, *args: str) -> None:
        async def run() -> None:
            async with self.client(*args) as client:
                await what(client)

        asyncio.run(run())


async def ask(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The document that a tool answers; a tool error fails the test."""
    told = await client.call_tool(tool, arguments)
    assert not told.is_error, told.content
    assert isinstance(told.structured_content, dict)
    return told.structured_content


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """What a tool says when it does not do it."""
    told = await client.call_tool(tool, arguments)
    assert told.is_error, told.structured_content
    return str(getattr(told.content[0], "text", ""))
