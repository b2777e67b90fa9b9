"""`farro task`: what a running step may do to its own plan.

The line of `task add` is read in cli.task_line, before click is imported; here the command is only found and listed.
"""

from __future__ import annotations

from typing import Any

import click

from farro.cli import task_line
from farro.cli.options import json_option, root_option


class _ByHand(click.Command):
    """A command whose line, help included, is another's to read."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["farro.line"] = list(args)
        return super().parse_args(ctx, [])

    def invoke(self, ctx: click.Context) -> Any:
        return task_line.run(ctx.meta["farro.line"])

    def get_help(self, ctx: click.Context) -> str:
        return task_line.HELP


@click.group()
def task() -> None:
    """From inside a running step: add steps to its plan."""


@task.command(cls=_ByHand, add_help_option=False)
@click.option("--id", "task_id", metavar="ID", help="Its id; else one is made up.")
@click.option("--needs", multiple=True, metavar="ID,ID", help="Steps that must have succeeded before; repeatable.")
@click.option("--input-from", metavar="ID", help="The step whose output it reads.")
@click.option("--timeout", metavar="DURATION", help="End it after so long, such as 90s, 10m or 2h.")
@click.option("--cwd", metavar="DIR", help="Where it runs; else this folder.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="For its environment; repeatable.")
@click.option("--retries", metavar="N", help="How often it is tried again when it fails.")
@click.option("--retry-delay", metavar="DURATION", help="How long it rests before that, such as 10s.")
@click.option("--retry-backoff", metavar="N", help="By how much that grows from try to try, such as 2.")
@click.option("--tool", metavar="TOOL", help="The tool; else the command is a program.")
@root_option("The farro root; it can only be the job's own.")
@json_option("Answer as JSON.")
def add() -> None:
    """Add a step to the plan that is running."""
