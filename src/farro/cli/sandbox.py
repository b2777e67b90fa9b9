"""`farro sandbox`, `sandbox try`: show what confines jobs, and what a command in there sees and reaches."""

from __future__ import annotations

import os
from dataclasses import asdict

import click

from farro.cli.main import Hinting
from farro.cli.options import common, read_root, read_root_or_here
from farro.cli.terminal import answer, note, say
from farro.sandbox import checks as confinement

_ABOVE = "farro.sandbox"  # in click's context: --root and --json of the group itself
_LEVELS = {
    "A": "A: bubblewrap; namespaces and seccomp",
    "B": "B: Landlock and seccomp",
    "none": "none: nothing is kept from writing; the tree is compared before and after",
}


@click.group(cls=Hinting, invoke_without_command=True)
@common
@click.pass_context
def sandbox(context: click.Context, root: str | None, as_json: bool) -> None:
    """Show what confines jobs to their allowed_paths on this machine, and what that cannot prevent."""
    if context.invoked_subcommand is not None:
        context.meta[_ABOVE] = (root, as_json)
        return
    security = read_root_or_here(root)[1].security
    told = confinement.report(security.sandbox, required=security.require_sandbox)
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


@sandbox.command("try", short_help="Run a command as the program of an agent.")
@click.option("--provider", metavar="NAME", help="With the network, variables and read_paths of this provider.")
@click.option("--role", metavar="ROLE", help="With those of this role, and of its provider.")
@click.option("--write", "writable", multiple=True, metavar="PATH", help="Allow writing there; repeatable.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@common
@click.pass_context
def try_command(
    context: click.Context,
    provider: str | None,
    role: str | None,
    writable: tuple[str, ...],
    command: tuple[str, ...],
    root: str | None,
    as_json: bool,
) -> int:
    """Run a command as the program of an agent would be run, and show what it could see and reach.

    \b
      farro sandbox try -- ls ~/.ssh
      farro sandbox try --role SeniorEngineer --write src/ -- claude --version

    It reads no input. Its output comes when it has ended; what it could see and reach goes to stderr. Exits with its
    exit code. No job is made.
    """
    from farro.agents import sandbox_trial as trials  # these: `farro sandbox` alone needs none of it
    from farro.agents.provider_test import scratch_folder

    above = context.meta.get(_ABOVE, (None, False))
    path, settings = read_root(root or above[0])
    asked = trials.TrialRequest(command=command, provider=provider, role=role, writable=writable)
    with scratch_folder(path) as folder:
        tried = trials.try_command(asked, root=path, settings=settings, environ=os.environ, folder=folder)
    if as_json or above[1]:
        answer(asdict(tried))
        return tried.exit_code
    click.echo(tried.stdout, nl=False)
    click.echo(tried.stderr, nl=False, err=True)
    network = "all of it" if tried.network is True else ", ".join(tried.network or ()) or "none"
    lines = {"level": (_LEVELS[tried.level],), "network": (network,), "writes": tried.writes}
    for name, values in {**lines, "reads": ("the system", *tried.reads), "not": tried.hidden}.items():
        for number, value in enumerate(values):
            note(f"{name if number == 0 else '':<10} {value}")
    note(f"exit code  {tried.exit_code}")
    return tried.exit_code
