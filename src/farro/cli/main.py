"""The `farro` command: its subcommands by name, loaded when they are asked for, and how errors become exit codes.

Each noun has a file of its own.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

import click

from farro.cli import terminal
from farro.errors import FarroError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# name → where it lives: a command's imports are paid by that command alone.
COMMANDS = {
    "init": "farro.cli.roots:init",
    "run": "farro.cli.run:run",
    "enqueue": "farro.cli.submit:enqueue",
    "task": "farro.cli.tasks:task",
    "worker": "farro.cli.daemons:worker",
    "watchdog": "farro.cli.daemons:watchdog",
    "manager": "farro.cli.daemons:manager",
    "scheduler": "farro.cli.daemons:scheduler",
    "schedules": "farro.cli.schedules:schedules",
    "ls": "farro.cli.jobs:ls",
    "show": "farro.cli.jobs:show",
    "explain": "farro.cli.explain:explain",
    "history": "farro.cli.history:history",
    "logs": "farro.cli.logs:logs",
    "wait": "farro.cli.waiting:wait",
    "watch": "farro.cli.watching:watch",
    "stats": "farro.cli.statistics:stats",
    "requeue": "farro.cli.jobs:requeue",
    "kill": "farro.cli.jobs:kill",
    "force-complete": "farro.cli.jobs:force_complete",
    "prune": "farro.cli.prune:prune",
    "service": "farro.cli.service:service",
    "completion": "farro.cli.completion:completion",
}
HELP = {
    "init": "Make a folder a farro root.",
    "run": "Run a command as a job, here and now.",
    "enqueue": "Queue commands or plans and print their ids.",
    "task": "From inside a running step: add steps to its plan.",
    "worker": "Work a role's queue.",
    "watchdog": "Recover what dead agents left.",
    "manager": "Decide what becomes of stale jobs; run schedules.",
    "scheduler": "Run schedules, where no manager does.",
    "schedules": "List, check and run schedules.",
    "ls": "List jobs.",
    "show": "Show one job.",
    "explain": "Why a job is not running, and what helps.",
    "history": "The whole life of a job.",
    "logs": "What a job's steps said.",
    "wait": "Wait until jobs have ended.",
    "watch": "Watch the queues, or a job, live.",
    "stats": "How each role does.",
    "requeue": "Put a stale or failed job back into its queue.",
    "kill": "End a job for good.",
    "force-complete": "Declare a job succeeded.",
    "prune": "Remove finished jobs.",
    "service": "Install workers, watchdog and manager as systemd services.",
    "completion": "Print what makes Tab complete farro's commands.",
}


class Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        if ctx.resilient_parsing:  # a shell asks what may stand next
            from farro.cli.completion import equip

            equip(command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The names of commands without their modules: click would import every one of them for its help."""
        from click.shell_completion import CompletionItem

        names = [CompletionItem(name, help=HELP[name]) for name in COMMANDS if name.startswith(incomplete)]
        return names if not incomplete.startswith("-") else super(click.Group, self).shell_complete(ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, HELP[name]) for name in COMMANDS])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not ctx.resilient_parsing:
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            program = ctx.info_name
            hint = f"did you mean `{program} {near[0]}`?" if near else f"`{program} --help` lists the commands"
            ctx.fail(f"no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="farro", message="%(prog)s %(version)s")
def farro() -> None:
    """Agent and command work that you can trust: a job is a folder, a plan is its steps, a role is a queue.

    \b
    Start here:
      farro run -- make test            run a command now, and keep what it said
      farro init                        make this folder a root
      farro enqueue -- make test        queue a command, or --plan plan.json
      farro worker --drain              work the queue until it is empty
      farro ls                          see what became of it

    Exit codes: 0 done, 1 failed, 2 wrong use or bad input, 3 refused.
    """


def run(arguments: list[str], *, program: str = "farro", command: click.Command = farro) -> int:
    """Run one command; the exit code. 0 ok, 1 failed, 2 usage or bad input, 3 refused. No traceback for a mistake.
    `program` is the name that its help and its complaints bear (cli.aliases)."""
    terminal.make_encodable()
    terminal.program = program
    try:
        answer = command.main(
            args=arguments, prog_name=program, standalone_mode=False, help_option_names=["-h", "--help"]
        )
        terminal.flush()
        return answer if isinstance(answer, int) else 0
    except click.ClickException as error:
        with contextlib.suppress(OSError):
            error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        terminal.complain("stopped")
        return 130
    except terminal.ReaderGone as gone:
        terminal.forget_stdout()
        return gone.exit_code
    except FarroError as error:
        terminal.complain(str(error))
        return error.exit_code
    except OSError as error:
        if error.filename is not None:
            terminal.complain(f"{error.filename}: {error.strerror or error}")
        else:
            terminal.forget_stdout()
            terminal.complain(f"the answer could not be written: {error.strerror or error}")
        return 1
