"""`farro start` and `farro stop`: the services of a root in the background.

What they do lives in operations.background.
"""

from __future__ import annotations

import os
import sys

import click

from farro import app
from farro.cli.options import asked_store, common, read_root
from farro.cli.terminal import answer, complain, note, say
from farro.operations import background
from farro.operations.background import Started
from farro.roles.names import RUNNER
from farro.roles.workflow import MANAGER
from farro.system.clock import SystemClock


@click.command()
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 16), help="Worker processes.")
@click.option("--slots", default=2, show_default=True, type=click.IntRange(1, 64), help="Jobs at once in each of them.")
@click.option(
    "--runner",
    type=click.Choice(["inline", "process"]),
    help="Run jobs in the workers, or each in a process of its own; else as the config says.",
)
@click.option(
    "--role", "roles", multiple=True, metavar="ROLE", help="Workers of this role; may be repeated. Else of Runner."
)
@common
def start(workers: int, slots: int, runner: str | None, roles: tuple[str, ...], root: str | None, as_json: bool) -> int:
    """Start what a root needs, in the background: workers, for command plans unless --role says otherwise, a watchdog,
    and a manager, which runs schedules too.

    Safe to repeat: only what is missing is started. Each writes its log to logs/NAME.log. They live until `farro stop`
    or the machine's end; for services that start with it see `farro service install`.
    """
    path, settings = read_root(root)
    for role in roles:
        if role == MANAGER:
            raise click.BadParameter(
                "the manager's queue is worked by the manager, which starts anyway", param_hint="--role"
            )
        if role not in settings.all_roles():
            known = ", ".join(sorted(settings.all_roles()))
            raise click.BadParameter(f"{role} is not a role here; there is {known}", param_hint="--role")
    wanted = background.components(
        path,
        program=program(),
        env=dict(os.environ),
        workers=workers,
        slots=slots,
        runner=runner,
        roles=tuple(dict.fromkeys(roles)) or (RUNNER,),
        store=asked_store(),
    )
    done = background.start(app.runtime(path), wanted, SystemClock())
    died = [item for item in done if item.what == "died"]
    if as_json:
        told = [
            {"name": item.name, "what": item.what, "pid": item.pid, "log": item.log, "said": item.said} for item in done
        ]
        answer({"components": told})
    else:
        _tell(done, path)
    return 1 if died else 0


def program() -> tuple[str, ...]:
    """How farro is started here. -P: the folder that it starts in must not shadow it, should it hold a farro."""
    return (os.path.abspath(sys.executable), "-P", "-m", "farro")


def _tell(done: list[Started], root: str) -> None:
    width = max([10, *(len(item.name) for item in done)])
    for item in done:
        words = {"runs otherwise": "already runs, with other options"}.get(item.what, item.what)
        say(f"{item.name:<{width}} {words}" + ("" if item.what == "died" else f" (pid {item.pid})"))
    for item in done:
        if item.what == "died":
            shown = os.path.relpath(item.log, root)
            complain(f"{item.name} ended at once; {shown} ends with:" if item.said else f"{item.name} ended at once")
            note("\n".join(f"  {line}" for line in item.said.splitlines()))
    if any(item.what == "runs otherwise" for item in done):
        note("To have the new options: farro stop, then farro start again.")
    say("Look: farro status, farro logs JOB. End: farro stop.")


@click.command()
@common
def stop(root: str | None, as_json: bool) -> None:
    """Stop what `farro start` started. Running steps have five seconds, then their jobs go back into the queue; what
    has not ended after ten seconds is killed, and its jobs are recovered at the next start."""
    path, _ = read_root(root)
    done = background.stop(app.runtime(path))
    if as_json:
        answer({"components": [{"name": item.name, "what": item.how} for item in done]})
    elif not done:
        say("nothing runs in the background here")
    else:
        words = {"was gone": "had ended before", "killed": "did not end in time, and was killed"}
        width = max(10, *(len(item.name) for item in done))
        say("\n".join(f"{item.name:<{width}} {words.get(item.how, item.how)}" for item in done))
