"""`farro agx`, the planner: its commands by name, imported when they are used. Alone at a terminal it reads lines."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from farro.cli.main import Hinting
from farro.cli.options import not_empty

META = "farro.agx"  # in click's meta: the options of the group, for its commands

SECTIONS = {
    "The draft": (
        ("new", "Begin a new draft.", "draft:new"),
        ("add", "Add a command, a pipe, or words for a model.", "draft:add"),
        ("preview", "Show exactly what would run.", "plans:preview"),
        ("edit", "Edit the draft in your editor.", "plans:edit"),
        ("remove", "Remove steps.", "draft:remove"),
        ("undo", "Bring back the draft before the last change.", "draft:undo"),
        ("redo", "Take back the last undo.", "draft:redo"),
        ("validate", "Check it, and print every problem.", "plans:validate"),
    ),
    "Saved plans": (
        ("save", "Save the draft under a name.", "plans:save"),
        ("list", "List the saved plans.", "plans:list_plans"),
        ("get", "Show one, or make it the draft.", "plans:get"),
        ("delete", "Delete a saved plan.", "plans:delete"),
        ("action", "One plan for many inputs: new, submit, list, get, delete.", "actions:action"),
    ),
    "Jobs": (
        ("submit", "Submit the draft, or a plan, as a job.", "submit:submit"),
        ("job", "One job: submit, status, stdout, result, cancel.", "jobs:job"),
        ("jobs", "List jobs.", "jobs:jobs"),
        ("workers", "List workers.", "jobs:workers"),
        ("queue", "How many jobs each queue has: stats.", "jobs:queue"),
    ),
}
PLACES = {name: place for section in SECTIONS.values() for name, _, place in section}
HELP = {name: text for section in SECTIONS.values() for name, text, _ in section}
ALIAS = "plan"  # `agx plan preview` is `agx preview`; AGEniX writes `agx PLAN preview`
OF_A_PLAN = (
    *("new", "add", "preview", "edit", "remove", "undo", "redo", "validate"),
    *("save", "list", "get", "delete", "submit"),
)


class AgxGroup(Hinting):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(PLACES)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in PLACES:
            return None
        module, _, attribute = PLACES[name].partition(":")
        command: click.Command = getattr(importlib.import_module(f"farro.agx.cli.{module}"), attribute)
        if ctx.resilient_parsing:  # a shell asks what may come next
            from farro.cli.completion import equip

            equip(command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0].lower() == ALIAS:
            if len(args) == 1 or args[1] not in OF_A_PLAN:
                ctx.fail(f"`{ctx.command_path} {ALIAS}` is followed by one of {', '.join(OF_A_PLAN)}")
            args = args[1:]
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Offer the names without importing their modules, which click would do for the help texts."""
        from click.shell_completion import CompletionItem

        names = [CompletionItem(name, help=HELP[name]) for name in PLACES if name.startswith(incomplete)]
        return names if not incomplete.startswith("-") else super(click.Group, self).shell_complete(ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, PLACES))  # the same for all sections
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text, _ in commands])


@click.group(cls=AgxGroup, invoke_without_command=True)
@click.option("--root", metavar="DIR", callback=not_empty, help="The farro root; default: as for every farro command.")
@click.option("--store", metavar="ADDRESS", help="Another queue: redis://HOST:PORT, or agq://HOST:PORT.")
@click.option("--json/--text", "as_json", default=None, help="JSON, also at a terminal; or text, also in a pipe.")
@click.pass_context
def agx(context: click.Context, root: str | None, store: str | None, as_json: bool | None) -> int | None:
    """The planner: write a plan step by step, from commands or from words, look at it, and submit it as a job.

    \b
      agx new                                begin a draft
      agx add -- 'sort names.txt | uniq -c'  commands; a pipe becomes linked steps, never a shell
      agx add 'keep the ten most frequent'   words: a model proposes steps; nothing is run
      agx preview                            see exactly what would run
      agx submit --wait                      submit it as a job, and wait for its end

    Alone at a terminal it reads such lines (without the `agx`), with history and Tab. In a pipe it answers as JSON.
    """
    context.meta[META] = {"root": root, "store": store, "as_json": as_json}
    if context.invoked_subcommand is not None:
        return None
    if sys.stdin is None or not sys.stdin.isatty() or not sys.stdout.isatty():
        name = context.command_path
        context.fail(f"`{name}` alone reads lines at a terminal; `{name} --help` lists the commands")
    from farro.agx.cli.repl import read_lines

    given = [*(("--root", root) if root else ()), *(("--store", store) if store else ())]
    return read_lines([*given, *(() if as_json is None else ("--json" if as_json else "--text",))])
