"""`farro up`, `down`, `ps`, and `start` and `stop`, which are the same: the services of a root as a swarm.

What they do lives in operations.own_swarm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import click

from farro.cli.options import common
from farro.cli.tables import show_table
from farro.cli.terminal import answer, complain, say
from farro.swarm import orchestrator_process, own_swarm, requests
from farro.swarm.cli.own_swarm import Here
from farro.swarm.cli.tables import dead_words, ended_words
from farro.swarm.files import ORCHESTRATOR
from farro.swarm.own_swarm import SLOTS, WORKERS, Line
from farro.swarm.requests import SwarmView

F = TypeVar("F", bound=Callable[..., Any])


def _sized(command: F) -> F:
    """The options that shape the default plan."""
    for option in (
        click.option(
            "--web/--no-web", "web", default=None, help="The dashboard and the HTTP API; else where they are installed."
        ),
        click.option(
            "--role",
            "roles",
            multiple=True,
            metavar="ROLE",
            help="Workers of this role; may be repeated. Else of Runner, and of each role that a provider answers.",
        ),
        click.option(
            "--runner",
            type=click.Choice(["inline", "process"]),
            help="Run jobs in the workers, or each in a process of its own; else as the config says.",
        ),
        click.option(
            "--slots", default=SLOTS, show_default=True, type=click.IntRange(1, 64), help="Jobs at once in each worker."
        ),
        click.option(
            "--workers", default=WORKERS, show_default=True, type=click.IntRange(1, 16), help="Workers of each role."
        ),
    ):
        command = option(command)
    return command


@click.command()
@click.option("--detach", "-d", is_flag=True, help="Leave it running in the background.")
@click.option("--plan", "plan_file", metavar="FILE", help="A swarm plan of your own instead; its id must be farro.")
@_sized
@common
def up(
    detach: bool,
    plan_file: str | None,
    workers: int,
    slots: int,
    runner: str | None,
    roles: tuple[str, ...],
    web: bool | None,
    root: str | None,
    as_json: bool,
) -> int:
    """Start what a root needs: a manager, which runs schedules too, a watchdog, workers of each role, and the web where
    it is installed. They are the swarm `farro`, kept running by its controller.

    Until Ctrl-C, which stops everything in order; a second one does not wait. With --detach they go on in the
    background until `farro down`. Safe to repeat: only what is missing or has changed is started.
    """
    if as_json and not detach:
        raise click.UsageError("--json needs --detach: in the foreground nothing ends that could be answered")
    here = Here(root)
    plan = here.plan(plan_file, workers=workers, slots=slots, runner=runner, roles=roles, web=web)
    if detach:
        return here.up_detached(plan, as_json)
    return here.up_in_front(plan)


@click.command()
@_sized
@common
def start(
    workers: int,
    slots: int,
    runner: str | None,
    roles: tuple[str, ...],
    web: bool | None,
    root: str | None,
    as_json: bool,
) -> int:
    """`farro up --detach`: start what a root needs, in the background.

    Safe to repeat: only what is missing or has changed is started. They live until `farro stop` or the machine's end;
    for services that start with it see `farro service install`.
    """
    here = Here(root)
    plan = here.plan(None, workers=workers, slots=slots, runner=runner, roles=roles, web=web)
    return here.up_detached(plan, as_json)


_kill = click.option("--kill", is_flag=True, help="Wait for nobody, not even for a bus that is away: end them at once.")


@click.command()
@_kill
@common
def down(kill: bool, root: str | None, as_json: bool) -> None:
    """Stop what `farro up` started. Running steps have five seconds, then their jobs go back into the queue; what does
    not end is killed, and its jobs are recovered at the next start. Other swarms of the root are left alone."""
    Here(root).down(as_json, kill=kill)


@click.command()
@_kill
@common
def stop(kill: bool, root: str | None, as_json: bool) -> None:
    """`farro down`: stop what runs in the background. Running steps have five seconds, then their jobs go back into the
    queue; what does not end is killed, and its jobs are recovered at the next start."""
    Here(root).down(as_json, kill=kill)


@click.command()
@common
def ps(root: str | None, as_json: bool) -> None:
    """The components that run here, of every swarm: `farro up` makes the swarm farro, `farro swarm` others."""
    here = Here(root)
    found = own_swarm.lines(here.place, here.runtime, here.clock)
    views = requests.list_(here.place, clock=here.clock)
    orchestrator = here.runtime.look(ORCHESTRATOR)
    pid = orchestrator.pid if orchestrator is not None and orchestrator.alive else None
    runs = requests.running(here.place)
    stands = {view.id: own_swarm.stands(here.place, view, found) for view in views}
    if as_json:
        told = [
            {"id": one.id, "state": one.state, "health": one.health, "reason": one.reason, "stands": stands[one.id]}
            for one in views
        ]
        answer(
            {
                "orchestrator": {"pid": pid, "running": runs},
                "swarms": told,
                "components": [asdict(line) for line in found],
            }
        )
        return
    if not views:
        say("nothing runs here; `farro up` starts what a root needs")
        return
    if found:
        show_table(
            [("COMPONENT", "ROLE", "STATE", "PID", "UP", "RESTARTS", "LOG"), *map(here.row, found)], right=(3, 4, 5)
        )
    for line in found:
        if line.failure is not None:
            say(f"{line.name} failed: it {line.failure}")
        elif line.pid is None and line.last_end is not None and stands[line.swarm]:
            say(f"{line.name} {ended_words(line.last_end)}")
    for view in views:
        say(f"swarm {view.id}: " + (_swarm_words(view, found) if stands[view.id] else _dead_words(view)))
        if (letters := dead_words(view)) is not None:
            say(f"swarm {view.id}: {letters}")
    trouble = orchestrator_process.trouble(here.place)
    if runs and trouble is not None and any(view.health == "Unknown" for view in views):
        complain(f"the orchestrator says: {trouble}")
    if pid is not None:
        say(f"orchestrator: pid {pid}")
    elif runs:
        say("orchestrator: runs, started by somebody else")
    elif any(stands.values()):
        again = "a controller starts another within some ten seconds"
        died = orchestrator is not None and any(view.controller["alive"] for view in views)
        again = again if died else "the next command of `farro swarm` or `farro up --detach` starts one"
        complain(f"no orchestrator runs here: nothing that is asked of swarms is done; {again}")


def _swarm_words(view: SwarmView, found: Sequence[Line]) -> str:
    """The reason is not said again where it is that of a component, which was told above."""
    known = any(line.failure in (view.reason or "") for line in found if line.failure and line.swarm == view.id)
    return f"{view.state}, {view.health}" + (f" ({view.reason})" if view.reason and not known else "")


def _dead_words(view: SwarmView) -> str:
    """Nobody lives who could have told that it is over: what it was is not what it is."""
    own = view.id == own_swarm.SWARM
    again = "`farro up` starts it again, `farro down` removes it"
    again = again if own else f"`farro swarm start {view.id}` starts it again"
    return f"not running (it was {view.state} when it was killed, or its machine ended); {again}"
