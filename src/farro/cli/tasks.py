"""`farro task`: add steps to the plan of the running step."""

from __future__ import annotations

from typing import Any

import click

from farro.cli import task_line
from farro.cli.options import json_option, root_option


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


@task.command(cls=_ByHand, add_help_option=False)
@click.option("--id", "task_id", metavar="ID", help="Its id; default: a generated one.")
@click.option("--needs", multiple=True, metavar="ID,ID", help="Steps that must have succeeded before; repeatable.")
@click.option("--input-from", metavar="ID", help="The step whose output it reads.")
@click.option("--timeout", metavar="DURATION", help="End it after this time, such as 90s, 10m or 2h.")
@click.option("--cwd", metavar="DIR", help="Where it runs; default: this folder.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Set a variable for it; repeatable.")
@click.option("--retries", metavar="N", help="How often it is tried again when it fails.")
@click.option("--retry-delay", metavar="DURATION", help="How long to wait before a retry, such as 10s.")
@click.option("--retry-backoff", metavar="N", help="The factor by which that grows with each retry, such as 2.")
@click.option("--tool", metavar="TOOL", help="The tool; default: the command is a program.")
@root_option("The farro root; it can only be the job's own.")
@json_option("Answer as JSON.")
def add() -> None:
    """Add a step to the plan that is running."""
