"""`farro sandbox`: show what confines jobs with allowed_paths on this machine."""

from __future__ import annotations

import os
from dataclasses import asdict

import click

from farro.cli.options import common, read_root
from farro.cli.terminal import answer, say
from farro.config.settings import Settings
from farro.errors import NotARoot
from farro.sandbox import report as operations

_LEVELS = {
    "A": "A: bubblewrap; namespaces and seccomp",
    "B": "B: Landlock and seccomp",
    "none": "none: nothing is kept from writing; the tree is compared before and after",
}


@click.command()
@common
def sandbox(root: str | None, as_json: bool) -> None:
    """Show what confines jobs to their allowed_paths on this machine, and what that cannot prevent."""
    try:
        settings = read_root(root)[1]
    except NotARoot:
        if root or os.environ.get("FARRO_ROOT"):
            raise
        settings = Settings()
    security = settings.security
    told = operations.report(security.sandbox, required=security.require_sandbox)
    if as_json:
        answer(asdict(told))
        return
    say(f"level      {_LEVELS[told.level]}")
    if not told.runs:
        why = "security.require_sandbox is on" if security.require_sandbox else f"security.sandbox is {told.wanted}"
        say(f"           jobs with allowed_paths are refused: {why}")
    for number, probe in enumerate(told.probes):
        say(f"{'probed' if number == 0 else '':<10} {probe.level} {'works' if probe.works else 'fails'}: {probe.why}")
    say(f"processes  {told.processes}")
    say(f"memory     {told.memory}")
    for number, gap in enumerate(told.gaps):
        say(f"{'not kept' if number == 0 else '':<10} {gap}")
    for words in told.advice:
        say(f"better     {words}")
