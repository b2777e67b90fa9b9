"""`farro pause`, `farro resume`."""

from __future__ import annotations

from dataclasses import asdict

import click

from farro.cli.options import common, open_root, operator_name
from farro.cli.terminal import answer, say
from farro.host.clock import SystemClock
from farro.queue import pause as pausing

_all = click.option("--all", "everything", is_flag=True, help="Every queue of this root.")


@click.command()
@click.argument("roles", nargs=-1, metavar="[ROLE]...")
@_all
@click.option("--why", metavar="TEXT", help="The reason, shown by `farro explain` and the dashboard.")
@common
def pause(roles: tuple[str, ...], everything: bool, why: str | None, root: str | None, as_json: bool) -> None:
    """Give out no more jobs of a queue, until `farro resume`. What runs goes on, and jobs are queued as ever.

    Without a role: which queues are paused, by whom, since when and why.
    """
    store, _ = open_root(root)
    wanted = tuple(store.roles()) if everything else roles
    found = (
        pausing.pause(store, wanted, by=operator_name(), why=why, clock=SystemClock())
        if wanted
        else dict(store.paused())
    )
    if as_json:
        answer({"paused": {role: asdict(paused) for role, paused in found.items()}})
    elif found:
        say("\n".join(pausing.lines(found)))
    else:
        say("no queue is paused")


@click.command()
@click.argument("roles", nargs=-1, metavar="[ROLE]...")
@_all
@common
def resume(roles: tuple[str, ...], everything: bool, root: str | None, as_json: bool) -> None:
    """Resume paused queues, and wake the workers that wait for their jobs."""
    store, _ = open_root(root)
    wanted = tuple(store.paused()) if everything else roles
    if not wanted and not everything:
        raise click.UsageError("name the queues to resume, or give --all; `farro pause` lists those that are paused")
    done = pausing.resume(store, wanted, by=operator_name())
    if as_json:
        answer({"resumed": done})
        return
    for role in wanted:
        say(f"the queue of {role} goes on" if role in done else f"the queue of {role} was not paused")
    if not wanted:
        say("no queue is paused")
