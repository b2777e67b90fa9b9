"""`farro workers`: list the workers, their tools and their jobs."""

from __future__ import annotations

from dataclasses import asdict

import click

from farro.cli.options import common, open_root
from farro.cli.tables import show_table
from farro.cli.terminal import answer, say
from farro.queue import workers as operations
from farro.queue.workers import WorkerLine

_FEW = 3  # tools in a line of the table; --json has all


@click.command()
@click.option("--all", "everyone", is_flag=True, help="Also watchdogs, managers and commands that hold a job.")
@common
def workers(everyone: bool, root: str | None, as_json: bool) -> None:
    """List the workers: every slot with its machine, tags, tools and its job."""
    store, _ = open_root(root)
    found = operations.listed(store.agents(), everyone=everyone)
    if as_json:
        answer({"workers": [asdict(line) for line in found]})
        return
    if not found:
        say("no workers; start one with: farro worker")
        return
    rows = [("WORKER", "ROLE", "HOST", "PID", "SINCE", "JOB", "TAGS", "TOOLS", "")]
    rows += [_row(line) for line in found]
    show_table(rows)


def _row(line: WorkerLine) -> tuple[str, str, str, str, str, str, str, str, str]:
    few = ", ".join(line.tools[:_FEW]) + (f", … ({len(line.tools)})" if len(line.tools) > _FEW else "")
    return (
        line.id,
        line.role or "-",
        line.host or "-",
        "-" if line.pid is None else str(line.pid),
        "-" if line.since is None else f"{line.since[:19].replace('T', ' ')}Z",
        line.job or "-",
        ", ".join(line.tags) or "-",
        few or "-",
        "" if line.alive else "dead: `farro watchdog` recovers its job" if line.job else "dead",
    )
