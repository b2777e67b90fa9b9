"""`farro init`. What it makes lives in operations.roots."""

from __future__ import annotations

import os

import click

from farro import config
from farro.cli.options import answer, common
from farro.operations import roots


@click.command()
@common
def init(root: str | None, as_json: bool) -> None:
    """Make this folder (or --root DIR) a farro root. Safe to repeat: what is there is kept."""
    path = os.path.abspath(root or os.environ.get("FARRO_ROOT") or os.getcwd())
    made = roots.init(path, config.load(path))
    if as_json:
        answer({"root": path, "made": made})
    elif made:
        click.echo(f"{path} is a farro root now. Queue a plan with: farro enqueue --plan FILE")
    else:
        click.echo(f"{path} is a farro root already; nothing was missing")
