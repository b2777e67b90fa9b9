"""`farro init`. What it makes lives in operations.roots."""

from __future__ import annotations

import os

import click

from farro import config
from farro.cli import terminal
from farro.cli.options import json_option, root_option
from farro.cli.terminal import answer, say
from farro.operations import roots


@click.command()
@root_option("The folder; else FARRO_ROOT, else this one. It is made when it does not exist.")
@json_option("Answer as JSON.")
def init(root: str | None, as_json: bool) -> None:
    """Make a folder a farro root. Safe to repeat: what is there is kept, what is missing is made."""
    path = os.path.abspath(root or os.environ.get("FARRO_ROOT") or os.getcwd())
    was_root = os.path.isdir(f"{path}/jobs")
    made = roots.init(path, config.load(path, warn=terminal.complain))
    if as_json:
        answer({"root": path, "made": made})
    elif not made:
        say(f"{path} is a farro root already; nothing was missing")
    elif was_root:
        say(f"{path} is whole again; made {', '.join(made)}")
    else:
        say(f"{path} is a farro root now. Queue something with: farro enqueue -- COMMAND, or --plan FILE")
