"""The `farro` command: its subcommands by name, loaded when they are asked for, and how errors become exit codes.

Each noun has a file of its own.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from farro.errors import FarroError

# name → where it lives: a command's imports are paid by that command alone.
COMMANDS = {
    "init": "farro.cli.roots:init",
    "enqueue": "farro.cli.submit:enqueue",
    "worker": "farro.cli.daemons:worker",
    "watchdog": "farro.cli.daemons:watchdog",
    "manager": "farro.cli.daemons:manager",
    "ls": "farro.cli.jobs:ls",
    "show": "farro.cli.jobs:show",
    "requeue": "farro.cli.jobs:requeue",
    "kill": "farro.cli.jobs:kill",
    "force-complete": "farro.cli.jobs:force_complete",
}
HELP = {
    "init": "Make this folder a farro root.",
    "enqueue": "Queue plans and print their ids.",
    "worker": "Work a role's queue.",
    "watchdog": "Recover what dead agents left.",
    "manager": "Decide what becomes of stale jobs.",
    "ls": "List jobs.",
    "show": "Show one job.",
    "requeue": "Put a stale or failed job back into its queue.",
    "kill": "End a job for good.",
    "force-complete": "Declare a job succeeded.",
}


class Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, HELP[name]) for name in COMMANDS])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS:
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean `farro {near[0]}`?" if near else "`farro --help` lists the commands"
            ctx.fail(f"no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="farro", message="farro %(version)s")
def farro() -> None:
    """Agent and command work that you can trust: a job is a folder, a plan is its steps, a role is a queue.

    Start here:  farro init  ·  farro enqueue --plan plan.json  ·  farro worker --drain  ·  farro ls
    """


def run(arguments: list[str]) -> int:
    """Run one command; the exit code. 0 ok, 1 failed, 2 usage or bad input, 3 refused. Never a traceback for a mistake."""
    try:
        answer = farro.main(args=arguments, prog_name="farro", standalone_mode=False)
        sys.stdout.flush()
        return answer if isinstance(answer, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("farro: stopped", err=True)
        return 130
    except FarroError as error:
        click.echo("\n".join(f"farro: {line}" for line in _printable(str(error)).splitlines()), err=True)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # noqa: TID251 - `farro ls | head` is no error
        return 141
    except OSError as error:
        click.echo(f"farro: {error.filename or 'the operating system'}: {error.strerror or error}", err=True)
        return 1


def _printable(text: str) -> str:
    """Names in a message come from files and arguments: no escape sequence of theirs reaches the terminal."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)
