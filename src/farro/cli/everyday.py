"""Declare the everyday commands for click: `farro ls`, `show`, `logs`, `wait`, `watch`.

Their functions are in modules that do not import click, which takes a third of their time; `cli.plain` runs them
without it where it can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from farro.cli import jobs as listing
from farro.cli import logs as outputs
from farro.cli import watch as watching
from farro.cli.logs import Selection
from farro.cli.options import Option, common, option_group
from farro.cli.terminal import seconds
from farro.jobs.states import Status


def _command(function: Callable[..., Any], *options: Option) -> click.Command:
    function = common(function)
    for option in reversed(options):
        function = option(function)
    return click.command()(function)


ls = _command(
    listing.ls,
    click.option("--role", "roles", multiple=True, metavar="ROLE", help="Only this role's jobs; repeatable."),
    click.option(
        "--status",
        "statuses",
        multiple=True,
        type=click.Choice([*(str(status) for status in Status), "in-progress"]),
        help="Only jobs of this status; repeatable.",
    ),
    click.option("--state", type=click.Choice(list(listing.STATES)), help="Only jobs in this folder of their role."),
    click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only jobs that need this tag; repeatable."),
    click.option("--limit", type=click.IntRange(min=1), help="At most this many."),
    click.option("--last", type=click.IntRange(min=1), metavar="N", help="The last N that changed, the newest first."),
)

show = _command(listing.show, click.argument("job"))

logs = _command(
    outputs.logs,
    click.argument("job", required=False),
    click.option(
        "--job", "name", metavar="NAME", help="The job's name; prints its last 50 lines unless --tail says more."
    ),
    click.option("--follow", "-f", is_flag=True, help="Go on while the job runs, also through further attempts."),
    click.option("--tail", "-n", type=click.IntRange(min=0), metavar="N", help="Only the last N lines."),
    option_group(
        "selection",
        Selection,
        click.option("--step", metavar="ID", help="Only this step."),
        click.option("--stdout", "only_stdout", is_flag=True, help="Only the steps' stdout."),
        click.option("--stderr", "only_stderr", is_flag=True, help="Only the steps' stderr."),
        click.option(
            "--attempt", type=click.IntRange(min=1), metavar="N", help="This attempt; default: the last with output."
        ),
    ),
)

wait = _command(
    watching.wait,
    click.argument("jobs", nargs=-1, required=True, metavar="JOB..."),
    click.option(
        "--timeout", callback=seconds, metavar="DURATION", help="Give up after this time, such as 90s, 10m, 2h."
    ),
    click.option("--any", "first", is_flag=True, help="Return when the first of them has ended."),
)

watch = _command(
    watching.watch,
    click.argument("job", required=False),
    click.option(
        "--interval",
        type=click.FloatRange(min=0.1, max=3600),
        default=1.0,
        show_default=True,
        metavar="SECONDS",
        help="Draw at least this often.",
    ),
)
