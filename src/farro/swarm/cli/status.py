"""`farro swarm status`, `watch` and `ls`: looking at swarms. They ask nobody: everything stands in the root's files.

How it is laid out lives in swarm_showing.
"""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from farro.cli.options import common, read_root
from farro.cli.tables import seconds
from farro.cli.terminal import answer, complain, draws, say
from farro.host.clock import SystemClock
from farro.swarm import orchestrator_process, requests, service
from farro.swarm.cli.tables import listing, page
from farro.swarm.requests import SwarmView


@click.command(short_help="How a swarm and its components do.")
@click.argument("name", metavar="[SWARM]", required=False)
@common
def status(name: str | None, root: str | None, as_json: bool) -> None:
    """How a swarm does: its components, queues, recent errors and commands. Without a name: all swarms."""
    place = _place(root)
    if name is None:
        _list(place, removed=False, as_json=as_json)
        return
    view, commands = requests.look(place, name), requests.commands(place, name)
    if as_json:
        answer({**asdict(view), "commands": [asdict(one) for one in commands]})
    else:
        say(page(view, commands))
        _warn(place, [view])


@click.command()
@click.option("--all", "removed", is_flag=True, help="Those that were removed, too.")
@common
def ls(removed: bool, root: str | None, as_json: bool) -> None:
    """List the swarms of this root."""
    _list(_place(root), removed=removed, as_json=as_json)


@click.command()
@click.argument("name", metavar="SWARM")
@click.option("--every", "every_s", default="1s", callback=seconds, metavar="DURATION", help="How often to look.")
@click.option("--once", is_flag=True, help="Look once.")
@common
def watch(name: str, every_s: float, once: bool, root: str | None, as_json: bool) -> None:
    """Watch a swarm until Ctrl-C, or until it is removed. With --json: an object a line when something changed."""
    place, clock, told = _place(root), SystemClock(), None
    live = draws(sys.stdout) and not as_json
    while True:
        view, commands = requests.look(place, name), requests.commands(place, name)
        shown = {**asdict(view), "commands": [asdict(one) for one in commands]}
        essence = {key: value for key, value in shown.items() if key not in ("max_staleness_s", "watermark")}
        if as_json and essence != told:
            answer(shown)
        elif not as_json and (live or essence != told):
            if live:
                click.clear()
            say(page(view, commands))
        told = essence
        if once or view.state == "Removed":
            return
        clock.sleep(every_s)


def _list(place: str, *, removed: bool, as_json: bool) -> None:
    views = requests.list_(place, removed=removed)
    if as_json:
        answer({"swarms": [asdict(view) for view in views], "orchestrator": requests.running(place)})
    elif not views:
        say("no swarm here; make one: farro swarm apply FILE")
    else:
        say(listing(views))
        _warn(place, views)


def _warn(place: str, views: list[SwarmView]) -> None:
    """What the page itself cannot know: nobody may be there, or nothing may get through to those that are."""
    if not requests.running(place):
        complain("no orchestrator runs here; the next command of `farro swarm` starts one")
    elif (
        any(view.health == "Unknown" for view in views) and (trouble := orchestrator_process.trouble(place)) is not None
    ):
        complain(f"the orchestrator says: {trouble}")


def _place(root: str | None) -> str:
    path, settings = read_root(root)
    return service.place(path, settings).folder
