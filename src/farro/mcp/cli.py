"""`farro mcp`: serve farro to a coding agent over stdin and stdout, until the agent closes them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from importlib import metadata
from typing import TYPE_CHECKING

import click

from farro.cli.options import App, application, asked_store, common, open_root
from farro.cli.terminal import answer
from farro.config.settings import Allowed, Settings
from farro.doctor.checks import Check
from farro.errors import FarroError, InputError
from farro.host.clock import SystemClock
from farro.queue.admission import current_user, operator_name
from farro.queue.submit import SubmitPolicy
from farro.store.port import Store

if TYPE_CHECKING:
    from farro.mcp.context import ToolContext

_FINISHED = 2_000  # finished jobs that doctor reads; few, because an agent waits for the answer


@click.command()
@click.option(
    "--allow",
    multiple=True,
    type=click.Choice(["write", "approve"]),
    help="Beside looking: write (queue, retry, requeue, kill), approve (answer for a person); repeatable. "
    "Instead of `mcp.allow` in the config.",
)
@click.option("--read-only", is_flag=True, help="Only look, whatever the config allows.")
@click.option("--list", "listed", is_flag=True, help="Print the tools that it would offer, and end.")
@common
def mcp(allow: tuple[Allowed, ...], read_only: bool, listed: bool, root: str | None, as_json: bool) -> int:
    """Serve farro to a coding agent (Model Context Protocol, over stdin and stdout): the agent queues, watches and
    reads results. It may only read unless more is allowed.

    The agent starts this from its own configuration; docs/mcp.md shows how. Commands that it queues run in the folder
    where it was started.
    """
    if allow and read_only:
        raise click.UsageError("--allow and --read-only exclude each other")
    try:
        from farro.mcp import server
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("farro"):
            raise
        raise InputError("farro mcp needs the MCP library; install it with: pip install 'farro[mcp]'") from error
    store, settings = open_root(root, way="mcp")
    permitted = () if read_only else allow or settings.mcp.allow
    if listed or as_json:
        offered = server.allowed(permitted)
        if as_json:
            answer({"tools": [{"name": tool.name, "needs": tool.needs, "input": tool.schema()} for tool in offered]})
        else:
            from farro.cli.terminal import show_table

            show_table([("TOOL", "NEEDS", ""), *((tool.name, tool.needs or "-", tool.title) for tool in offered)])
        return 0
    serving = server.make(make_context(application(), store, settings), permitted, metadata.version("farro"))

    async def serve() -> None:
        # A thread blocks on standard input, and only input wakes it: so a signal ends the process.
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, _end, store)
        await server.serve(serving)

    asyncio.run(serve())
    return 0


def _end(store: Store) -> None:
    with contextlib.suppress(FarroError, OSError):
        store.close()
    os._exit(0)


def make_context(app: App, store: Store, settings: Settings) -> ToolContext:
    """Build the context of the tools for this root."""
    from farro.mcp.context import ToolContext

    clock, named = SystemClock(), asked_store()

    def checks() -> list[Check]:
        return app.checks(store.root, finished=_FINISHED, store=named)

    return ToolContext(
        store=store,
        settings=settings,
        library=app.library(store.root, settings),
        ledger=app.ledger(store.root, settings, clock),
        policy=SubmitPolicy.of(store.root, settings, user=current_user(), spell=_argument),
        clock=clock,
        by=operator_name("mcp"),
        folder=os.getcwd(),
        checks=checks,
    )


def _argument(name: str) -> str:
    """Spell a field of a request as the tools name it."""
    return {"delay": "delay_s", "timeout": "timeout_s"}.get(name, name)
