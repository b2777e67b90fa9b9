"""The other program names of farro (§12): agent-cli, agentd, managerd, watchdogd, air-executor, agx, agq, agw.

Each is a command of farro under another name, which its help and its errors use.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

import click

from farro.cli.commands import COMMANDS, HELP
from farro.cli.main import Hinting, Lazy, run


def agent_cli() -> None:
    """`agent-cli ls` is `farro ls`."""
    sys.exit(run(sys.argv[1:], program="agent-cli"))


def agentd() -> None:
    """`agentd --role R --workers N` is `farro worker --role R --workers N`."""
    from farro.cli.daemons import worker

    _end_as("agentd", worker)


def agw() -> None:
    """`agw --store agq://HOST:PORT` is `farro worker --role Runner --store agq://HOST:PORT`."""
    from farro.cli.daemons import worker

    _use_agenix_options("agw", {"--worker-id": "--name", "--agq-address": "--store"})
    _end_as("agw", worker)


def watchdogd() -> None:
    from farro.cli.daemons import watchdog

    _end_as("watchdogd", watchdog)


def agq() -> None:
    from farro.agq.cli import agq as command

    _use_agenix_options("agq", {})
    _end_as("agq", command)


def managerd() -> None:
    """`managerd` is `farro manager`; `managerd watchdog VERB JOB` is `farro VERB JOB`."""
    _end_as("managerd", manager_command())


_ABOVE = "farro.managerd"  # in click's context: --root and --json of managerd itself
AIR_EXECUTOR = ("start", "stop", "status", "logs", "reset", "job", "run-task", "import-air")
_AIR_HELP = {  # farro's own help explains these two by commands that are not here
    "start": "Start workers, watchdog and manager, in the background.",
    "stop": "Stop what was started.",
}


class AirExecutor(Lazy):
    """Air-Executor's verbs alone, each as farro has it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in AIR_EXECUTOR if name in COMMANDS]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return super().get_command(ctx, name) if name in AIR_EXECUTOR else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _AIR_HELP.get(name, HELP[name])) for name in self.list_commands(ctx)])


def air_executor() -> None:
    """`air-executor status` is `farro status`."""
    sys.exit(run(sys.argv[1:], program="air-executor", command=air_command()))


def air_command() -> click.Command:
    """Seed 002, component 10."""

    @click.group(cls=AirExecutor)
    @click.version_option(package_name="farro", message="%(prog)s %(version)s")
    def air() -> None:
        """Named jobs of tasks, worked in the background. Every command is farro's own: `farro --help` has more."""

    return air


def agx() -> None:
    """`agx add -- sort` is `farro agx add -- sort`."""
    from farro.agx.cli.group import agx as command

    _use_agenix_options("agx", {"--agq-addr": "--store"})
    _end_as("agx", command)


# --- the options of AGEniX's own agx, agq and agw ---

SESSION_KEY = "--session-key"


def _use_agenix_options(program: str, names: Mapping[str, str]) -> None:
    """Rewrite the arguments of AGEniX's own program of that name. A key among them is moved to the environment by
    executing the program anew: other users see the arguments of a process, not its environment."""
    arguments, key = agenix_arguments(sys.argv[1:], names, os.environ if names else {})
    if key is not None:
        click.echo(
            f"{program}: other users of this machine see a key in arguments; it was moved to AGQ_SESSION_KEY. Set that "
            "variable instead",
            err=True,
        )
        start = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv[1:])]
        environ = {**os.environ, "AGQ_SESSION_KEY": key}
        os.execve(sys.executable, [*start, *arguments], environ)  # noqa: S606 - this program itself
    sys.argv[1:] = arguments


def agenix_arguments(
    arguments: Sequence[str], names: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[list[str], str | None]:
    """Return the arguments with farro's names of options, and the key that was among them. Without a store among them
    AGQ_ADDR names it. What follows `--` is a command's own."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    left = [part for word in arguments[:end] for part in _split(word, (*names, SESSION_KEY))]
    made: list[str] = []
    key: str | None = None
    while left:
        word = left.pop(0)
        if word == SESSION_KEY and left:
            key = left.pop(0)
        elif names.get(word) == "--store" and left:
            made += ["--store", _address(left.pop(0))]
        else:
            made.append(names.get(word, word))
    address = environ.get("AGQ_ADDR")
    stored = environ.get("FARRO_STORE") or any(word.partition("=")[0] == "--store" for word in made)
    if address and not stored:
        made = ["--store", _address(address), *made]
    return [*made, *arguments[end:]], key


def _split(word: str, options: Sequence[str]) -> list[str]:
    """Return `--option=value` of one of these options as two words."""
    name, equals, value = word.partition("=")
    return [name, value] if equals and name in options else [word]


def _address(text: str) -> str:
    return text if "://" in text else f"agq://{text}"


def _end_as(program: str, command: click.Command) -> None:
    versioned = click.version_option(package_name="farro", message="%(prog)s %(version)s")(command)
    sys.exit(run(sys.argv[1:], program=program, command=versioned))


def manager_command() -> click.Command:
    """SPEC-1 §12 and §C."""
    from farro.cli import jobs, steer
    from farro.cli.daemons import manager
    from farro.cli.options import common, daemon

    @click.group(cls=Hinting, invoke_without_command=True)
    @click.option("--once", is_flag=True, help="Decide what is to decide now, then exit.")
    @click.option("--auto-plan", type=click.Choice(["off", "on"]), help="Make jobs of drafts and tasks.")
    @daemon
    @click.pass_context
    def managerd(
        context: click.Context, once: bool, auto_plan: str | None, root: str | None, as_json: bool
    ) -> int | None:
        """Route work, decide stale jobs, run schedules; or steer stale jobs by hand: managerd watchdog …"""
        context.meta[_ABOVE] = (root, as_json)
        if context.invoked_subcommand is not None:
            return None
        answer: int = context.invoke(manager, once=once, auto_plan=auto_plan, root=root, as_json=as_json)
        return answer

    @managerd.group(cls=Hinting)
    def watchdog() -> None:
        """Decide stale jobs by hand."""

    @watchdog.command("list-stale")
    @common
    @click.pass_context
    def list_stale(context: click.Context, root: str | None, as_json: bool) -> None:
        """List the jobs that wait for a decision, and those of dead agents that were not collected yet."""
        from farro.cli.options import open_root
        from farro.queue.jobs import stale

        above_root, above_json = context.meta[_ABOVE]
        store, _ = open_root(root or above_root)
        jobs.print_jobs(store, stale(store), "like that", as_json=as_json or above_json)

    for command in (steer.requeue, steer.kill, steer.force_complete):
        watchdog.add_command(command)
    return managerd
