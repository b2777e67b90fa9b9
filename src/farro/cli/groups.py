"""A group of commands that answers a wrong name with the nearest right one.

Every start of the program imports this module: nothing heavy here.
"""

from __future__ import annotations

from typing import Any

import click


def not_empty(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse an empty --root."""
    if value == "":  # an unset variable in a script must not mean the working folder
        raise click.BadParameter("it is empty; name a folder, or leave it out")
    return value


class Hinting(click.Group):
    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-") and not ctx.resilient_parsing:
            import difflib

            near = difflib.get_close_matches(args[0], known, n=1)
            program = ctx.command_path
            hint = f"did you mean `{program} {near[0]}`?" if near else f"`{program} --help` lists the commands"
            ctx.fail(f"no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)
