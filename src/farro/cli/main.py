"""The `farro` command: its subcommands by name, imported when they are used, and how errors become exit codes."""

from __future__ import annotations

import contextlib
import gc
import importlib
from typing import TYPE_CHECKING, Any

import click

from farro.app import App
from farro.cli import terminal
from farro.cli.commands import COMMANDS, HELP, HIDDEN, SECTIONS

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Hinting(click.Group):
    """A group of commands that answers a wrong name with the nearest right one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-") and not ctx.resilient_parsing:
            import difflib

            near = difflib.get_close_matches(args[0], known, n=1)
            program = ctx.command_path
            hint = f"did you mean `{program} {near[0]}`?" if near else f"`{program} --help` lists the commands"
            ctx.fail(f"no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)


class Lazy(Hinting):
    """The commands of `farro`, each imported when it is used."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] in HIDDEN:
            return super(Hinting, self).resolve_command(ctx, args)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        place = COMMANDS.get(name) or HIDDEN.get(name)
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        gc.freeze()  # modules stay for good: collections can skip them
        gc.enable()
        if ctx.resilient_parsing:  # a shell asks what may come next
            from farro.cli.completion import equip

            equip(command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the names without importing their modules, which click would do for the help texts."""
        from click.shell_completion import CompletionItem

        names = [CompletionItem(name, help=HELP[name]) for name in COMMANDS if name.startswith(incomplete)]
        return names if not incomplete.startswith("-") else super(click.Group, self).shell_complete(ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))  # the same for all sections
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text, _ in commands])


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="farro", message="%(prog)s %(version)s")
def farro() -> None:
    """Agent and command work that you can trust: a job is a folder, a plan is its steps, a role is a queue.

    \b
    Start here:
      farro run -- make test      run a command now, and keep its output
      farro enqueue -- make test  queue it; also --delay 10m, --after JOB
      farro worker --drain        work the queue until it is empty
      farro ls                    list the jobs

    Exit codes: 0 done, 1 failed, 2 wrong use or bad input, 3 refused.
    """


def run(arguments: list[str], *, program: str = "farro", command: click.Command = farro) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 wrong use or bad input, 3 refused. A user's mistake
    prints no traceback. `program` is the name in help and errors (cli.aliases)."""
    terminal.make_encodable()
    terminal.program = program
    try:
        return terminal.guarded(
            lambda: command.main(
                args=arguments,
                prog_name=program,
                standalone_mode=False,
                help_option_names=["-h", "--help"],
                obj=App(),
            )
        )
    except click.ClickException as error:
        with contextlib.suppress(OSError):
            error.show()
        return error.exit_code
    except click.Abort:
        terminal.complain("stopped")
        return 130
