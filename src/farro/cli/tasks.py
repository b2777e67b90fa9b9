"""`farro task`: add steps to the plan of the running step."""

from __future__ import annotations

from typing import Any

import click

from farro.cli import task_line
from farro.cli.options import json_option


class _ByHand(click.Command):
    """Hand the whole command line, --help included, to task_line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["farro.line"] = list(args)
        return super().parse_args(ctx, [])

    def invoke(self, ctx: click.Context) -> Any:
        return task_line.run(ctx.meta["farro.line"])

    def get_help(self, ctx: click.Context) -> str:
        return task_line.HELP


@click.group()
def task() -> None:
    """Add steps to the running plan, from inside one of its steps."""


def _add() -> None:
    """Add a step to the plan that is running."""


# The options are for help and completion only: task_line parses them.
add = click.command(name="add", cls=_ByHand, add_help_option=False)(json_option("Answer as JSON.")(_add))
add.params[:0] = [
    click.Option([name], metavar=value, help=text, multiple=name in task_line.MANY)
    for name, value, text in task_line.OPTIONS
]
task.add_command(add)
