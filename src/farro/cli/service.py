"""`farro service install`, `uninstall`, `status`: systemd user units."""

from __future__ import annotations

import os
import sys

import click

from farro.cli.main import Hinting
from farro.cli.options import asked_store, common, open_root
from farro.cli.terminal import answer, say
from farro.host import systemd
from farro.queue import find_job
from farro.worker import service_units
from farro.worker.service_units import ServiceChanges

LINGER = "They end when you log out, unless you once run: loginctl enable-linger"


@click.group(cls=Hinting)
def service() -> None:
    """Run the workers, watchdog and manager of a root as systemd user services: started at log-in, restarted when they
    fail."""


@service.command()
@click.option(
    "--role", "roles", multiple=True, metavar="ROLE", help="A queue to work; may be repeated. Default: Runner."
)
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1, 64), help="Slots for each role.")
@click.option("--user", is_flag=True, help="Units of this user; the default, and the only kind.")
@click.option("--print", "only_print", is_flag=True, help="Show the units; write and start nothing.")
@common
def install(
    roles: tuple[str, ...], workers: int, user: bool, only_print: bool, root: str | None, as_json: bool
) -> None:
    """Write the units of this root and start them. Safe to repeat; other roles or workers replace the former ones.

    The units keep the PATH of this shell: steps find their commands by it.
    """
    store, _ = open_root(root)
    find_job.roles(store, roles)
    wanted = service_units.units(
        store.root,
        roles=tuple(dict.fromkeys(roles)) or ("Runner",),
        workers=workers,
        python=os.path.abspath(sys.executable),
        path=os.environ.get("PATH", os.defpath),
        store=asked_store(),
    )
    folder = systemd.unit_folder(os.environ)
    if only_print:
        if as_json:
            answer({"folder": folder, "units": wanted.files, "started": list(wanted.started)})
        else:
            say("\n".join(f"# {folder}/{name}\n{text}" for name, text in wanted.files.items()).rstrip())
        return
    done = service_units.install(folder, wanted)
    if as_json:
        answer({"folder": folder, "started": list(wanted.started), **_told(done)})
        return
    for name in done.written:
        say(f"wrote {folder}/{name}")
    if not done.written:
        say(f"nothing changed in {folder}")
    _say_rest(done, f"started {', '.join(wanted.started)}")
    say(LINGER)


@service.command(short_help="Stop and remove them.")
@common
def uninstall(root: str | None, as_json: bool) -> None:
    """Stop and remove the units that `farro service install` made for this root. Jobs stay as they are."""
    store, _ = open_root(root)
    folder = systemd.unit_folder(os.environ)
    done = service_units.uninstall(folder, store.root)
    if as_json:
        answer({"folder": folder, **_told(done)})
        return
    for name in done.removed:
        say(f"removed {folder}/{name}")
    _say_rest(done, "stopped" if done.removed else f"no services of {store.root} are installed")


@service.command()
@common
def status(root: str | None, as_json: bool) -> None:
    """Show the services of this root and whether they run."""
    store, _ = open_root(root)
    found = service_units.status(systemd.unit_folder(os.environ), store.root)
    if as_json:
        answer({"services": found})
    elif not found:
        say(f"no services of {store.root} are installed; make them with: farro service install")
    else:
        width = max(len(row["unit"]) for row in found)
        for row in found:
            say(f"{row['unit']:<{width}}  {row['enabled']:<8}  {row['active']}")


def _told(done: ServiceChanges) -> dict[str, object]:
    return {"written": done.written, "removed": done.removed, "todo": done.todo, "why": done.why}


def _say_rest(done: ServiceChanges, good: str) -> None:
    if not done.todo:
        say(good)
        return
    say(f"not started or stopped from here: {done.why}. Type:")
    for command in done.todo:
        say(f"  {command}")
