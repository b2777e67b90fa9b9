"""`farro schedules`, `schedules run`, `schedules check`."""

from __future__ import annotations

import os
from typing import Any

import click

from farro.cli.main import Hinting
from farro.cli.options import common, open_root, policy
from farro.cli.terminal import answer, complain, reply, say, show_table
from farro.host.clock import SystemClock
from farro.queue import schedules as operations

_ABOVE = "farro.schedules"  # in click's context: --root and --json of the group itself


@click.group(cls=Hinting, invoke_without_command=True)
@common
@click.pass_context
def schedules(context: click.Context, root: str | None, as_json: bool) -> None:
    """List the schedules of this root: when each ran last and runs next, and what is wrong with it.

    \b
    A schedule is a file in schedules/, such as schedules/nightly.json:
      {"cron": "30 2 * * MON-FRI", "zone": "Europe/Berlin",
       "plan": {"steps": [{"id": "tidy", "command": "make", "args": ["clean"]}]}}
    cron     minute hour day-of-month month day-of-week;
             or @hourly @daily @weekly @monthly
    zone     UTC (the default), or a name such as Europe/Berlin
    plan     the plan, or plan_file: its file, named from the schedule's folder
    missed   run_once (the default), skip, or run_all: what happens to runs
             whose time passed while no scheduler ran; run_all runs at most 100
    Also: name, role, enabled. `farro manager` or `farro scheduler` runs them.
    """
    if context.invoked_subcommand is not None:
        context.meta[_ABOVE] = (root, as_json)
        return
    store, _ = open_root(root)
    entries = operations.read(store.root, store.roles())
    now = SystemClock().now()
    rows = [operations.line(store.root, entry, now) for entry in entries]
    if as_json:
        answer({"schedules": rows})
    elif not rows:
        say("no schedules; put one into schedules/, `farro schedules --help` shows how")
    else:
        show_table(_cells(rows))
        for entry in entries:
            for problem in entry.problems:
                complain(problem)


@schedules.command("run", short_help="Run one schedule now, outside its timetable.")
@click.argument("name", metavar="SCHEDULE")
@common
@click.pass_context
def run(context: click.Context, name: str, root: str | None, as_json: bool) -> None:
    """Run one schedule now, outside its timetable, also when it is disabled. Prints the job's id."""
    root, as_json = _inherited(context, root, as_json)
    store, settings = open_root(root)
    found = operations.named(store.root, store.roles(), name)
    job_id = operations.fire_now(store, found, policy(store, settings))
    reply(as_json, {"jobs": [job_id]}, job_id)


@schedules.command("check", short_help="Check schedule files, and print every problem.")
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@common
@click.pass_context
def check(context: click.Context, files: tuple[str, ...], root: str | None, as_json: bool) -> int:
    """Check schedule files, in schedules/ or anywhere else. Prints every problem with its place, and exits 2."""
    root, as_json = _inherited(context, root, as_json)
    store, _ = open_root(root)
    entries = [operations.read_file(os.getcwd(), file, store.roles()) for file in files]
    if as_json:
        now = SystemClock().now()
        answer({"schedules": [operations.line(store.root, entry, now) for entry in entries]})
    for entry in entries:
        for problem in entry.problems:
            complain(problem)
        if entry.schedule is not None and not as_json:
            due = operations.next_due(entry, SystemClock().now())
            say(f"{entry.file}: good; next run {operations.spelled(due)}")
    return 2 if any(entry.problems for entry in entries) else 0


def _inherited(context: click.Context, root: str | None, as_json: bool) -> tuple[str | None, bool]:
    """`farro schedules --root R run NAME` is `farro schedules run NAME --root R`."""
    above_root, above_json = context.meta.get(_ABOVE, (None, False))
    return root or above_root, as_json or above_json


def _cells(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    cells: list[tuple[str, ...]] = [("NAME", "CRON", "ZONE", "NEXT", "LAST", "")]
    for row in rows:
        remark = "has problems" if row["problems"] else "" if row["enabled"] else "disabled"
        shown = (row["name"], row["cron"] or "-", row["zone"] or "-", row["next"] or "-", row["last"] or "-", remark)
        cells.append(shown)
    return cells
